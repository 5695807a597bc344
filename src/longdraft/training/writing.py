"""Writes text of a target for its drafters, many rows at a time.

For a device that computes a thousand rows as fast as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from longdraft.models.lm import LM
from longdraft.training.frozen import whole_rows


def by_generate(
    lm: LM,
    prompts: Sequence[Sequence[int]],
    rows: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    eos: tuple[int, ...],
) -> Iterator[list[int]]:
    """The texts that Transformers' generate writes after each prompt, in their order.

    rows: how many of them share a pass. Such text is only trained on, so nothing depends on which
    rows share a pass, unlike the text of the engine. A part of `rows` prompts is determined by them
    and the seed.
    """
    sampled = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    for begin in range(0, len(prompts), rows):
        part = prompts[begin : begin + rows]
        longest = max(map(len, part))
        padded = torch.tensor([[0] * (longest - len(p)) + list(p) for p in part], device=lm.device)
        real = [[0] * (longest - len(p)) + [1] * len(p) for p in part]
        mask = torch.tensor(real, device=lm.device)
        torch.manual_seed(seed + begin)
        with whole_rows(lm):
            out = lm.hf.generate(
                padded,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                do_sample=bool(temperature),
                eos_token_id=list(eos) or None,
                pad_token_id=eos[0] if eos else 0,
                cache_implementation="static",
                disable_compile=True,  # it would take longer than a part does
                **sampled,
            )
        for row in out[:, longest:].tolist():
            end = next((i + 1 for i, token in enumerate(row) if token in eos), len(row))
            yield row[:end]
