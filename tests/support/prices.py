"""Prices of steps that a test states, in plain steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longdraft.core import CaptureSpec
from longdraft.drafters import Drafter
from longdraft.drafters.price import Lengths


@dataclass
class Stated:
    """A draft costs `fixed` and `each` per level; verifying costs `node` per node and `look` if
    scores are kept.

    more: multiplies the cost of a draft by the number of rows. corrects: whether steps are timed.
    """

    each: float = 0.02
    fixed: float = 0.0
    node: float = 0.01
    look: float = 0.0
    once: float = 0.0
    more: Callable[[int], float] = lambda rows: 1.0
    corrects: bool = False

    def plain(self, lengths: Lengths) -> float:
        return 1.0

    def verify(self, lengths: Lengths, nodes: int, spec: CaptureSpec) -> float:
        return 1 + self.node * (nodes - 1) + (self.look if spec.rows or spec.hidden else 0.0)

    def draft(self, drafter: Drafter, lengths: Lengths, depth: int, width: int) -> float:
        return (self.fixed + self.each * depth) * self.more(lengths.rows)

    def ready(self, passes: Any) -> float:
        return self.once

    anchored = True

    def handling(self, nodes: float) -> float:
        return 0.0

    def scale(self, part: Any, nodes: int = 1) -> float:
        return 1.0

    def observe(self, part: Any, predicted: float, measured: float, nodes: int = 1) -> None: ...
