"""MTP layers that the target's backend computes, with the output matrix behind them or a whole
chain in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.core import ChainDraws, Tree
from longdraft.core.draft_layers import CompiledLayers, DraftKeys, DraftLayers
from longdraft.drafters.mtp.block import MtpLayers
from longdraft.drafters.mtp.ring import MtpRing


@dataclass(frozen=True)
class CompiledLayer:
    """A layer over keys of this dtype; its outputs are float32."""

    layer: DraftLayers
    made: CompiledLayers
    dtype: torch.dtype

    def run(
        self,
        ring: MtpRing,
        rows: slice,
        nodes: Tree,
        start: int,
        pair: Tensor,
        feature: Tensor,
        scored: int | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Nodes [start, size) of scratch, pairs pair [B,W] of these rows, after feature [B,W,d] ->
        output [B,W,d].

        And the logits of the last `scored` nodes; None: of none.
        """
        seen = ring.seen(rows, pair, nodes.mask[:, start:])
        keys = self._keys(ring, rows, nodes.size)
        return self.made.forward(nodes, start, pair + 1, seen, keys, feature, logits=scored)

    def chain(
        self, ring: MtpRing, roots: Tensor, output: Tensor, first: Tensor, draws: ChainDraws
    ) -> Tensor:
        """A chain below the roots [B], whose output [B,1,d] is known -> its tokens [B,count].

        first [B]: the pair of the first of them.
        """
        # the last one is not run
        rows = slice(0, len(roots))
        nodes = draws.count - 1
        pair = first[:, None] + torch.arange(nodes, device=roots.device)
        above = torch.ones(nodes, nodes, dtype=torch.bool, device=roots.device).tril()
        seen = ring.seen(rows, pair, above.expand(len(roots), -1, -1))
        keys = self._keys(ring, rows, nodes)
        return self.made.draft_chain(roots, output, first + 1, keys, draws, seen)

    def _keys(self, ring: MtpRing, rows: slice, nodes: int) -> DraftKeys:
        return ring.keys(rows, nodes, self.layer.key_heads, self.layer.dim, self.dtype)


def compiled(module: MtpLayers) -> list[CompiledLayer]:
    """The layers as the target's backend computes them; [] unless it computes all of them."""
    target = module.target
    found = list[CompiledLayer]()
    for i in range(len(module)):
        layer = module.compilable(i)
        made = None if layer is None else target.backend.compile_layers(layer)
        if layer is None or made is None:
            return []
        found.append(CompiledLayer(layer, made, target.dtype))
    return found
