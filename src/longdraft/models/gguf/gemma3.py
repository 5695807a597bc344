"""Reads what GGUF files of Gemma 3 (text) have beside those of the Llama family.

These are windows, two rotations and four norms. The file has the numbers that a norm multiplies
with; Transformers has their distances to 1.
"""

from __future__ import annotations

from typing import Any

from longdraft.errors import InputError
from longdraft.models.gguf.file import AGAIN, GGUF

KIND = "gemma3"
PERIOD = 6  # one layer in this many sees all tokens; the file does not say so
LOCAL_BASE = 10000.0  # of the rotations of the other layers; likewise
LAYERS_27B = 62  # the one size whose queries are not scaled by the dimension of a head


def options(file: GGUF, kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of Gemma3TextConfig.

    given: a Llama's, whose rotations are those of the layers that see all tokens. Raises
    InputError.
    """
    rope, dim = given["rope_parameters"], given["head_dim"]
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
    return given | {
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
        "sliding_window": window,
        "sliding_window_pattern": PERIOD,
        "query_pre_attn_scalar": width // heads if large else dim,
        "final_logit_softcapping": file.get(f"{KIND}.final_logit_softcapping", float),
    }
