"""LongSpec's block in one native call, over the cache of a target whose step is native
(ops/native/step.cpp).
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from longdraft.backends.glide_block import Block, BlockRing, CompiledBlock
from longdraft.backends.native.step import NativeStep, Pins, sized
from longdraft.core import ChainDraws, IndexView, KVCache, KVView, Tree, is_indexable
from longdraft.ops import native


class NativeBlock(CompiledBlock):
    """Computes a Glide (block: drafters/glide/block.py), with activations in float32, beside its
    target's step.
    """

    def __init__(self, step: NativeStep, block: Block):
        self.step = step
        self.block = block
        self._pins = Pins()
        whole = self.step.model
        pins = self._pins
        host = block.host
        own = native.Layer(
            q=pins.drafting(block.q_proj),
            k=pins.drafting(block.k_proj),
            v=pins.drafting(block.v_proj),
            o=pins.drafting(block.o_proj),
            input_norm=pins.norm(block.self_norm),
            kind=native.LayerKind.RING,
        )
        cross = native.Layer(
            q=pins.drafting(block.cross_q_proj),
            o=pins.drafting(block.cross_o_proj),
            gate=pins.drafting(block.gate_proj),
            up=pins.drafting(block.up_proj),
            down=pins.drafting(block.down_proj),
            input_norm=pins.norm(block.cross_norm),
            mlp_norm=pins.norm(block.mlp_norm),
            kind=native.LayerKind.CROSS,
        )
        head = whole.head
        tokens = None
        if block.vocabulary is not None:
            head = pins.drafting(block.vocabulary.linear(host.target))
            tokens = pins.raw(block.vocabulary.tokens)
        self.model = native.Model(
            layers=2,
            width=whole.width,
            heads=block.heads,
            key_heads=host.keys,
            groups=block.heads // host.keys,
            head_dim=host.dim,
            mlp=block.gate_proj.out_features,
            vocab=whole.vocab,
            frequencies=whole.frequencies,
            eps=block.self_norm.eps,
            scale=host.dim**-0.5,
            rope_scale=whole.rope_scale,
            inv_freq=whole.inv_freq,
            embed=whole.embed,
            head=head,
            head_tokens=tokens,
            norm=whole.norm if block.with_norm else None,
            layer=(native.Layer * 2)(own, cross),
        )

    def supports(self, view: KVView | None) -> TypeGuard[IndexView | None]:
        """Whether the block can be computed under this view of the target's cache."""
        return is_indexable(view)

    def forward(
        self,
        tree: Tree,
        start: int,
        position: Tensor,
        ring: BlockRing,
        cache: KVCache,
        view: IndexView | None,
    ) -> Tensor:
        """Nodes [start, size) at position [B,W] -> logits [B,W,V]; their keys and values stay
        behind the ring.
        """
        step = self.step
        B, W = position.shape
        seen = ring.visible(tree, start).contiguous()
        tokens = tree.tokens[:, start:].contiguous()
        position = position.contiguous()
        depth = tree.depth.contiguous()
        length = cache.length.contiguous()
        keys = ring.window + tree.size
        sized(
            [tokens, depth, length, position, seen],
            (B, W),
            (B, tree.size),
            (B,),
            (B, W),
            (B, W, keys),
        )
        logits = torch.empty(B, W, step.vocab)
        p = native.Pass(
            rows=B, nodes=W, start=start, tokens=tokens.data_ptr(), depth=depth.data_ptr(),
            length=length.data_ptr(),
            position=position.data_ptr(),
        )  # fmt: skip
        self._keys(p, tree.size, ring, cache, view)
        p.logits = logits.data_ptr()
        p.ring_mask = seen.data_ptr()
        with step.lock:
            step.lib.longdraft_step(self.model, p, step.work, step.half)
        return logits

    def draft_chain(
        self, tree: Tree, ring: BlockRing, cache: KVCache, view: IndexView | None, draws: ChainDraws
    ) -> Tensor:
        """A chain below the root [B,count]; the keys of all but its last token stay behind the
        ring.
        """
        root = tree.tokens[:, :1].contiguous()
        seen = ring.visible(Tree.chain(root.expand(-1, draws.count)), 0).contiguous()
        B = len(root)
        count = draws.count
        sized([root, cache.length, seen], (B, 1), (B,), (B, count, ring.window + count))
        p = native.Pass(
            rows=B, nodes=1, start=0, tokens=root.data_ptr(), length=cache.length.data_ptr()
        )
        self._keys(p, count, ring, cache, view)
        p.ring_mask = seen.data_ptr()
        drawn = self.step.draw_chain(self.model, p, draws)
        ring.drafted = torch.cat([root, drawn[:, :-1]], 1)
        return drawn

    def _keys(
        self, p: native.Pass, nodes: int, ring: BlockRing, cache: KVCache, view: IndexView | None
    ) -> None:
        """Fill in where keys and values are: the ring's, with room for `nodes` nodes, and the
        target's.
        """
        step = self.step
        layer = self.block.host.layer
        ring.room(nodes)
        if (
            {ring.k.dtype, ring.v.dtype} != {step.dtype}
            or ring.v.shape != ring.k.shape
            or len(ring.k) != p.rows
        ):
            raise ValueError(
                f"a ring of {tuple(ring.k.shape)} in {ring.k.dtype} is not one of {p.rows} "
                f"rows in {step.dtype}"
            )
        own = native.LayerCache(
            k=ring.k.data_ptr(), v=ring.v.data_ptr(), slots=ring.k.shape[2], bits=0
        )
        p.cache = (native.LayerCache * 2)(own, step.places(cache, 0)[layer])
        p.ring = ring.window
        if view is not None:
            sized([view.tail_start], (p.rows,))
            nothing = [native.Selected()] * p.rows
            indices = nothing + step.selected(view, cache, [layer], p.rows)
            p.tail_start = view.tail_start.data_ptr()
            p.selected = (native.Selected * (2 * p.rows))(*indices)


def block_fits(step: NativeStep, block: Block) -> bool:
    """Whether NativeBlock computes this block: of the step's dtype, and over a layer that sees
    every key.
    """
    host = block.host
    if host.window is not None or not host.rotated or block.dtype != step.dtype:
        return False
    return host.value_dim == host.dim and block.gate_proj.out_features % 16 == 0
