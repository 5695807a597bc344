"""LongSpec's block in one native call, over the cache of a target whose step is native (ops/native/step.cpp)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdraft.backends.native.step import NativeStep, Pins, sized
from longdraft.core import ChainDraws, KVCache, Tree, is_indexable
from longdraft.ops import native

RING, CROSS = native.LayerKind.RING, native.LayerKind.CROSS


class NativeBlock:
    """Computes a Glide (block: drafters/glide/block.py), with activations in float32, beside its target's step."""

    def __init__(self, step: NativeStep, block: Any):
        self.step, self.block, self._pins = step, block, Pins()
        whole, pins, none = self.step.model, self._pins, native.Linear()

        def layer(kind: int, q: Any, k: Any, v: Any, o: Any, mlp: list[Any], norm1: Any, norm2: Any) -> native.Layer:
            linears = [pins.linear(p) if p is not None else none for p in (q, k, v, o, *mlp)]
            norms = [None if n is None else pins.float(n.weight) for n in (norm1, norm2)]
            return native.Layer(*linears, *norms, None, None, 0, kind)

        mlp = [block.gate_proj, block.up_proj, block.down_proj]
        own = layer(RING, block.q_proj, block.k_proj, block.v_proj, block.o_proj, [None] * 3, block.self_norm, None)
        cross = [block.cross_q_proj, None, None, block.cross_o_proj, mlp, block.cross_norm, block.mlp_norm]
        self.layers = (native.Layer * 2)(own, layer(CROSS, *cross))
        head, tokens = whole.head, None
        if block.vocabulary is not None:
            head, tokens = pins.linear(block.vocabulary.linear(block.host.target)), pins.raw(block.vocabulary.tokens)
        self.model = native.Model(
            2, whole.width, block.heads, block.host.keys, block.heads // block.host.keys, block.host.dim,
            block.gate_proj.out_features, whole.vocab, whole.frequencies, block.self_norm.eps, block.host.dim**-0.5,
            whole.rope_scale, whole.inv_freq, whole.embed, head, tokens, whole.norm if block.with_norm else None,
            self.layers,
        )  # fmt: skip

    def supports(self, view: Any) -> bool:
        """Whether the block can be computed under this view of the target's cache."""
        return is_indexable(view)

    def forward(self, tree: Tree, start: int, position: Tensor, ring: Any, cache: KVCache, view: Any) -> Tensor:
        """Nodes [start, size) at position [B,W] -> logits [B,W,V]; their keys and values stay behind the ring."""
        step = self.step
        B, W = position.shape
        seen = ring.visible(tree, start).contiguous()
        arrays = [x.contiguous() for x in (tree.tokens[:, start:], tree.depth, cache.length, position)]
        sized([*arrays, seen], (B, W), (B, tree.size), (B,), (B, W), (B, W, ring.window + tree.size))
        logits = torch.empty(B, W, step.vocab)
        p = native.Pass(B, W, start, *[x.data_ptr() for x in arrays])
        self._keys(p, tree.size, ring, cache, view)
        p.logits, p.ring_mask = logits.data_ptr(), seen.data_ptr()
        with step.lock:
            step.lib.longdraft_step(self.model, p, step.work, step.half)
        return logits

    def draft_chain(self, tree: Tree, ring: Any, cache: KVCache, view: Any, draws: ChainDraws) -> Tensor:
        """A chain below the root [B,count]; the keys of all but its last token stay behind the ring."""
        root = tree.tokens[:, :1].contiguous()
        seen = ring.visible(Tree.chain(root.expand(-1, draws.count)), 0).contiguous()
        B, count = len(root), draws.count
        sized([root, cache.length, seen], (B, 1), (B,), (B, count, ring.window + count))
        p = native.Pass(B, 1, 0, root.data_ptr(), None, cache.length.data_ptr())
        self._keys(p, count, ring, cache, view)
        p.ring_mask = seen.data_ptr()
        drawn = self.step.draw_chain(self.model, p, draws)
        ring.drafted = torch.cat([root, drawn[:, :-1]], 1)
        return drawn

    def _keys(self, p: native.Pass, nodes: int, ring: Any, cache: KVCache, view: Any) -> None:
        """Fill in where keys and values are: the ring's, with room for `nodes` nodes, and the target's."""
        step, layer = self.step, self.block.host.layer
        ring.room(nodes)
        if {ring.k.dtype, ring.v.dtype} != {step.dtype} or ring.v.shape != ring.k.shape or len(ring.k) != p.rows:
            raise ValueError(
                f"a ring of {tuple(ring.k.shape)} in {ring.k.dtype} is not one of {p.rows} rows in {step.dtype}"
            )
        own = (ring.k.data_ptr(), ring.v.data_ptr(), ring.k.shape[2], 0)
        p.cache, p.ring = (native.LayerCache * 2)(own, step.places(cache, 0)[layer]), ring.window
        if view is not None:
            sized([view.tail_start], (p.rows,))
            nothing = [native.Selected()] * p.rows
            indices = nothing + step.selected(view, cache, [layer], p.rows)
            p.tail_start, p.selected = view.tail_start.data_ptr(), (native.Selected * (2 * p.rows))(*indices)


def block_fits(step: NativeStep, block: Any) -> bool:
    """Whether NativeBlock computes this block: of the step's dtype, and over a layer that sees every key."""
    host = block.host
    if host.window is not None or not host.rotated or block.dtype != step.dtype:
        return False
    return host.value_dim == host.dim and block.gate_proj.out_features % 16 == 0
