"""The config of a GGUF file's model, from its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from longdraft.errors import InputError
from longdraft.families import FAMILIES
from longdraft.models.gguf import marks, mixtures, rope
from longdraft.models.gguf.architectures import ARCHITECTURES, FileArchitecture
from longdraft.models.gguf.file import AGAIN, GGUF, Stored
from longdraft.models.gguf.hybrids import layers_of
from longdraft.models.gguf.mixtures import FileExperts

# the architectures that are read, and the families of their models
READ = {family.gguf: family for family in FAMILIES if family.gguf and family.is_there}
READ |= {kind: READ[a.like] for kind, a in ARCHITECTURES.items() if a.like in READ}
OF_TYPE = {family.model_type: family for family in FAMILIES}
TABLE = "token_embd.weight"
HEAD = "output.weight"
MAX_POSITIONS = 1 << 30
PER_LAYER = 3  # tensors that each layer has at least


class _Sizes(NamedTuple):
    """layers: without those that predict further tokens. keys: heads of keys of each layer."""

    width: int
    layers: int
    heads: int
    keys: list[int]
    mlp: int


def config_of(file: GGUF) -> Any:
    """The config of a file's model.

    Raises InputError for an architecture that is not supported, and for sizes that contradict the
    tensors.
    """
    kind = file.required("general.architecture", str)
    if kind not in READ:
        raise InputError(
            f"{file.path} contains a model of architecture {kind[:40]!r}, which longdraft does "
            f"not read from GGUF: use one of {', '.join(READ)}, or the model's safetensors"
        )
    architecture = ARCHITECTURES[kind]
    of_experts = mixtures.metadata(file, kind)
    sizes = _sizes(file, kind)
    dim = _head_dim(file, kind, architecture, sizes)
    table = tensor(file, TABLE)
    _check_shape(file, TABLE, (table.shape[0], sizes.width))
    if not architecture.uneven:
        _check_first_layer(file, architecture, sizes, dim, of_experts)
    positions = file.get(f"{kind}.context_length", int, 2048)
    if not 0 < positions <= MAX_POSITIONS:
        raise InputError(f"{file.path} claims a context length of {positions}: {AGAIN}")
    check_vocabulary(file)
    if file.get(f"{kind}.attention.sliding_window", int) and not architecture.with_windows:
        raise InputError(
            f"{file.path} has a sliding window, which longdraft does not read from GGUF: "
            "use safetensors"
        )
    ids = [file.get(f"tokenizer.ggml.{token}_token_id", int) for token in ("bos", "padding")]
    is_plain = table.type.name in ("F32", "F16", "BF16")
    given: dict[str, Any] = {
        "vocab_size": table.shape[0],
        "hidden_size": sizes.width,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": max(sizes.keys),
        "head_dim": dim,
        "max_position_embeddings": positions,
        "rms_norm_eps": file.get(f"{kind}.attention.layer_norm_rms_epsilon", float, 1e-5),
        "rope_parameters": rope.parameters(file, kind, positions, architecture.by_multiplier),
        "bos_token_id": ids[0],
        "pad_token_id": ids[1],
        "eos_token_id": marks.end_ids(file) or None,
        "tie_word_embeddings": HEAD not in file.tensors and is_plain,
        "name_or_path": str(file.path),
    }
    given |= of_experts.options if of_experts else {}
    if len(set(sizes.keys)) > 1:
        given["key_heads"] = sizes.keys
    return _made(file, kind, architecture.options(file, kind, given))


def _made(file: GGUF, kind: str, given: dict[str, Any]) -> Any:
    of_family = ARCHITECTURES[kind].family
    family = OF_TYPE[of_family(file, kind)] if of_family else READ[kind]
    with possible_sizes(file):
        return family.config_class(**given)


@contextmanager
def possible_sizes(file: GGUF) -> Iterator[None]:
    """Raises InputError for what Transformers raises about sizes that no model can have."""
    try:
        yield
    except Exception as error:  # the library raises many types
        kind = file.required("general.architecture", str)
        what = " ".join(str(error).split())[:200]
        raise InputError(f"{file.path}: no {kind} has these sizes ({what}): {AGAIN}") from None


def further_layers(file: GGUF, kind: str) -> int:
    """Layers behind a model's own, which predict further tokens. Raises InputError."""
    count = file.get(f"{kind}.nextn_predict_layers", int, 0)
    if count < 0:
        raise InputError(f"{file.path} claims {count} layers for further tokens: {AGAIN}")
    return count


