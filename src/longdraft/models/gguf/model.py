"""Builds a Transformers model from a GGUF file of the Llama family.

Its packed matrices stay packed.
"""

from __future__ import annotations

import re
from collections.abc import Container
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from longdraft.backends.packed_linear import replace_linears
from longdraft.errors import InputError
from longdraft.models.alignment import LINE, Area, lines
from longdraft.models.gguf import changes, experts, joined, marks, rope
from longdraft.models.gguf.architectures import ARCHITECTURES, TOP
from longdraft.models.gguf.blocks import Make, bytes_of_two, outside
from longdraft.models.gguf.config import HEAD, READ, TABLE, further_layers, possible_sizes
from longdraft.models.gguf.file import AGAIN, GGUF, Stored
from longdraft.models.loading_progress import Report, unseen
from longdraft.ops.in_threads import in_threads
from longdraft.ops.interleaved import ROWS, Interleaved
from longdraft.ops.packed import Packed

# experts are chosen by numbers that no dtype of a model rounds
PRECISE = ("e_score_correction_bias", "expert_bias")
# parameters whose numbers may be others than those of the file
CHANGED = ("norm.weight", "A_log", *PRECISE)


def module_of(name: str, kind: str) -> str | None:
    """The parameter's name in Transformers for an architecture.

    None for a tensor that these models do not have.
    """
    architecture = ARCHITECTURES[kind]
    if match := re.fullmatch(r"blk\.(\d{1,6})\.([\w.]+)", name):
        parameter = architecture.parameter_of(match[2])
        return parameter and f"model.layers.{match[1]}.{parameter}"
    part, _, leaf = name.rpartition(".")
    modules = {**TOP, **architecture.top}
    return f"{modules[part]}.{leaf}" if part in modules and leaf in ("weight", "bias") else None


def body(file: GGUF) -> list[Stored]:
    """The tensors of a model, without factors of rotations and layers for further tokens."""
    kind = file.required("general.architecture", str)
    blocks = file.required(f"{kind}.block_count", int)
    further = range(blocks - further_layers(file, kind), blocks)

    def is_further(name: str) -> bool:
        match = re.match(r"blk\.(\d{1,6})\.", name)
        return match is not None and int(match[1]) in further

    return [
        stored
        for stored in file.tensors.values()
        if stored.name not in rope.TENSORS and not is_further(stored.name)
    ]


def area_for(file: GGUF, dtype: torch.dtype) -> Area:
    """Memory for the weights of `build`, those that stay packed and those that do not."""
    size = 0
    kind = file.required("general.architecture", str)
    for stored in body(file) if kind in READ else ():
        packed = _stays_packed(stored) and not _is_only_table(stored, file)
        if packed:
            # each of at most four tensors begins at a line
            blocks = stored.shape[-1] // stored.type.entries
            pairs = prod(stored.shape[:-1]) * -(-blocks // 2)
            size += pairs * bytes_of_two(stored.type) + 4 * LINE
        if not packed or stored.name == TABLE:
            size += lines(prod(stored.shape) * dtype.itemsize)
    return Area(size)


def _stays_packed(stored: Stored) -> bool:
    dimensions = 3 if experts.is_matrix(stored.name) else 2
    return stored.type.is_packed and len(stored.shape) == dimensions


def _is_only_table(stored: Stored, file: GGUF) -> bool:
    """Whether these are embeddings that are not the output matrix too."""
    return stored.name == TABLE and HEAD in file.tensors


def build(
    file: GGUF,
    config: Any,
    dtype: torch.dtype,
    report: Report = unseen,
    area: Area | None = None,
    rounds: bool = False,
) -> Any:
    """The model of a file and its config.

    Matrices that are packed in the file stay packed; all else is in `dtype`. The embedding is
    always in `dtype`, because single rows of it are read. Weights are put into `area`, as far as
    their size is known beforehand. rounds: packed layers will round their inputs, so most of them
    are brought into the order for that at once. Raises InputError.
    """
    make = outside if area is None else area.take
    with torch.device("meta"), possible_sizes(file):
        cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        hf = cls._from_config(config, dtype=dtype, attn_implementation="eager")
    _check(file, hf)
    in_parts = ARCHITECTURES[file.required("general.architecture", str)].joined
    moved = joined.names(hf, in_parts)
    packed, plain = _weights(file, config, dtype, report, make, moved, rounds)
    joined.put_together(hf, in_parts, packed, plain)
    experts.put(hf, packed, plain)
    for name, tensor in plain.items():
        _put(hf, name, tensor)
    table = hf.get_input_embeddings()
    name = next(name for name, module in hf.named_modules() if module is table)
    if HEAD not in file.tensors and not config.tie_word_embeddings:
        packed["lm_head"] = packed[name]
    if name in packed:
        rows = packed.pop(name)
        assert isinstance(rows, Packed)
        numbers = rows.dequantized(out=make(rows.shape, dtype))
        table.weight = nn.Parameter(numbers, requires_grad=False)
    if config.tie_word_embeddings:
        hf.lm_head.weight = table.weight
    replace_linears(hf, packed.items())
    scale_embedding(table)
    if name := rope.module_of(hf):
        setattr(hf.model, name, type(getattr(hf.model, name))(config=config))
        rope.check(file, hf)
    hf.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=marks.end_ids(file) or None
    )
    return hf.eval()


def _put(hf: Any, name: str, tensor: Tensor) -> None:
    """Put a parameter or a buffer into a model."""
    holder, _, leaf = name.rpartition(".")
    module = hf.get_submodule(holder)
    own = getattr(module, leaf)
    whole = tensor.view(own.shape)
    if isinstance(own, nn.Parameter):
        module.register_parameter(leaf, nn.Parameter(whole, requires_grad=False))
    else:
        module.register_buffer(leaf, whole)


