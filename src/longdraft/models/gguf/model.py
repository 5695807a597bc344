"""Builds a Transformers model from a GGUF file of the Llama family.

Its packed matrices stay packed.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from longdraft.backends.packed_linear import replace_linears
from longdraft.errors import InputError
from longdraft.families import FAMILIES
from longdraft.models.alignment import LINE, Area, lines
from longdraft.models.gguf import experts, marks, rope
from longdraft.models.gguf.architectures import ARCHITECTURES
from longdraft.models.gguf.blocks import Make, outside
from longdraft.models.gguf.file import AGAIN, GGUF, Stored
from longdraft.models.loading_progress import Report, unseen
from longdraft.ops.in_threads import in_threads
from longdraft.ops.packed import Packed

CONFIGS = {family.gguf: family.config_class for family in FAMILIES if family.gguf}
TABLE = "token_embd.weight"
HEAD = "output.weight"
MODULES = {"token_embd": "model.embed_tokens", "output": "lm_head"}
CORRECTIONS = ("e_score_correction_bias", "expert_bias")
MAX_POSITIONS = 1 << 30
PER_LAYER = 6  # tensors that each layer has at least


def module_of(name: str, kind: str) -> str | None:
    """The parameter's name in Transformers for an architecture.

    None for a tensor that these models do not have.
    """
    architecture = ARCHITECTURES[kind]
    if match := re.fullmatch(r"blk\.(\d{1,6})\.([\w.]+)", name):
        parameter = architecture.parameter_of(match[2])
        return parameter and f"model.layers.{match[1]}.{parameter}"
    part, _, leaf = name.rpartition(".")
    modules = MODULES | dict([architecture.final_norm])
    return f"{modules[part]}.{leaf}" if part in modules and leaf in ("weight", "bias") else None


def area_for(file: GGUF, dtype: torch.dtype) -> Area:
    """Memory for the weights of `build`, those that stay packed and those that do not."""
    size = 0
    kind = file.required("general.architecture", str)
    for stored in file.tensors.values() if kind in CONFIGS else ():
        packed = _stays_packed(stored) and not _is_only_table(stored, file)
        if packed:
            # rows may get another block, and each of at most four tensors begins at a line
            rows = prod(stored.shape[:-1])
            size += stored.data.nbytes + rows * stored.type.size + 4 * LINE
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
) -> Any:
    """The model of a file and its config.

    Matrices that are packed in the file stay packed; all else is in `dtype`. The embedding is
    always in `dtype`, because single rows of it are read. Weights are put into `area`, as far as
    their size is known beforehand. Raises InputError.
    """
    make = outside if area is None else area.take
    with torch.device("meta"):
        cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        hf = cls._from_config(config, dtype=dtype, attn_implementation="eager")
    _check(file, hf)
    packed, plain = _weights(file, config, dtype, report, make)
    experts.put(hf, packed, plain)
    for name, tensor in plain.items():
        _put(hf, name, tensor)
    if HEAD not in file.tensors and not config.tie_word_embeddings:
        packed["lm_head"] = packed["model.embed_tokens"]
    table = packed.pop("model.embed_tokens", None)
    if table is not None:
        numbers = table.dequantized(out=make(table.shape, dtype))
        hf.model.embed_tokens.weight = nn.Parameter(numbers, requires_grad=False)
    if config.tie_word_embeddings:
        hf.lm_head.weight = hf.model.embed_tokens.weight
    replace_linears(hf, packed.items())
    scale_embedding(hf.model.embed_tokens)
    name = rope.module_of(hf)
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


def config_of(file: GGUF) -> Any:
    """The config of a file's model.

    Raises InputError for an architecture that is not supported, and for sizes that contradict the
    tensors.
    """
    kind = file.required("general.architecture", str)
    if kind not in CONFIGS:
        raise InputError(
            f"{file.path} contains a model of architecture {kind[:40]!r}, which longdraft does "
            f"not read from GGUF: use one of {', '.join(CONFIGS)}, or the model's safetensors"
        )
    architecture = ARCHITECTURES[kind]
    of_experts = experts.metadata(file, kind)
    width = file.required(f"{kind}.embedding_length", int)
    layers = file.required(f"{kind}.block_count", int)
    heads = file.required(f"{kind}.attention.head_count", int)
    mlp = file.required(f"{kind}.feed_forward_length", int)
    has_layers = 0 < PER_LAYER * layers <= len(file.tensors)
    counts = f"{kind}.attention.head_count_kv"
    each = _of_each_layer(file, counts, layers, heads) if has_layers else [0]
    keys = max(each)
    if not (heads > 0 and keys > 0 and heads % keys == 0):
        raise InputError(
            f"{file.path} claims {layers} layers with {heads} query and {keys} key heads: {AGAIN}"
        )
    rotated = file.get(f"{kind}.rope.dimension_count", int)
    dim = file.get(f"{kind}.attention.key_length", int, rotated or width // heads)
    rotated = rotated or dim
    whole = rotated == dim or (architecture.partial and 0 < rotated < dim and rotated % 2 == 0)
    if not whole or dim % 2 or file.get(f"{kind}.attention.value_length", int, dim) != dim:
        raise InputError(
            f"{file.path} rotates {rotated} of {dim} dimensions per head: use a model that "
            "rotates all"
        )
    table = _tensor(file, TABLE)
    rows = 2 * mlp if architecture.joins_gate else mlp
    up = ("blk.0.ffn_up.weight", (rows, width))
    if of_experts and not of_experts.dense:
        up = ("blk.0.ffn_up_exps.weight", (of_experts.count, of_experts.inner, width))
    queries, of_keys = heads * dim, keys * dim
    first = f"blk.{each.index(keys)}"
    projections = [
        (f"{first}.attn_q.weight", (queries, width)),
        (f"{first}.attn_k.weight", (of_keys, width)),
    ]
    if architecture.joins_queries:
        projections = [(f"{first}.attn_qkv.weight", (queries + 2 * of_keys, width))]
    for name, wanted in ((TABLE, (table.shape[0], width)), *projections, up):
        if _tensor(file, name).shape != wanted:
            shape, right = ("x".join(map(str, x)) for x in (_tensor(file, name).shape, wanted))
            raise InputError(
                f"{file.path}: {name} is {shape}, but the metadata implies {right}: {AGAIN}"
            )
    positions = file.get(f"{kind}.context_length", int, 2048)
    if not 0 < positions <= MAX_POSITIONS:
        raise InputError(f"{file.path} claims a context length of {positions}: {AGAIN}")
    check_vocabulary(file)
    ids = [file.get(f"tokenizer.ggml.{token}_token_id", int) for token in ("bos", "padding")]
    if file.get(f"{kind}.attention.sliding_window", int) and not architecture.with_windows:
        raise InputError(
            f"{file.path} has a sliding window, which longdraft does not read from GGUF: "
            "use safetensors"
        )
    is_plain = table.type.name in ("F32", "F16", "BF16")
    tied = HEAD not in file.tensors and is_plain
    config: Any = CONFIGS[kind]
    given: dict[str, Any] = {
        "vocab_size": table.shape[0],
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": dim,
        "max_position_embeddings": positions,
        "rms_norm_eps": file.get(f"{kind}.attention.layer_norm_rms_epsilon", float, 1e-5),
        "rope_parameters": rope.parameters(file, kind, positions),
        "bos_token_id": ids[0],
        "pad_token_id": ids[1],
        "eos_token_id": marks.end_ids(file) or None,
        "tie_word_embeddings": tied,
        "name_or_path": str(file.path),
    }
    given |= of_experts.options if of_experts else {}
    if keys != min(each):
        given["key_heads"] = each
    return config(**architecture.options(file, kind, given))


def scale_embedding(table: Any) -> None:
    """Make the buffer that scales embeddings, if there is one.

    It has no values in a model that was built without memory.
    """
    if hasattr(table, "scalar_embed_scale"):
        table.embed_scale = nn.Buffer(torch.tensor(table.scalar_embed_scale), persistent=False)


def _of_each_layer(file: GGUF, key: str, layers: int, default: int) -> list[int]:
    """A number of the metadata, which may be one for all layers."""
    value: Any = file.metadata.get(key, default)
    if isinstance(value, int):
        return [value] * layers
    each = [int(n) for n in value]
    if len(each) != layers or not max(each, default=0):
        raise InputError(f"{file.path}: {key} has {len(each)} entries for {layers} layers: {AGAIN}")
    return each


def check_vocabulary(file: GGUF) -> None:
    """Raises InputError if the tokenizer's tokens are not the rows of the embedding."""
    tokens = file.get("tokenizer.ggml.tokens", list)
    rows = _tensor(file, TABLE).shape[0]
    if tokens is not None and len(tokens) != rows:
        raise InputError(
            f"{file.path}: its tokenizer has {len(tokens)} tokens, but its embedding has {rows} "
            f"rows, which must be equal: {AGAIN}"
        )
    for name in ("bos", "unknown", "padding", *marks.NAMED):
        token = file.get(f"tokenizer.ggml.{name}_token_id", int)
        if token is not None and not 0 <= token < rows:
            raise InputError(
                f"{file.path}: its {name}_token_id is {token}, but it has {rows} tokens: {AGAIN}"
            )


