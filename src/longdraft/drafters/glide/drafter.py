"""LongSpec: a block of one layer drafts from the target's KV cache, with its own cache of fixed
size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from longdraft.core import (
    Captures,
    CaptureSpec,
    ChainDraws,
    DraftLimits,
    IndexView,
    KVCache,
    KVView,
    Sequences,
    Tree,
    Verdict,
    is_indexable,
    without,
)
from longdraft.core.draft_layers import CompiledLayers, DraftKeys
from longdraft.drafters.beam_search import beam
from longdraft.drafters.block_costs import Read, weights_read
from longdraft.drafters.glide.block import Glide
from longdraft.drafters.glide.price import GlidePrice, slot_bytes, slots_seen
from longdraft.drafters.marginals import BestPaths
from longdraft.drafters.under_view import UnderView
from longdraft.drafters.vocabulary import known_count
from longdraft.models.memory_traffic import size_of
from longdraft.ops import Segment, attend
from longdraft.views.base import Full, Policy


class GlideRing:
    """Slot p % window holds the self-attention key and value of position p, for the `window`
    positions before the root.

    A key and value depend only on token and position, and every slot records the pair that it
    holds. After any commits or rollbacks, outdated slots are found by comparison and computed
    again. Slots after the ring hold the nodes of a tree. Memory does not depend on the context
    length.
    """

    def __init__(self, block: Glide, rows: int, window: int):
        host = block.host
        self.block = block
        self.window = window
        shape = (rows, host.keys, window, host.dim)
        self.k, self.v = (
            torch.zeros(shape, dtype=block.dtype, device=host.target.device) for _ in range(2)
        )
        self._slots = torch.arange(window, device=host.target.device)
        self._owner = torch.full((rows, window), -1, device=host.target.device)
        self.drafted: Tensor | None = (
            None  # tokens [B,N] of the tree's nodes whose keys are stored after the ring
        )

    def enter(self) -> None:
        """Add an empty row."""
        self.k, self.v = (torch.cat([x, x.new_zeros(1, *x.shape[1:])]) for x in (self.k, self.v))
        self._owner = torch.cat([self._owner, self._owner.new_full((1, self.window), -1)])

    def leave(self, row: int) -> None:
        self.k, self.v, self._owner = (without(x, row) for x in (self.k, self.v, self._owner))
        self.drafted = None

    def refresh(self, tokens: Tensor, root: Tensor) -> None:
        """Make the ring hold the keys of the tokens [B,N] before position root [B]."""
        self.root = root
        # below 0: empty
        self.position = root[:, None] - 1 - (root[:, None] - 1 - self._slots) % self.window
        mine = tokens.gather(1, self.position.clamp(min=0))
        owner = self.position * self.block.host.target.vocab + mine
        rows, slots = ((owner != self._owner) & (self.position >= 0)).nonzero(as_tuple=True)
        if len(rows):
            k, v = self.block.keys_of(mine[rows, slots][None], self.position[rows, slots][None])
            self.k[rows, :, slots], self.v[rows, :, slots] = (
                k[0].transpose(0, 1),
                v[0].transpose(0, 1),
            )
            self._owner = owner

    def keep(self, verdict: Verdict) -> None:
        """Move the keys of accepted nodes into the ring, so that they need not be computed
        again.
        """
        if self.drafted is None:
            return
        steps = torch.arange(verdict.path.shape[1], device=self._slots.device)
        mine = (steps < verdict.count[:, None]) & (verdict.path < self.drafted.shape[1])
        rows, depth = mine.nonzero(as_tuple=True)
        node = verdict.path[rows, depth]
        position = self.root[rows] + depth
        slots = position % self.window
        for x in (self.k, self.v):
            x[rows, :, slots] = x[rows, :, self.window + node]
        self._owner[rows, slots] = (
            position * self.block.host.target.vocab + self.drafted[rows, node]
        )
        self.drafted = None

    def visible(self, tree: Tree, start: int) -> Tensor:
        """[B,W,window+size]: which slots nodes [start, size) attend to, at most `window` positions
        back.
        """
        low = (self.root[:, None] + tree.depth[:, start:] - self.window).clamp(min=0)
        return torch.cat([self.position[:, None] >= low[..., None], tree.mask[:, start:]], 2)

    def room(self, nodes: int) -> None:
        """Make room after the ring for this many nodes of a tree."""
        missing = self.window + nodes - self.k.shape[2]
        if missing > 0:
            self.k, self.v = (F.pad(x, (0, 0, 0, missing)) for x in (self.k, self.v))

    def keys(self, nodes: int, cache: KVCache, view: IndexView | None) -> DraftKeys:
        """The keys of a pass, with room for this many nodes of a tree, and the target's keys
        under this view of its cache.
        """
        self.room(nodes)
        k = self.k
        v = self.v
        if {k.dtype, v.dtype} != {self.block.dtype} or v.shape != k.shape:
            raise ValueError(f"a ring of {tuple(k.shape)} in {k.dtype} is not one of its block")
        if len(k) != len(cache.length):
            raise ValueError(f"a ring of {len(k)} rows is not one of {len(cache.length)} rows")
        places = [(k.data_ptr(), v.data_ptr(), k.shape[2])]
        return DraftKeys(places, cache.length, ring=self.window, target=cache, view=view)

    def attend(self, tree: Tree, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B,H,W,D], k, v [B,K,W,D] of nodes [start, size) -> [B,W,H,D]; k and v are stored after
        the ring.
        """
        first = self.window + start
        end = self.window + tree.size
        self.room(tree.size)
        self.k[:, :, first:end] = k
        self.v[:, :, first:end] = v
        rows = self.visible(tree, start)
        scale = self.block.host.dim**-0.5
        keys = zip(q, self.k[:, :, :end], self.v[:, :, :end], rows, strict=True)
        return torch.stack(
            [attend(query, [Segment(k, v, seen)], scale).out for query, k, v, seen in keys]
        )