def scale_embedding(table: Any) -> None:
    """Make the buffer that scales embeddings, if there is one.

    It has no values in a model that was built without memory.
    """
    if hasattr(table, "scalar_embed_scale"):
        table.embed_scale = nn.Buffer(torch.tensor(table.scalar_embed_scale), persistent=False)


def _check(file: GGUF, hf: Any) -> None:
    """Raises InputError unless the file has exactly the weights of the model, in their shapes."""
    kind = file.required("general.architecture", str)
    wanted = experts.separate(hf, ARCHITECTURES[kind].joined)
    given = dict[str, Stored]()
    for stored in body(file):
        name = module_of(stored.name, kind) or stored.name
        if name in given:
            raise InputError(
                f"{file.path} has both {given[name].name} and {stored.name}, which are the same of "
                f"a {hf.config.model_type}: {AGAIN}"
            )
        given[name] = stored
    for name, stored in given.items():
        if name not in wanted:
            raise InputError(
                f"{file.path}: a {hf.config.model_type} has no tensor {stored.name[:80]!r}: {AGAIN}"
            )
        if not _fits(stored.shape, wanted[name]):
            wrong, right = ("x".join(map(str, shape)) for shape in (stored.shape, wanted[name]))
            raise InputError(
                f"{file.path}: {stored.name} is {wrong}, but the metadata implies {right}: {AGAIN}"
            )
    lacking = [n for n in wanted if n not in given and n != "lm_head.weight"]
    if lacking:
        raise InputError(
            f"{file.path} lacks the weights {lacking[0]} and {len(lacking) - 1} others: {AGAIN}"
        )


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether they differ only by sizes of 1, which files leave out, or by how files divide rows of
    numbers.
    """
    if len(wanted) == 1:
        return prod(shape) == wanted[0]
    return [n for n in shape if n != 1] == [n for n in wanted if n != 1]


def _weights(
    file: GGUF,
    config: Any,
    dtype: torch.dtype,
    report: Report,
    make: Make,
    moved: Container[str],
    rounds: bool,
) -> tuple[dict[str, Packed | Interleaved], dict[str, Tensor]]:
    """Packed matrices by the name of their module, and other tensors by that of the parameter.

    The other tensors are in `dtype`. moved: those that are put together with others, elsewhere;
    memory of `make` is never free again.
    """
    packed = dict[str, Packed | Interleaved]()
    plain = dict[str, Tensor]()
    kind = file.required("general.architecture", str)
    # in the order of the file, which the system then reads ahead
    tensors = sorted(body(file), key=lambda stored: stored.data.data_ptr())
    size = sum(stored.data.nbytes for stored in tensors)
    done = 0
    report(0)

    def of(stored: Stored) -> Packed | Interleaved | Tensor:
        name = module_of(stored.name, kind) or ""
        if name in moved:
            return weight(file, stored, name, config, dtype)
        # rows of embeddings are read singly
        if rounds and stored.name != TABLE and _can_be_interleaved(file, stored, name, config):
            return Interleaved(stored.packed(make, turns=True))
        stays = _stays_packed(stored) or not experts.is_matrix(stored.name)
        return weight(file, stored, name, config, dtype, make if stays else outside)

    for stored, one in zip(tensors, in_threads(of, tensors), strict=True):
        name = module_of(stored.name, kind) or ""
        if not isinstance(one, Tensor):
            packed[name.removesuffix(".weight")] = one
        else:
            plain[name] = one
        done += stored.data.nbytes
        report(done / size)
    return packed, plain


def _can_be_interleaved(file: GGUF, stored: Stored, name: str, config: Any) -> bool:
    """Whether it is a packed matrix whose rows and inputs stay where they are."""
    fits = _stays_packed(stored) and not prod(stored.shape[:-1]) % ROWS
    return fits and _places(file, stored, name, config) == (None, None)


def _places(
    file: GGUF, stored: Stored, name: str, config: Any
) -> tuple[Tensor | None, Tensor | None]:
    """The places in the file of a parameter's rows, and of its inputs; None: in order."""
    architecture = ARCHITECTURES[file.required("general.architecture", str)]
    rows = changes.rows_of(architecture, config, name, stored.shape[0])
    return rows, changes.inputs_of(architecture, config, name)


def weight(
    file: GGUF,
    stored: Stored,
    name: str,
    config: Any,
    dtype: torch.dtype,
    make: Make = outside,
) -> Packed | Tensor:
    """One tensor of a file, the model's parameter of this name: packed, or in `dtype`."""
    stays = _stays_packed(stored)
    if stays and _is_only_table(stored, file):
        return stored.dequantized(make(stored.shape, dtype))
    rows, inputs = _places(file, stored, name, config)
    moved = rows is not None or inputs is not None
    if not moved and not stays and len(stored.shape) > 1 and not name.endswith(CHANGED):
        return stored.dequantized(make(stored.shape, dtype))
    weights = stored.read(outside if moved or not stays else make)
    if rows is not None:
        weights = changes.permuted(weights, rows, make if stays else outside)
    if inputs is not None:
        weights = changes.with_inputs(weights, inputs)
    if isinstance(weights, Packed) and stays:
        return weights
    architecture = ARCHITECTURES[file.required("general.architecture", str)]
    numbers = changes.numbers_of(architecture, name, weights)
    if name.endswith(PRECISE):
        return numbers.dequantized() if isinstance(numbers, Packed) else numbers.float()
    made = make(stored.shape, dtype)
    if isinstance(numbers, Packed):
        numbers.dequantized(out=made.view(numbers.shape))
    else:
        made.copy_(numbers.view(stored.shape))
    return made
