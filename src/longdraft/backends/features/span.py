"""Which keys a layer sees that does not have full attention: those from a first position up to the
node's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

Position = TypeVar("Position", int, Tensor)


class Span(Protocol):
    """A node at position p sees the keys of its ancestors at positions [low(p), p]; `low` never
    decreases.

    size: the maximum number of keys that a node sees.
    """

    @property
    def size(self) -> int: ...

    def low(self, position: Position) -> Position: ...


@dataclass(frozen=True)
class Window:
    """The latest `size` positions."""

    size: int

    def low(self, position: Position) -> Position:
        return position - self.size + 1


@dataclass(frozen=True)
class Chunk:
    """A span over positions in chunks of `size`: a node sees its own chunk."""

    size: int

    def low(self, position: Position) -> Position:
        return position - position % self.size
