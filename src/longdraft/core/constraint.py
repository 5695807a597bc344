"""What a sampler asks of a constraint on the text that a row generates, such as a JSON schema."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from longdraft.core.rows import Rows
from longdraft.core.tree import Tree


class Constraint(Protocol):
    """The tokens that may follow a node depend on the tokens generated up to it, on its own path,
    and on nothing else.

    about: what it is, in a few words.
    """

    about: str

    def masked(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        """Logits [B,W,V] of nodes [start, start+W), with -inf for tokens that may not follow them.

        At least one token may follow, except after nodes that the constraint excludes: their logits
        are unchanged.
        """
        ...

    def forced(self, rows: Rows) -> list[list[int]]:
        """For each row, the tokens that it will emit next whatever the logits are: none, one or
        several.
        """
        ...

    def failure(self, rows: Rows, row: int) -> str:
        """Why the text of a row is not what the constraint asks for although it has ended; empty:
        it is, or goes on.

        A text that was cut at the row's limit has not ended.
        """
        ...

    def prepare(self, tree: Tree, rows: Rows) -> None:
        """Begin to compute what `masked` will be asked of this tree, beside the pass that computes
        its logits.
        """
        ...
