"""Reads what GGUF files of Gemma 3 (text) have beside those of the Llama family.

These are windows, two rotations and four norms. The file has the numbers that a norm multiplies
with; Transformers has their distances to 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF

KIND = "gemma3"
# The layers' norms that have other names than in a Llama.
NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PERIOD = 6  # one layer in this many sees all tokens; the file does not say so
LOCAL_BASE = 10000.0  # of the rotations of the other layers; likewise
LAYERS_27B = 62  # the one size whose queries are not scaled by the dimension of a head


def is_one(file: GGUF) -> bool:
    return file.required("general.architecture", str) == KIND


def options(file: GGUF, rope: dict[str, Any], dim: int) -> dict[str, Any]:
    """Arguments of Gemma3TextConfig.

    rope: rotations of the layers that see all tokens. Raises InputError.
    """
    window = file.get(f"{KIND}.attention.sliding_window", int)
    if not window or window < 1:
        raise InputError(f"{file.path} has no sliding window, which every Gemma 3 has: {AGAIN}")
    period = file.get(f"{KIND}.attention.sliding_window_pattern", int, PERIOD)
    if period != PERIOD:
        raise InputError(
            f"{file.path} repeats its layers every {period}, and Gemma 3 every {PERIOD}: "
            "use safetensors"
        )
    if rope["rope_type"] not in ("default", "linear"):
        raise InputError(
            f"{file.path} has the rope scaling {rope['rope_type']}, and Gemma 3 has none "
            f"or linear: {AGAIN}"
        )
    width, heads = (
        file.required(f"{KIND}.{name}", int)
        for name in ("embedding_length", "attention.head_count")
    )
    large = file.required(f"{KIND}.block_count", int) == LAYERS_27B
    local = {
        "rope_type": "default",
        "rope_theta": file.get(f"{KIND}.rope.freq_base_swa", float, LOCAL_BASE),
    }
    if not local["rope_theta"] > 0:
        raise InputError(f"{file.path} has rotary positions of base {local['rope_theta']}: {AGAIN}")
    return {
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
        "sliding_window": window,
        "sliding_window_pattern": PERIOD,
        "query_pre_attn_scalar": width // heads if large else dim,
        "final_logit_softcapping": file.get(f"{KIND}.final_logit_softcapping", float),
    }


def scale_embedding(hf: Any) -> None:
    """Make the buffer that scales embeddings.

    It has no values in a model that was built without memory.
    """
    table = hf.model.embed_tokens
    table.embed_scale = nn.Buffer(torch.tensor(table.scalar_embed_scale), persistent=False)