def _sizes(file: GGUF, kind: str) -> _Sizes:
    width = file.required(f"{kind}.embedding_length", int)
    blocks = file.required(f"{kind}.block_count", int)
    heads = file.required(f"{kind}.attention.head_count", int)
    layers = blocks - further_layers(file, kind)
    has_layers = layers > 0 and PER_LAYER * blocks <= len(file.tensors)
    counts = f"{kind}.attention.head_count_kv"
    keys = layers_of(file, counts, blocks, heads)[:layers] if has_layers else [0]
    most = max(keys)
    if not (heads > 0 and most > 0 and heads % most == 0):
        raise InputError(
            f"{file.path} claims {layers} layers with {heads} query and {most} key heads: {AGAIN}"
        )
    mlp = f"{kind}.feed_forward_length"
    if mlp not in file.metadata:
        raise InputError(f"{file.path} lacks {mlp} in its metadata: {AGAIN}")
    return _Sizes(width, layers, heads, keys, max(layers_of(file, mlp, blocks, 0)))


def _head_dim(file: GGUF, kind: str, architecture: FileArchitecture, sizes: _Sizes) -> int:
    """The numbers of a head, all of which are rotated unless the architecture reads how many."""
    rotated = file.get(f"{kind}.rope.dimension_count", int)
    dim = file.get(f"{kind}.attention.key_length", int, rotated or sizes.width // sizes.heads)
    if architecture.own_heads:
        return dim
    rotated = rotated or dim
    whole = rotated == dim or (architecture.partial and 0 < rotated < dim and rotated % 2 == 0)
    if not whole or dim % 2 or file.get(f"{kind}.attention.value_length", int, dim) != dim:
        raise InputError(
            f"{file.path} rotates {rotated} of {dim} dimensions per head: use a model that "
            "rotates all"
        )
    return dim


def _check_first_layer(
    file: GGUF,
    architecture: FileArchitecture,
    sizes: _Sizes,
    dim: int,
    of_experts: FileExperts | None,
) -> None:
    """Raises InputError if the first matrices of attention and MLP have other shapes."""
    width, mlp = sizes.width, sizes.mlp
    up = ("blk.0.ffn_up.weight", (2 * mlp if architecture.joins_gate else mlp, width))
    if of_experts and not of_experts.dense:
        up = ("blk.0.ffn_up_exps.weight", (of_experts.count, of_experts.inner, width))
    most = max(sizes.keys)
    queries, keys = sizes.heads * dim, most * dim
    first = f"blk.{sizes.keys.index(most)}"
    projections = [
        (f"{first}.attn_q.weight", (queries, width)),
        (f"{first}.attn_k.weight", (keys, width)),
    ]
    if architecture.joins_queries:
        projections = [(f"{first}.attn_qkv.weight", (queries + 2 * keys, width))]
    for name, wanted in (*projections, up):
        _check_shape(file, name, wanted)


def _check_shape(file: GGUF, name: str, wanted: tuple[int, ...]) -> None:
    found = tensor(file, name).shape
    if found != wanted:
        shape, right = ("x".join(map(str, x)) for x in (found, wanted))
        raise InputError(
            f"{file.path}: {name} is {shape}, but the metadata implies {right}: {AGAIN}"
        )


def check_vocabulary(file: GGUF) -> None:
    """Raises InputError if the tokenizer's tokens are not the rows of the embedding."""
    tokens = file.get("tokenizer.ggml.tokens", list)
    rows = tensor(file, TABLE).shape[0]
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


def tensor(file: GGUF, name: str) -> Stored:
    """Raises InputError if there is none of this name."""
    if name not in file.tensors:
        raise InputError(f"{file.path} lacks the tensor {name}: {AGAIN}")
    return file.tensors[name]
