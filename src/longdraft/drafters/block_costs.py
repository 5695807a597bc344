"""What a call of a drafter's own block costs, by the bytes of its weights."""

from __future__ import annotations

from dataclasses import replace

from longdraft.costs.passes import Pass, PassCosts

COMPILED = 8  # a call of a native block takes about this share of one that Python makes of torch's parts


def block_seconds(
    costs: PassCosts,
    rows: int,
    nodes: int,
    weights: float,
    itemsize: int,
    keys: float = 0.0,
    drawn: float = 0.0,
    compiled: bool = False,
) -> float:
    """Predicted seconds of one call over `nodes` nodes of each row.

    weights, keys: bytes that it reads. itemsize: bytes of a weight. drawn: as in Pass. compiled: whether native kernels
    compute it, not torch.
    """
    every = rows * nodes
    products = weights / itemsize * every
    work = Pass(rows, every, float(weights), products, float(keys), drawn=drawn, chained=True)
    if compiled:
        return replace(costs, chained=costs.block / COMPILED).seconds(work)
    return replace(costs, chained=costs.block, read=costs.module).seconds(work)
