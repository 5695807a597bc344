"""What it costs that a drafter's target reads tokens again whose states it did not keep."""

from __future__ import annotations

from dataclasses import replace

from longdraft.core import Sequences
from longdraft.costs.counts import counts_of, pass_over
from longdraft.costs.passes import PassCosts
from longdraft.models.lm import LM


def reread_seconds(costs: PassCosts, target: LM, seqs: Sequences, lacking: list[int], chunk: int) -> float:
    """Predicted seconds of passes over the last `lacking` tokens of each row, `chunk` at a time."""
    seconds = 0.0
    for n, length in zip(lacking, seqs.cache.length.tolist(), strict=True):
        for left in range(n, 0, -chunk):
            work = pass_over(counts_of(target), [length - left], min(chunk, left))
            seconds += costs.seconds(replace(work, drawn=0.0))
    return seconds
