"""DFlash: one pass of a block over masks drafts the tokens of several depths, and the best paths
become a tree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.core import (
    UNBOUNDED,
    Captures,
    CaptureSpec,
    DraftLimits,
    PromptSpec,
    Sequences,
    Tree,
    Verdict,
)
from longdraft.core.draft_layers import DraftKeys
from longdraft.costs.passes import Pass
from longdraft.drafters.base import Drafter
from longdraft.drafters.block_costs import weights_read
from longdraft.drafters.dflash.block import DFlashBlock
from longdraft.drafters.dflash.price import DFlashPrice
from longdraft.drafters.dflash.ring import FeatureRing, feature_bytes
from longdraft.drafters.marginals import BestPaths
from longdraft.drafters.rereading import States, kept_states, read_again, reread
from longdraft.drafters.vocabulary import known_count, known_logits
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import size_of
from longdraft.ops import Segment, attend


class DFlash(Drafter):
    """Before a draft, the ring holds the features of the latest `window` tokens in the target's
    cache, all computed from the target's states, except those of tokens that recurrent layers could
    not take back.

    A draft is the tree of the `nodes` best paths, or a chain of gamma tokens. The prefill keeps the
    states of the prompt's last `window` tokens. Where it did not, and after steps that were not
    passed to `update`, the target reads the missing tokens again before a draft, at most the last
    `window`. The whole block runs whatever the limits, because its slots see each other. window 0:
    the block's own. Not for use inside a hierarchy, which verifies under a view.
    """

    name = "block"
    usual: tuple[float, float] = (0.6, 0.5)

    def __init__(
        self, target: LM, block: DFlashBlock, nodes: int = 8, gamma: int = 0, window: int = 0
    ):
        if gamma >= block.slots:
            raise InputError(
                f"option gamma is {gamma}: give at most {block.slots - 1}, the most that "
                "its block drafts"
            )
        self.target = target
        self.block = block
        self.window = window or block.window
        self.shape = BestPaths(gamma or nodes)
        self.width = 1 if gamma else UNBOUNDED
        self.max_depth = min(gamma or nodes, block.slots - 1)
        self.is_chain = bool(gamma) or nodes == 1
        layers = block.compilable(target)
        self.compiled = None if layers is None else target.backend.compile_layers(layers)
        self.compiled_keys = target.backend.compile_layers(block.compilable_keys())
        self._text: Tensor | None = None  # tokens [1,N] of the only row since `start`

    def captures(self) -> CaptureSpec:
        return CaptureSpec(hidden=tuple(self.block.taps))

    def prompt_captures(self) -> PromptSpec:
        return PromptSpec(self.captures().hidden, self.window)

    def start(self, seqs: Sequences) -> None:
        size = max(min(self.window, seqs.tokens.shape[1]), 1)
        shared = seqs.shared(self._text)
        self._text = seqs.tokens
        if shared:
            self.ring.rewind(torch.full_like(self.ring.end, shared))
            self.ring = self.ring.resized(self.block, size)
        else:
            self.ring = FeatureRing(self.block, size, (seqs.cache.length - size).clamp(min=0))
        for b in range(len(seqs.length)):
            self._take(seqs, b)

    def enter(self, seqs: Sequences, row: int) -> None:
        self._text = None
        self.ring.enter(max(int(seqs.cache.length[row]) - self.ring.size, 0))
        self._take(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self._text = None
        self.ring.leave(row)

    def rewind(self, seqs: Sequences) -> None:
        self.ring.rewind(seqs.cache.length)

    def price(self) -> DFlashPrice:
        block = self.block
        return DFlashPrice(
            max_depth=self.max_depth,
            usual=self.usual,
            read=weights_read(size_of(block), self.target, block.vocabulary),
            slots=block.slots,
            slot=feature_bytes(block),
            window=self.window,
            known=known_count(self.target, block.vocabulary),
            most_nodes=self.shape.nodes,
            most_width=self.width,
            compiled=self.compiled is not None,
        )

    def to_read(self, seqs: Sequences) -> list[Pass]:
        firsts = [self._missing(seqs, b) for b in range(len(seqs.length))]
        return reread(self.target, seqs, firsts)

    def ready(self, seqs: Sequences) -> None:
        """Compute missing features of rows that are not done."""
        lacking = (seqs.cache.length - self.ring.end).masked_fill(seqs.done, 0)
        for b in lacking.nonzero()[:, 0].tolist():
            self._feed_row(
                seqs, b, *read_again(self.target, seqs, b, self._missing(seqs, b), self.captures())
            )

    def _missing(self, seqs: Sequences, b: int) -> int:
        """The first position that a row lacks, of those that the ring would hold."""
        return max(int(seqs.cache.length[b]) - self.ring.size, int(self.ring.end[b]))

    def _take(self, seqs: Sequences, b: int) -> None:
        """Compute the missing features of a row if its prefill has kept the states."""
        first, states = kept_states(seqs, b, self._missing(seqs, b))
        if states:
            self._feed_row(seqs, b, first, states)

    def _feed_row(self, seqs: Sequences, b: int, first: int, states: States) -> None:
        """Append the features of a row's positions from `first` on, which have these states;
        missing ones before them are left out.
        """
        self.ring.end[b] = first
        count = int(seqs.cache.length[b]) - first
        if count:
            features = [states[tap] for tap in self.block.taps]
            self._feed(
                torch.tensor([b], device=self.ring.end.device), features, torch.tensor([count])
            )

    def _feed(self, rows: Tensor, states: list[Tensor], count: Tensor) -> None:
        """Append the features of the first `count` [R] of the states [R,N,d] to these rows."""
        count = count.to(rows.device)
        position = self.ring.end[rows][:, None] + torch.arange(
            states[0].shape[1], device=rows.device
        )
        if (
            self.compiled_keys is not None
            and len(rows) == len(self.ring.end)
            and position.shape[1] <= self.block.slots
        ):
            fed = Tree.chain(torch.zeros_like(position))
            keys = DraftKeys(self.ring.places(), torch.full_like(count, self.ring.size))
            self.compiled_keys.forward(
                fed, 0, position, fed.mask, keys, torch.cat(states, -1), sources=True
            )
            self.ring.append_scratch(position.shape[1], count)
        else:
            self.ring.append(rows, *self.block.keys(self.block.feature(states), position), count)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        count = seqs.cache.length - self.ring.end  # new tokens of each row; 0 if it was done
        # rows that missed steps or were never read are left to `ready`
        count = count.where(count <= verdict.count, 0)
        path = verdict.path[..., None]
        states = [captured.states[tap] for tap in self.block.taps]
        kept = [x.gather(1, path.expand(-1, -1, x.shape[-1])) for x in states]
        self._feed(torch.arange(len(count), device=count.device), kept, count)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        limits = limits.within(self.max_depth, self.width)
        if limits.depth < 1 or limits.width < 1:
            return tree
        self.ready(seqs)
        logits = self.logits(tree.tokens[:, 0], limits.depth)
        return self.shape.add(tree, logits, seqs, limits, self.block.vocabulary)

    def logits(self, roots: Tensor, depth: int) -> Tensor:
        """Tokens of the roots [B] -> logits [B,depth,known] of the tokens after them, float32."""
        if self.compiled is None:
            return known_logits(
                self.target, self.block.vocabulary, self.states(roots)[:, :depth]
            ).float()
        B = len(roots)
        slots = self.block.slots
        ring = self.ring
        # slots after the root's have no tokens
        block = Tree.chain(roots[:, None].expand(-1, slots))
        embedded = self.target.hf.get_input_embeddings()(roots)[:, None].float()
        inputs = torch.cat([embedded, self.block.mask.float().expand(B, slots - 1, -1)], 1)
        own = block.mask if self.block.causal[0] else torch.ones_like(block.mask)
        mask = torch.cat([ring.visible(slots, self.window), own], 2)
        keys = DraftKeys(ring.places(), ring=ring.size)
        _, logits = self.compiled.forward(
            block, 0, ring.end[:, None] + block.depth, mask, keys, inputs, logits=slots - 1
        )
        assert logits is not None
        return logits[:, :depth]

    def states(self, roots: Tensor) -> Tensor:
        """Tokens of the roots [B] -> the normed states [B,slots-1,d] that predict the tokens after
        them.
        """
        seen = self.ring.visible(self.block.slots, self.window)
        causal = torch.ones_like(seen[0, :, :1]).expand(-1, self.block.slots).tril()

        def attended(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            own = causal if self.block.causal[layer] else None
            outputs = []
            for b, query in enumerate(q):
                keys, values = (
                    x[layer, b, :, : self.ring.size] for x in (self.ring.k, self.ring.v)
                )
                context = Segment(keys, values, seen[b])
                outputs.append(
                    attend(query, [context, Segment(k[b], v[b], own)], query.shape[-1] ** -0.5).out
                )
            return torch.stack(outputs).flatten(2)

        embedded = self.target.hf.get_input_embeddings()(roots)[:, None]
        return self.block(embedded, self.ring.end[:, None], attended)[:, 0, 1:]
