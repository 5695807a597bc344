"""What a call of a drafter's own block costs, by the bytes of its weights."""

from __future__ import annotations

from dataclasses import replace

from longdraft.costs.passes import Pass, PassCosts

AROUND = 3  # the Python around a native draft takes so many times the calls of torch's that a block consists of
COMPILED = 8  # a call of a native block takes about this share of one that Python makes of torch's parts
PACKED = 17 / 32  # bytes that native blocks read of a weight in bfloat16: codes of 8 bits, and a scale for 32 of them


def block_seconds(
    costs: PassCosts,
    rows: int,
    nodes: int,
    weights: float,
    itemsize: int,
    keys: float = 0.0,
    drawn: float = 0.0,
    compiled: bool = False,
    calls: int = 1,
) -> float:
    """Predicted seconds of one call over `nodes` nodes of each row.

    weights, keys: bytes that it reads. itemsize: bytes of a weight. drawn: as in Pass. compiled: whether native kernels
    compute it, not torch. calls: 0 for work within a call that is counted already.
    """
    every = rows * nodes
    products = weights / itemsize * every
    read = weights * PACKED if compiled and itemsize == 2 else weights
    counted = (rows, every) if calls else (0, 0)
    work = Pass(*counted, float(read), products, float(keys), drawn=drawn, chained=True)
    if compiled:
        return replace(costs, chained=calls * costs.block / COMPILED).seconds(work)
    return replace(costs, chained=calls * costs.block, read=costs.module).seconds(work)
