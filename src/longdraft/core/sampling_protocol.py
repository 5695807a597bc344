"""What a drafter, a verifier and the decoding loop ask of a sampler: `Sampler`'s, or `RowSamplers`'
of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from longdraft.core.rows import Rows
from longdraft.core.rules import Rules
from longdraft.core.tree import Tree

if TYPE_CHECKING:
    from longdraft.core.sampling import ChainDraws


class Sampling(Protocol):
    """Row b's result depends only on row b: its path, seed, position and settings. Nodes are
    [start, start+W).
    """

    def under(self, rules: Rules) -> Sampling:
        """The same with a model's rules, where it has none of its own."""
        ...

    def processed(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        """Processed logits [B,W,V], float32, of logits [B,W,V]: softmax gives the next token's
        distribution.
        """
        ...

    def scores(
        self,
        logits: Tensor,
        tree: Tree,
        rows: Rows,
        start: int = 0,
        seed: Tensor | None = None,
        tokens: Tensor | None = None,
        summed: bool = False,
    ) -> Tensor:
        """Scores [B,W,V] whose argmax is the draw: see `Sampler.scores`."""
        ...

    def law(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        """The distribution [B,W,V] that the nodes' tokens are drawn from."""
        ...

    def draw(self, logits: Tensor, tree: Tree, rows: Rows) -> Tensor:
        """The token [B,T] that each node of the tree emits."""
        ...

    def chain(self, count: int, rows: Rows) -> ChainDraws | None:
        """How a chain of `count` tokens is drawn below the roots in one call; None if it must be
        node by node.
        """
        ...

    def of_rows(self, rows: slice) -> Sampling:
        """The sampling of these rows alone."""
        ...

    def forced(self, rows: Rows) -> list[list[int]]:
        """The tokens that each row must emit next by its constraint: none, one or several."""
        ...

    def failure(self, rows: Rows, row: int) -> str:
        """Why a row's text does not meet its constraint although it has ended; empty: it does, or
        goes on.
        """
        ...

    def prepare(self, tree: Tree, rows: Rows) -> None:
        """Begin what `draw` will need of this tree, beside the pass that computes its logits."""
        ...

    @property
    def constrained(self) -> bool:
        """Whether a row has a constraint."""
        ...

    @property
    def bare(self) -> bool:
        """Whether the temperature is the only setting that changes the distribution."""
        ...

    @property
    def greedy(self) -> bool:
        """Whether every row takes its best token."""
        ...

    @property
    def lag(self) -> int:
        """How many of the newest tokens the penalty counts; 0: it is off."""
        ...
