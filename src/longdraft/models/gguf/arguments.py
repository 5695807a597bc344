"""Arguments of configs, from the metadata of GGUF files.

Each function gets a file, its architecture and the arguments that a Llama's config would have, and
gives those of its own config. All raise InputError.
"""

from __future__ import annotations

from typing import Any

from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF
from longdraft.models.gguf.rope import original_positions

Given = dict[str, Any]


def with_biases(file: GGUF, kind: str, given: Given) -> Given:
    """Queries, keys and values have biases if the file has them."""
    return given | {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def unchanged(file: GGUF, kind: str, given: Given) -> Given:
    return given


def without(given: Given, *names: str) -> Given:
    return {name: value for name, value in given.items() if name not in names}


def partial(file: GGUF, kind: str, given: Given, default: int | None = None) -> Given:
    """With the share of a head's numbers that are rotated; default: these if the file is silent."""
    dim = given["head_dim"]
    rotated = file.get(f"{kind}.rope.dimension_count", int, default or dim)
    rope = given["rope_parameters"] | {"partial_rotary_factor": rotated / dim}
    return given | {"rope_parameters": rope}


def scale(file: GGUF, key: str, default: float) -> float:
    """A number of the metadata that multiplies; 0 stands for none. Raises InputError."""
    value = file.get(key, float, 0.0) or default
    if value <= 0:
        raise InputError(f"{file.path}: {key} is {value}: {AGAIN}")
    return value


def _window(file: GGUF, kind: str) -> int:
    window = file.get(f"{kind}.attention.sliding_window", int)
    if not window or window < 1:
        raise InputError(f"{file.path} has no sliding window, which every {kind} has: {AGAIN}")
    return window


def _layer_types(file: GGUF, kind: str, layers: int, period: int) -> list[str]:
    """Which layers have a window: as the file says, or all but each `period`-th."""
    key = f"{kind}.attention.sliding_window_pattern"
    pattern: Any = file.metadata.get(key, period)
    if isinstance(pattern, int):  # a bool, too: True is a period of 1
        slides = [bool(pattern and (i + 1) % pattern) for i in range(layers)]
    else:
        slides = [bool(x) for x in pattern]
    if len(slides) != layers:
        raise InputError(
            f"{file.path}: {key} has {len(slides)} entries for {layers} layers: {AGAIN}"
        )
    return ["sliding_attention" if x else "full_attention" for x in slides]


def granite(file: GGUF, kind: str, given: Given) -> Given:
    return with_biases(file, kind, given) | {
        "attention_multiplier": scale(file, f"{kind}.attention.scale", given["head_dim"] ** -0.5),
        "embedding_multiplier": scale(file, f"{kind}.embedding_scale", 1.0),
        "residual_multiplier": scale(file, f"{kind}.residual_scale", 1.0),
        "logits_scaling": scale(file, f"{kind}.logit_scale", 1.0),
    }


def exaone(file: GGUF, kind: str, given: Given) -> Given:
    layers = given["num_hidden_layers"]
    if not file.get(f"{kind}.attention.sliding_window", int):
        return given | {"sliding_window": None, "layer_types": ["full_attention"] * layers}
    return given | {
        "sliding_window": _window(file, kind),
        "layer_types": _layer_types(file, kind, layers, 4),
    }


LARGEST_GEMMA2 = 46  # layers of the one size whose queries are not scaled by a head's numbers


def gemma2(file: GGUF, kind: str, given: Given) -> Given:
    large = given["num_hidden_layers"] == LARGEST_GEMMA2
    dim = given["hidden_size"] // given["num_attention_heads"] if large else given["head_dim"]
    return given | {
        "sliding_window": _window(file, kind),
        "query_pre_attn_scalar": dim,
        "attn_logit_softcapping": scale(file, f"{kind}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": scale(file, f"{kind}.final_logit_softcapping", 30.0),
    }


def glm(file: GGUF, kind: str, given: Given) -> Given:
    return with_biases(file, kind, partial(file, kind, given, given["head_dim"] // 2))


def seed(file: GGUF, kind: str, given: Given) -> Given:
    return with_biases(file, kind, given) | {
        "attention_out_bias": "blk.0.attn_output.bias" in file.tensors
    }


def ernie(file: GGUF, kind: str, given: Given) -> Given:
    return given | {"use_bias": "blk.0.attn_q.bias" in file.tensors}


def _with_layer_norms(file: GGUF, kind: str, given: Given) -> Given:
    """Arguments of a config whose norms subtract the mean, without their epsilon."""
    return without(given, "rms_norm_eps")


def layer_eps(file: GGUF, kind: str) -> float:
    """The epsilon of norms that subtract the mean."""
    return scale(file, f"{kind}.attention.layer_norm_epsilon", 1e-5)


def cohere(file: GGUF, kind: str, given: Given) -> Given:
    made = _with_layer_norms(file, kind, given) | {
        "layer_norm_eps": layer_eps(file, kind),
        "logit_scale": scale(file, f"{kind}.logit_scale", 1.0),
    }
    if kind != "cohere2":
        return made | {"use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors}
    types = _layer_types(file, kind, given["num_hidden_layers"], 4)
    return made | {"sliding_window": _window(file, kind), "layer_types": types}


def starcoder(file: GGUF, kind: str, given: Given) -> Given:
    return _with_layer_norms(file, kind, given) | {
        "norm_epsilon": layer_eps(file, kind),
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "sliding_window": file.get(f"{kind}.attention.sliding_window", int) or None,
    }


def phi(file: GGUF, kind: str, given: Given) -> Given:
    made = partial(file, kind, given)
    made["sliding_window"] = file.get(f"{kind}.attention.sliding_window", int) or None
    if original := given["rope_parameters"].get("original_max_position_embeddings"):
        made["original_max_position_embeddings"] = original
    return made


def oss(file: GGUF, kind: str, given: Given) -> Given:
    rope = given["rope_parameters"]
    if rope["rope_type"] == "yarn":  # its makers' code does not round where the ramp begins
        rope = rope | {"truncate": False}
    return given | {"rope_parameters": rope}


def olmo(file: GGUF, kind: str, given: Given) -> Given:
    """Olmo2Config, or with windows Olmo3Config, whose layers with a window have plain rotations."""
    made = with_biases(file, kind, given)
    if not has_windows(file, kind):
        return made
    rope = given["rope_parameters"]
    plain = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return made | {
        "sliding_window": _window(file, kind),
        "layer_types": _layer_types(file, kind, given["num_hidden_layers"], 4),
        "rope_parameters": {"full_attention": rope, "sliding_attention": plain},
    }


def olmo_family(file: GGUF, kind: str) -> str:
    return "olmo3" if has_windows(file, kind) else "olmo2"


def has_windows(file: GGUF, kind: str) -> bool:
    return bool(file.get(f"{kind}.attention.sliding_window", int))


def nemotron(file: GGUF, kind: str, given: Given) -> Given:
    """NemotronConfig, whose norms subtract the mean."""
    return partial(file, kind, _with_layer_norms(file, kind, given)) | {
        "norm_eps": layer_eps(file, kind),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def ministral(file: GGUF, kind: str, given: Given) -> Given:
    """Ministral3Config: queries grow with their position, beyond the original ones."""
    rope = given["rope_parameters"]
    beta = file.get(f"{kind}.attention.temperature_scale", float, 0.0)
    # it counts without scaling, too
    original = original_positions(file, kind, given["max_position_embeddings"])
    grown = {"llama_4_scaling_beta": beta, "original_max_position_embeddings": original}
    return given | {"rope_parameters": rope | grown}
