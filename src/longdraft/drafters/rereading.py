"""States of committed tokens that a drafter lacks: those that the prefill kept, or those of tokens
read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from longdraft.core import CaptureSpec, Sequences
from longdraft.costs.counts import counts_of, pass_over
from longdraft.costs.passes import Pass
from longdraft.models.lm import LM

TOKENS_PER_PASS = 128  # tokens that are read again in one pass

# {layer: [1,m,d]} of a row's last m tokens in the cache; {}: there are none
States = dict[int, Tensor]


def kept_states(seqs: Sequences, b: int, first: int) -> tuple[int, States]:
    """The states that the prefill kept of row b's tokens from `first` on -> the first token that
    has one, and the states.

    No states unless these are all that `read_again` would give. Of recurrent layers that can be
    fewer tokens, as after a prefix that was loaded.
    """
    if states := seqs.states_from(b, first):
        return first, states
    held = min((x.shape[1] for x in seqs.prompt_states.get(b, {}).values()), default=0)
    begin = int(seqs.cache.length[b]) - held
    if held and first < begin <= seqs.cache.row(b).earliest(first):
        return begin, seqs.states_from(b, begin)
    return first, {}


def read_again(
    target: LM, seqs: Sequences, b: int, first: int, spec: CaptureSpec
) -> tuple[int, States]:
    """Run row b's committed tokens from `first` on through the target once more; its cache keeps
    its contents.

    -> the token at which the states begin, and the states. Recurrent layers cannot take back every
    token, so they may begin later than at `first`, and there may be none.
    """
    row = seqs.cache.row(b)
    n = int(seqs.cache.length[b])
    with row.reopen_from(first) as first:
        passes = target.extend_cache(seqs.tokens[b : b + 1, first:n], row, spec, TOKENS_PER_PASS)
    return first, {
        layer: torch.cat([c.states[layer] for c in passes], 1) for layer in spec.hidden if passes
    }


def reread(target: LM, seqs: Sequences, firsts: Sequence[int]) -> list[Pass]:
    """The passes of `read_again` from these tokens on, one of each row."""
    passes: list[Pass] = []
    for b, (first, length) in enumerate(zip(firsts, seqs.cache.length.tolist(), strict=True)):
        if first < length:
            for begin in range(seqs.cache.row(b).earliest(first), length, TOKENS_PER_PASS):
                work = pass_over(counts_of(target), [begin], min(TOKENS_PER_PASS, length - begin))
                passes.append(replace(work, drawn=0.0))
    return passes
