"""Builds a Transformers model from a checkpoint whose weights are quantized.

No code of another package runs, and matrices stay packed where a packed form holds them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.hub import cached_file

from longdraft.backends.packed_experts import can_be_packed, matrices_of
from longdraft.backends.packed_linear import replace, replace_linears
from longdraft.errors import InputError
from longdraft.models.classes import class_of, is_multimodal
from longdraft.models.loading_progress import Report
from longdraft.models.quantized import awq, bnb, compressed, experts, gptq, mlx, mxfp4
from longdraft.models.quantized.scheme import INSTEAD, OfExperts, Scheme
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.models.untrusted import OURS
from longdraft.ops.in_threads import in_threads
from longdraft.ops.packed import Packed

SCHEMES: Mapping[str, Callable[[dict[str, Any]], Scheme]] = {
    "gptq": gptq.scheme,
    "awq": awq.scheme,
    bnb.METHOD: bnb.scheme,
    "compressed-tensors": compressed.scheme,
}
UNPACKED = (
    "{} of {} quantized matrices are unpacked, since no packed form holds them exactly "
    "(FP8, NF4, FP4, sorted activations, or groups that are no multiple of 32)"
)


def taken(config: Any, packs_experts: bool) -> Scheme | None:
    """The scheme of a checkpoint that is read here, taken out of its config; None: another.

    packs_experts: whether those of gpt-oss stay packed; else Transformers unpacks them. Raises
    InputError for settings that are not read.
    """
    settings = getattr(config, "quantization_config", None)
    made = None
    if isinstance(settings, dict):
        kind = bnb.METHOD if bnb.is_meant(settings) else settings.get("quant_method")
        made = SCHEMES.get(kind) if isinstance(kind, str) else None
        if packs_experts and kind == "mxfp4" and config.model_type == "gpt_oss":
            made = mxfp4.scheme
    own = getattr(config, "quantization", None)
    if made is None and isinstance(own, dict) and settings in (None, own):  # MLX writes both
        made, settings = mlx.scheme, own
    if made is None or not isinstance(settings, dict):
        return None
    if is_multimodal(config):
        raise InputError(
            f"{config.model_type} is multimodal and quantized, which longdraft does not read: "
            f"{INSTEAD}"
        )
    scheme = made(settings)
    for name in ("quantization_config", "quantization"):
        if hasattr(config, name):
            delattr(config, name)
    return scheme


@torch.no_grad()
def load(
    where: str, local: bool, config: Any, scheme: Scheme, dtype: torch.dtype, report: Report
) -> tuple[Any, str | None]:
    """A model, and notes, one a line. config: without the scheme.

    All that is not quantized is in `dtype`, and so are embeddings, of which single rows are read.
    """
    files = Checkpoint(where, local)
    cls: Any = class_of(config)
    with torch.device("meta"):
        outline = cls._from_config(config, dtype=dtype, attn_implementation="eager")
    modules = dict(outline.named_modules())
    matrices = _quantized(files, scheme, modules, report, dtype)
    plain = _others(files, scheme, matrices, modules) | _unpacked(matrices, modules, dtype)
    count = sum(isinstance(m, Tensor) for m in matrices.values())
    notes = [scheme.note, UNPACKED.format(count, len(matrices)) if count else None]
    matrices = experts.gathered(files, matrices, modules)
    packed = _linears(matrices, modules)
    head = next((n for n, m in modules.items() if m is outline.get_output_embeddings()), "")
    if config.tie_word_embeddings and head not in packed and f"{head}.weight" not in plain:
        table = matrices.get(next(n for n, m in modules.items() if isinstance(m, nn.Embedding)))
        if isinstance(table, Packed):
            packed[head] = table
            config.tie_word_embeddings = False
    of_experts = {name: m for name, m in matrices.items() if isinstance(m, tuple)}
    state = plain | _places(packed, of_experts, modules, dtype)
    options: dict[str, Any] = {"config": config, "dtype": dtype, "output_loading_info": True}
    hf, info = cls.from_pretrained(None, state_dict=state, **options, **OURS)
    if info["missing_keys"]:
        raise files.error(f"the weights {sorted(info['missing_keys'])[0]} are missing")
    replace_linears(hf, packed.items())
    for name, matrix in packed.items():
        if matrix.bits == 5:  # the file's codes have 4 bits: `quantize` would round them
            hf.get_submodule(name).bits = 4
    for name, parts in of_experts.items():
        replace(hf, name, experts.put(hf.get_submodule(name), parts))
    return _named(hf, where, local), "\n".join(filter(None, notes)) or None


def _quantized(
    files: Checkpoint, scheme: Scheme, modules: dict[str, Any], report: Report, dtype: torch.dtype
) -> experts.Matrices:
    """The quantized matrices by the name of their layer, in `dtype` if they are unpacked."""
    names = scheme.layers(files)
    if not names:
        raise files.error(f"it has no quantized layers, although config.json names {scheme.name}")

    def matrix(name: str) -> Packed | Tensor | OfExperts:
        module = modules.get(name)
        of_both = module is not None and can_be_packed(module) and module.has_gate
        if scheme.marker == mxfp4.MARKER and of_both:
            return mxfp4.experts(files, name, module)
        kinds = (nn.Linear, nn.Embedding) if scheme.tables else (nn.Linear,)
        shape = experts.shape_of(modules, name)
        if isinstance(module, kinds):
            shape = (module.weight.shape[0], module.weight.shape[1])
        if shape is None:
            raise InputError(
                f"{files.where}: {name[:80]} is quantized by {scheme.name}, and is no linear layer "
                f"of this model in Transformers: {INSTEAD}"
            )
        made = scheme.matrix(files, name, shape)
        return made.to(dtype) if isinstance(made, Tensor) else made

    made = experts.Matrices()
    for name, weights in zip(names, in_threads(matrix, names), strict=True):
        made[name] = weights
        report(len(made) / len(names))
    return made


def _unpacked(
    matrices: experts.Matrices, modules: dict[str, Any], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Parameters of the matrices that are not packed, and of embeddings."""
    found = dict[str, Tensor]()
    for name, matrix in matrices.items():
        if isinstance(matrix, Tensor):
            found[f"{name}.weight"] = matrix
        elif isinstance(matrix, Packed) and isinstance(modules.get(name), nn.Embedding):
            found[f"{name}.weight"] = matrix.dequantized(dtype)
    return found


