"""The protocol that drafters, verifiers and the decoding loop use for sampling.

`Sampler` implements it, and `RowSamplers`, whose rows differ.
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
    """Sampling of a batch: row b's result depends only on row b.

    That is on its path, seed, position and settings. Nodes are [start, start+W).
    """

    def under(self, rules: Rules) -> Sampling:
        """The same with a model's rules, where it has none of its own."""
        ...

    def processed(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        """Processed logits [B,W,V], float32, of logits [B,W,V].

        Their softmax is the distribution of the next token.
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
        """The draws of a chain of `count` tokens below the roots; None: draw node by node."""
        ...

    def of_rows(self, rows: slice) -> Sampling:
        """The sampling of these rows alone."""
        ...

    def forced(self, rows: Rows) -> list[list[int]]:
        """The tokens that each row must emit next by its constraint: none, one or several."""
        ...

    def failure(self, rows: Rows, row: int) -> str:
        """The reason why a row's ended text does not satisfy its constraint.

        Empty if it does, or if the text goes on.
        """
        ...

    def prepare(self, tree: Tree, rows: Rows) -> None:
        """Begin computing what `draw` needs for this tree, while the pass computes its logits."""
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
        """The number of newest tokens that the penalty counts; 0: no penalty."""
        ...
