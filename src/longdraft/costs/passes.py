"""The counts of a forward pass, and the terms that turn them into seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Pass:
    """Counts of one forward pass, all rows together; nothing here depends on a machine.

    rows, nodes: of the batch, and of all rows together. weights: bytes read. products:
    multiply-adds of the linear layers, all nodes. keys: bytes of keys, values and recurrent states.
    pairs: multiply-adds of attention (nodes x slots x query heads x (key size + value size), summed
    over layers). scored: attention scores that are captured (slots x layers x kept nodes). chosen:
    slots among which a view is chosen anew, times layers. drawn: logits from which tokens are drawn
    (nodes x vocabulary). chained: a later pass within one call that drafts a whole chain. layers:
    of the model that runs, as a multiple of those of the model whose costs these are.
    """

    rows: int = 1
    nodes: int = 1
    weights: float = 0.0
    products: float = 0.0
    keys: float = 0.0
    pairs: float = 0.0
    scored: float = 0.0
    chosen: float = 0.0
    drawn: float = 0.0
    chained: bool = False
    layers: float = 1.0


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds per unit of each count, none of them negative.

    call: each pass, or `chained` if it is a later one of a native chain, which is the fixed cost of
    the layers alone. read, key: a byte of
    weights, of keys. multiply, attend: a multiply-add of the linear layers, of attention. row,
    node, score, choose, draw: as counted. choice: each pass by which a view is chosen anew, beside
    `choose` for each slot.
    Work outside of passes: step: the engine's part of a decoding step. tree: a node that Python
    adds to a tree and verifies. block: a call of a drafter's own block that torch computes, beside
    the bytes it reads, and module: a byte of weights in it.
    """

    call: float = 0.0
    chained: float = 0.0
    read: float = 0.0
    multiply: float = 0.0
    key: float = 0.0
    attend: float = 0.0
    row: float = 0.0
    node: float = 0.0
    score: float = 0.0
    choose: float = 0.0
    draw: float = 0.0
    step: float = 0.0
    tree: float = 0.0
    block: float = 0.0
    module: float = 0.0
    choice: float = 0.0

    def seconds(self, p: Pass) -> float:
        """Predicted seconds of a pass, without `step` and `tree`.

        Reading and computing overlap in part, in the linear layers and in attention.
        """
        fixed = self.chained if p.chained else self.call
        if p.layers != 1.0:
            fixed += (p.layers - 1.0) * min(self.chained, fixed)
        return (
            fixed
            + overlapped(p.weights * self.read, p.products * self.multiply)
            + overlapped(p.keys * self.key, p.pairs * self.attend)
            + p.rows * self.row
            + p.nodes * self.node
            + p.scored * self.score
            + (p.chosen * self.choose + self.choice if p.chosen else 0.0)
            + p.drawn * self.draw
        )


def overlapped(a: float, b: float) -> float:
    """Seconds of two kinds of work that overlap in part: the longer one, up to 1.59 times that
    where they are equal.

    The power 1.5 lies between 1 (one after the other) and infinity (the longer one alone); of 1 to
    8 it fits passes of SmolLM2 as well as any.
    """
    return (a * sqrt(a) + b * sqrt(b)) ** (2 / 3)