def _linears(matrices: experts.Matrices, modules: dict[str, Any]) -> dict[str, Packed]:
    """The packed matrices of linear layers."""
    return {
        name: matrix
        for name, matrix in matrices.items()
        if isinstance(matrix, Packed) and not isinstance(modules[name], nn.Embedding)
    }


def _places(
    packed: dict[str, Packed],
    of_experts: dict[str, OfExperts],
    modules: dict[str, Any],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Tensors in the places of packed matrices, which take no memory."""
    shapes = {f"{name}.weight": tuple(matrix.shape) for name, matrix in packed.items()}
    for name in of_experts:
        for leaf in matrices_of(modules[name]):
            shapes[f"{name}.{leaf}"] = tuple(getattr(modules[name], leaf).shape)
    return {name: torch.zeros(1, dtype=dtype).expand(shape) for name, shape in shapes.items()}


def _others(
    files: Checkpoint, scheme: Scheme, names: Iterable[str], modules: dict[str, Any]
) -> dict[str, Tensor]:
    """All tensors that are not parts of quantized matrices.

    AutoGPTQ writes biases of zeros for layers that have none. Any other tensor of a linear layer
    that the model does not have would change its output.
    """
    found = dict[str, Tensor]()
    parts = {f"{name}.{leaf}" for name in names for leaf in scheme.leaves}
    for full in files.names:
        if full in parts:
            continue
        layer, _, leaf = full.rpartition(".")
        module = modules.get(layer)
        tensor = files.read(full)
        if isinstance(module, nn.Linear) and getattr(module, leaf, None) is None:
            if leaf != "bias" or tensor.any():
                raise files.error(f"this model has no tensor {full[:80]}")
            continue
        if isinstance(module, nn.Linear | nn.Embedding) and not tensor.is_floating_point():
            raise files.error(f"{full[:80]} contains codes without their {scheme.marker}")
        found[full] = tensor
    return found


def _named(hf: Any, where: str, local: bool) -> Any:
    """The model with its name, and with the settings of generation that its folder has."""
    hf.config.name_or_path = where
    hf.name_or_path = where
    quiet: dict[str, Any] = {"_raise_exceptions_for_missing_entries": False}
    if cached_file(where, GENERATION_CONFIG_NAME, local_files_only=local, **quiet):
        hf.generation_config = GenerationConfig.from_pretrained(where, local_files_only=local)
    return hf
