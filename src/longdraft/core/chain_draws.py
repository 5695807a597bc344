"""How the tokens of a drafted chain are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from longdraft.ops import draw


@dataclass
class ChainDraws:
    """A chain draws `count` tokens at this temperature (0: argmax), with noise of seed [B] at position [B] and on."""

    count: int
    temperature: float
    seed: Tensor
    position: Tensor

    def first(self, logits: Tensor) -> Tensor:
        """The first token [B] of each row, given the logits [B,1,V] of its parent."""
        return draw(logits, self.temperature, self.seed, self.position[:, None])[:, 0]

    def after(self, n: int) -> ChainDraws:
        """The draws that are left after n tokens."""
        return ChainDraws(self.count - n, self.temperature, self.seed, self.position + n)
