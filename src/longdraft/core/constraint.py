"""The protocol of a constraint on the text that a row generates, such as a JSON schema."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from longdraft.core.rows import Rows
from longdraft.core.tree import Tree


class Constraint(Protocol):
    """Limits the tokens that may follow a node.

    They depend on the tokens generated up to the node, on its own path, and on nothing else.
    about: the constraint in a few words.
    """

    about: str

    def masked(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        """Logits [B,W,V] of nodes [start, start+W), with -inf for tokens that may not follow them.

        At least one token may follow, except after nodes that the constraint excludes: their logits
        are unchanged.
        """
        ...

    def forced(self, rows: Rows) -> list[list[int]]:
        """For each row, the tokens that it must emit next: none, one or several.

        They are the same for any logits.
        """
        ...

    def failure(self, rows: Rows, row: int) -> str:
        """The reason why a row's ended text does not satisfy the constraint, or an empty string.

        It is empty if the text satisfies the constraint or goes on. A text that was cut at the
        row's limit has not ended.
        """
        ...

    def prepare(self, tree: Tree, rows: Rows) -> None:
        """Begin computing what `masked` needs for this tree, while the pass computes its logits."""
        ...