class GlideDrafter(UnderView):
    """Draft nodes attend only to the target's keys of verified tokens: to all of them, or to the
    policy's view.

    widths: nodes per depth, by cumulative score (LongSpec sec. 3.3). window 0: the block's own.
    nodes above 0: it drafts a chain as deep as `widths`, and the tree has that many of the
    likeliest paths of the chain's distributions.
    """

    name = "block"
    usual: tuple[float, float] = (0.4, 0.3)

    def __init__(
        self,
        block: Glide,
        widths: Sequence[int],
        policy: Policy | None = None,
        window: int = 0,
        nodes: int = 0,
    ):
        super().__init__(block.host.target, policy or Full(), widths)
        self.has_draft_probs = not nodes
        self.shape = BestPaths(nodes) if nodes else None
        if nodes:
            self.max_depth = min(len(widths), nodes)
            self.is_chain = nodes == 1
        self.block = block
        self.window = window or block.window
        layers = block.compilable()
        self.compiled = None if layers is None else self.target.backend.compile_layers(layers)

    def captures(self) -> CaptureSpec:
        # the block reads this layer only
        return replace(super().captures(), only=self.block.host.layer)

    def start(self, seqs: Sequences) -> None:
        super().start(seqs)
        self.ring = GlideRing(self.block, len(seqs.length), min(self.window, seqs.tokens.shape[1]))

    def enter(self, seqs: Sequences, row: int) -> None:
        super().enter(seqs, row)
        self.ring.enter()

    def leave(self, seqs: Sequences, row: int) -> None:
        super().leave(seqs, row)
        self.ring.leave(row)

    @cached_property
    def _weights(self) -> Read:
        """The weights that a call reads; counting them takes as long as all else in a price."""
        return weights_read(size_of(self.block), self.target, self.block.vocabulary)

    def price(self) -> GlidePrice:
        target = self.target
        block = self.block
        host = block.host
        heads = host.keys // target.team.size
        return GlidePrice(
            max_depth=self.max_depth,
            usual=self.usual,
            read=self._weights,
            slot=slot_bytes(target, host.layer, heads, host.dim, host.value_dim),
            seen=slots_seen(target, host.layer, self.policy.seen),
            known=known_count(target, block.vocabulary),
            widths=self.widths,
            paths=self.shape.nodes if self.shape else 0,
            compiled=self.compiled is not None,
        )

    def ready(self, seqs: Sequences) -> None:
        self.ring.refresh(seqs.tokens, seqs.length - 1)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        view = self.look(seqs)
        self.ready(seqs)

        def step(tree: Tree, start: int) -> Tensor:
            return self.logits(tree, start, seqs, view)

        if self.shape is None:
            return beam(step, tree, self.widths, seqs, limits, self.chain(tree, seqs, view))
        tree = self.shape.add_beside(step, self.max_depth, tree, seqs, limits)
        self.ring.drafted = None  # its nodes are the chain's, not the tree's
        return tree

    def chain(
        self, tree: Tree, seqs: Sequences, view: KVView | None
    ) -> Callable[[ChainDraws], Tensor] | None:
        """A function that drafts a chain in one call; None if the block is not compiled."""
        if self.compiled is None or not is_indexable(view):
            return None
        return partial(self._in_one_call, self.compiled, tree, seqs.cache, view)

    def _in_one_call(
        self,
        compiled: CompiledLayers,
        tree: Tree,
        cache: KVCache,
        view: IndexView | None,
        draws: ChainDraws,
    ) -> Tensor:
        """A chain below the root [B,count]; the keys of all but its last token stay behind the
        ring.
        """
        ring = self.ring
        root = tree.tokens[:, :1]
        seen = ring.visible(Tree.chain(root.expand(-1, draws.count)), 0)
        keys = ring.keys(draws.count, cache, view)
        drawn = compiled.draft_chain(root[:, 0], None, ring.root, keys, draws, seen)
        ring.drafted = torch.cat([root, drawn[:, :-1]], 1)
        return drawn

    def logits(self, tree: Tree, start: int, seqs: Sequences, view: KVView | None) -> Tensor:
        """[B,W,V] of nodes [start, size)."""
        position = self.ring.root[:, None] + tree.depth[:, start:]
        self.ring.drafted = tree.tokens
        if self.compiled is not None and is_indexable(view):
            seen = self.ring.visible(tree, start)
            keys = self.ring.keys(tree.size, seqs.cache, view)
            _, logits = self.compiled.forward(tree, start, position, seen, keys, None, logits=0)
            assert logits is not None
            return logits

        def cross(q: Tensor) -> Tensor:
            return torch.stack([self._cross(row, b, seqs, view) for b, row in enumerate(q)])

        return self.block(
            tree.tokens[:, start:], position, partial(self.ring.attend, tree, start), cross
        )

    def _cross(self, q: Tensor, b: int, seqs: Sequences, view: KVView | None) -> Tensor:
        """Attention of row b's nodes to verified tokens, slots 0..m-1 (LongSpec sec. 3.1): q
        [H,W,D] -> [W,H,Dv].
        """
        host = self.block.host
        m = int(seqs.cache.length[b])
        team = self.target.team
        if m == 0:
            return q.new_zeros(q.shape[1], q.shape[0], host.value_dim)
        row = seqs.cache.stored_row(host.layer, b)
        q = team.part(q)  # the queries whose keys this process holds
        if view is None or host.window is not None:
            low = 0 if host.window is None else max(0, m - host.window)
            segments = [Segment(*row.part(low, m).numbers())]
        else:
            segments = [s for s in view.segments(host.layer, b, row, m, None, q) if s.k.shape[1]]
        return team.join(attend(q, segments, host.dim**-0.5).out, 1)

    def idle(self) -> None:
        """The tree that is verified may have other nodes, so the keys of its own are not kept."""
        self.ring.drafted = None

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.ring.keep(verdict)
        super().update(seqs, tree, verdict, captured)
