"""What a call of a drafter's own block costs, by the bytes of its weights."""

from __future__ import annotations

from longdraft.costs.passes import Pass, PassCosts


def block_seconds(
    costs: PassCosts, rows: int, nodes: int, weights: float, itemsize: int, keys: float = 0.0, drawn: float = 0.0
) -> float:
    """Predicted seconds of one call over `nodes` nodes of each row.

    weights, keys: bytes that it reads. itemsize: bytes of a weight. drawn: as in Pass.
    """
    every = rows * nodes
    products = weights / itemsize * every
    work = Pass(rows, every, float(weights), products, float(keys), drawn=drawn, chained=True)
    return costs.seconds(work) - costs.chained + costs.block