def _tensor(file: GGUF, name: str) -> Stored:
    if name not in file.tensors:
        raise InputError(f"{file.path} lacks the tensor {name}: {AGAIN}")
    return file.tensors[name]


def _check(file: GGUF, hf: Any) -> None:
    """Raises InputError unless the file has exactly the weights of the model, in their shapes."""
    wanted = experts.separate(hf)
    kind = file.required("general.architecture", str)
    given = {
        module_of(name, kind) or name: stored
        for name, stored in file.tensors.items()
        if name != rope.FACTORS
    }
    for name, stored in given.items():
        if name not in wanted:
            raise InputError(
                f"{file.path}: a {hf.config.model_type} has no tensor {stored.name[:80]!r}: {AGAIN}"
            )
        if _sizes(stored.shape) != _sizes(wanted[name]):
            wrong, right = ("x".join(map(str, shape)) for shape in (stored.shape, wanted[name]))
            raise InputError(
                f"{file.path}: {stored.name} is {wrong}, but the metadata implies {right}: {AGAIN}"
            )
    lacking = [n for n in wanted if n not in given and n != "lm_head.weight"]
    if lacking:
        raise InputError(
            f"{file.path} lacks the weights {lacking[0]} and {len(lacking) - 1} others: {AGAIN}"
        )


