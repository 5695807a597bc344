"""A small hybrid target in the shape of Qwen 3.5.

Of four layers, three are gated delta nets and one attends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from longdraft.errors import InputError
from longdraft.families import QWEN3_5
from longdraft.training import tokenizer

# the function of its modeling file that runs a recurrence over a row
SCAN = "torch_chunk_gated_delta_rule"
SEGMENT = 512  # tokens, a multiple of the scan's chunks of 64
# first step sizes of the recurrences: they remember from one to thousands of tokens
SHORTEST_STEP = 0.001
LONGEST_STEP = 0.1


def build(
    vocab: int, layers: int, hidden: int, heads: int, mlp: int, positions: int, seed: int
) -> Any:
    """A new Qwen 3.5 text model with tied embeddings; recurrent keys are half as wide as values.

    Raises InputError.
    """
    if hidden % heads or (hidden // heads) % 8:
        raise InputError(
            f"--hidden is {hidden}: a hybrid needs a multiple of 8 * --heads, which is {8 * heads}"
        )
    if layers < 4:
        raise InputError(
            f"--layers is {layers}: give 4 or more, every fourth layer of a hybrid attends"
        )
    width = hidden // heads
    config = QWEN3_5.config_class(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=width // 2,
        linear_value_head_dim=width,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
        use_cache=True,
        **tokenizer.SPECIAL,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    model = QWEN3_5.causal_class(config)
    for name, bias in model.named_parameters():
        if name.endswith("dt_bias"):
            bias.data.copy_(_step_bias(len(bias)))
    return model


def _step_bias(heads: int) -> Tensor:
    """dt_bias [heads] whose softplus is log-uniform in SHORTEST_STEP..LONGEST.

    Transformers' ones would forget at once.
    """
    steps = torch.empty(heads).uniform_(math.log(SHORTEST_STEP), math.log(LONGEST_STEP)).exp()
    return steps + (-torch.expm1(-steps)).log()


@contextmanager
def in_segments() -> Iterator[None]:
    """Run the recurrences of Qwen 3.5 segment by segment and in float32.

    Other models are not affected. Autograd's cost of Transformers' loop over chunks grows with the
    square of what one call is given.
    """
    modeling = QWEN3_5.modeling
    scan = getattr(modeling, SCAN)

    def segmented(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        outputs = []
        state = initial_state
        with torch.autocast(query.device.type, enabled=False):
            segments = (x.split(SEGMENT, 1) for x in (query, key, value, g, beta))
            for part in zip(*segments, strict=True):
                output, state = scan(*part, initial_state=state, output_final_state=True, **options)
                outputs.append(output)
        return torch.cat(outputs, 1), state if output_final_state else None

    setattr(modeling, SCAN, segmented)
    try:
        yield
    finally:
        setattr(modeling, SCAN, scan)
