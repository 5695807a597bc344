"""Arguments of configs of models with latent keys and values, from the metadata of GGUF files.

All functions raise InputError.
"""

from __future__ import annotations

from longdraft.errors import InputError
from longdraft.models.gguf.arguments import Given, without
from longdraft.models.gguf.file import AGAIN, GGUF


def latent(file: GGUF, kind: str, given: Given) -> Given:
    """DeepseekV2Config or DeepseekV3Config; their files have absorbed projections."""
    rotated = file.required(f"{kind}.rope.dimension_count", int)
    key, value = (
        file.required(f"{kind}.attention.{name}_length_mla", int) for name in ("key", "value")
    )
    return _latent(file, kind, given, rotated, key, value)


MINICPM3 = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}  # files do not have them


def minicpm(file: GGUF, kind: str, given: Given) -> Given:
    """MiniCPM3Config, of the one model that was released."""
    rotated = file.required(f"{kind}.rope.dimension_count", int)
    key = file.required(f"{kind}.attention.key_length", int)
    value = given["hidden_size"] // given["num_attention_heads"]
    return _latent(file, kind, given, rotated, key, value) | MINICPM3


def _latent(file: GGUF, kind: str, given: Given, rotated: int, key: int, value: int) -> Given:
    """key, value: numbers of a head. rotated: those of a key that are rotated."""
    rank = file.required(f"{kind}.attention.kv_lora_rank", int)
    queries = file.get(f"{kind}.attention.q_lora_rank", int)
    if not (0 < rotated < key and rotated % 2 == 0 and rank > 0 and value > 0):
        raise InputError(
            f"{file.path} claims keys of {key} numbers, {rotated} of them rotated, from {rank} "
            f"numbers: {AGAIN}"
        )
    return without(given, "head_dim") | {
        "num_key_value_heads": given["num_attention_heads"],
        "kv_lora_rank": rank,
        "q_lora_rank": queries or None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
    }