def _sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without those that are 1, which files leave out."""
    return tuple(n for n in shape if n != 1)


def _weights(
    file: GGUF, config: Any, dtype: torch.dtype, report: Report, make: Make
) -> tuple[dict[str, Packed], dict[str, Tensor]]:
    """Packed matrices by the name of their module, and other tensors by that of the parameter.

    The other tensors are in `dtype`.
    """
    packed = dict[str, Packed]()
    plain = dict[str, Tensor]()
    kind = file.required("general.architecture", str)
    tensors = [stored for stored in file.tensors.values() if stored.name != rope.FACTORS]
    size = sum(stored.data.nbytes for stored in tensors)
    done = 0
    report(0)
    made = in_threads(lambda stored: _weight(file, stored, config, dtype, make), tensors)
    for stored, weight in zip(tensors, made, strict=True):
        name = module_of(stored.name, kind) or ""
        if isinstance(weight, Packed):
            packed[name.removesuffix(".weight")] = weight
        else:
            plain[name] = weight
        done += stored.data.nbytes
        report(done / size)
    return packed, plain


def _weight(
    file: GGUF, stored: Stored, config: Any, dtype: torch.dtype, make: Make
) -> Packed | Tensor:
    """One tensor of a file: packed, or in `dtype`."""
    kind = file.required("general.architecture", str)
    name = module_of(stored.name, kind) or ""
    stays = _stays_packed(stored)
    if stays and _is_only_table(stored, file):
        return stored.dequantized(make(stored.shape, dtype))
    architecture = ARCHITECTURES[kind]
    rotated = architecture.turned and re.search(r"\.attn_([qk])\.", stored.name)
    weights = stored.read(make if stays and not rotated else outside)
    if architecture.minus_one and name.endswith("norm.weight"):
        numbers = weights.dequantized() if isinstance(weights, Packed) else weights.float()
        weights = numbers - 1
    if rotated:
        heads = config.num_attention_heads if rotated[1] == "q" else config.num_key_value_heads
        order = order_of(stored.shape[0], heads)
        weights = permuted(weights, order, make if stays else outside)
    if isinstance(weights, Packed) and stays:
        return weights
    if name.endswith(CORRECTIONS):  # experts are chosen in float32
        return weights.dequantized() if isinstance(weights, Packed) else weights.float()
    made = make(stored.shape, dtype)
    if isinstance(weights, Packed):
        weights.dequantized(out=made.view(weights.shape))
    else:
        made.copy_(weights.view(stored.shape))
    return made


def order_of(rows: int, heads: int) -> Tensor:
    """The places of Transformers' rows of queries or keys in a llama file.

    The file puts rotated pairs beside each other.
    """
    return torch.arange(rows).view(heads, rows // heads // 2, 2).transpose(1, 2).reshape(-1)


def permuted(weights: Packed | Tensor, order: Tensor, make: Make = outside) -> Packed | Tensor:
    if isinstance(weights, Tensor):
        return weights[order]
    parts = dict[str, Tensor]()
    for name, x in weights.parts.items():
        parts[name] = torch.index_select(x, 0, order, out=make(tuple(x.shape), x.dtype))
    return weights.of(parts)
