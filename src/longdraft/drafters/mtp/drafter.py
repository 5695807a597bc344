"""MTP: a checkpoint's own multi-token-prediction layers draft, one layer after the other or one
again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from longdraft.core import (
    Captures,
    CaptureSpec,
    ChainDraws,
    DraftLimits,
    PromptSpec,
    Sequences,
    Tree,
    Verdict,
    without,
)
from longdraft.costs.passes import Pass
from longdraft.drafters.base import Drafter
from longdraft.drafters.beam_search import beam
from longdraft.drafters.mtp.block import MtpLayers
from longdraft.drafters.mtp.compiled import compiled
from longdraft.drafters.mtp.price import MtpPrice
from longdraft.drafters.mtp.ring import MtpRing
from longdraft.drafters.rereading import States, kept_states, read_again, reread
from longdraft.models.memory_traffic import head_size


class Mtp(Drafter):
    """Before a draft, each layer has run a row's pairs up to fed, and its ring holds the first and
    the latest of them.

    Pair t is the feature of token t with token t+1. fed [B]: pairs of a row that have been run;
    since [B]: the first after which none was left out. Layer i's feature for pair t is the output
    of layer i-1 for pair t-1, so its first i pairs from `since` on do not exist. Pairs are of
    committed tokens, with features computed from the target's states.

    Level d of a draft comes from layer d, and each level beyond the layers from the last one, run
    on its own outputs. widths: nodes per level, by cumulative score. The prefill keeps the states
    of the prompt's last tokens, `window` for each layer. Where it did not, and after steps that
    were not passed to `update`, the target reads missing tokens again before a draft: the first
    `sink`, and at most as many of the last ones; fewer where recurrent layers cannot take them
    back, and pairs before these stay where they are. A layer with its own window keeps that window
    and no sinks. Not for use inside a hierarchy.

    compiled: the layers as the target's backend computes them; [] where torch does.
    """

    has_draft_probs = True
    name = "block"

    def __init__(self, module: MtpLayers, widths: Sequence[int], sink: int = 4, window: int = 512):
        self.module = module
        self.target = module.target
        self.widths = widths
        self.max_depth = len(widths)
        self.is_chain = set(widths) == {1}
        self.most = (sink, window) if module.window is None else (0, min(window, module.window))
        self._last = self.target.depth
        self.compiled = compiled(module)
        self.dtype = torch.float32 if self.compiled else self.target.dtype  # of outputs

    def captures(self) -> CaptureSpec:
        return CaptureSpec(hidden=(self._last,))

    def prompt_captures(self) -> PromptSpec:
        sink, window = self.most
        return PromptSpec(self.captures().hidden, sink + window * len(self.module))

    def _features(self, states: States) -> Tensor:
        return self.module.feature(states[self._last])

    def price(self) -> MtpPrice:
        return MtpPrice(
            max_depth=self.max_depth,
            weights=self.module.weights,
            head=head_size(self.target),
            itemsize=self.target.dtype.itemsize,
            vocab=self.target.vocab,
            widths=self.widths,
            one_layer=len(self.module) == 1,
            compiled=bool(self.compiled),
        )

    def to_read(self, seqs: Sequences) -> list[Pass]:
        firsts = [self._missing(seqs, b) for b in range(len(seqs.length))]
        return reread(self.target, seqs, firsts)

    def start(self, seqs: Sequences) -> None:
        self.sink, self.window = (min(most, seqs.tokens.shape[1]) for most in self.most)
        self.rings = [
            MtpRing(seqs.capacity, self.sink, self.window, self.target.device)
            for _ in self.module.layers
        ]
        self.fed = torch.zeros_like(seqs.length)
        self.since = torch.zeros_like(seqs.length)
        blank = torch.zeros_like(self.module.embed(seqs.last), dtype=self.dtype)[:, None]
        self.outputs = [blank.clone() for _ in self.rings]  # of each layer for each row's last pair
        for b in range(len(seqs.length)):
            self._take(seqs, b)

    def enter(self, seqs: Sequences, row: int) -> None:
        for ring in self.rings:
            ring.clear(row)
        self.fed, self.since = (torch.cat([x, x.new_zeros(1)]) for x in (self.fed, self.since))
        self.outputs = [torch.cat([x, x.new_zeros(1, *x.shape[1:])]) for x in self.outputs]
        self._take(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        last = len(seqs.length)
        for ring in self.rings:
            if row != last:
                ring.move(last, row)
        self.fed = without(self.fed, row)
        self.since = without(self.since, row)
        self.outputs = [without(x, row) for x in self.outputs]

    def ready(self, seqs: Sequences) -> None:
        """Run missing pairs of rows that are not done."""
        for b in (seqs.cache.length - self.fed).masked_fill(seqs.done, 0).nonzero()[:, 0].tolist():
            self._feed_row(
                seqs, b, *read_again(self.target, seqs, b, self._missing(seqs, b), self.captures())
            )

    def _take(self, seqs: Sequences, b: int) -> None:
        """Run a row's missing pairs if its prefill has kept the states; `ready` reads what it has
        not.
        """
        first, states = kept_states(seqs, b, self._missing(seqs, b))
        if states:
            self._feed_row(seqs, b, first, states)

    def _missing(self, seqs: Sequences, b: int) -> int:
        """The first missing pair of a row, of those that a draft depends on: none does on pairs
        from sink to `low`.
        """
        first = int(self.fed[b])
        low = int(seqs.cache.length[b]) - self.window * len(self.rings)
        return low if max(first, self.sink) < low else first

    def _feed_row(self, seqs: Sequences, b: int, first: int, states: States) -> None:
        """Run a row's missing pairs from `first` on, which have these states, and its sinks; others
        are left out.
        """
        row = slice(b, b + 1)
        tokens = seqs.tokens[b : b + 1]
        fed = int(self.fed[b])
        sinks = min(self.sink, first)
        if fed < sinks:  # the first tokens attend to nothing else: a small cache suffices
            cache = self.target.new_cache(1, sinks)
            [captured] = self.target.extend_cache(tokens[:, :sinks], cache, self.captures(), sinks)
            self._feed(
                self._features(captured.states)[:, fed:], tokens[:, fed + 1 : sinks + 1], row
            )
        if int(self.fed[b]) < first:
            self.fed[b] = self.since[b] = first
            for output in self.outputs:
                output[b] = 0
        if states:
            self._feed(
                self._features(states), tokens[:, first + 1 : int(seqs.cache.length[b]) + 1], row
            )

    def _feed(
        self, features: Tensor, tokens: Tensor, rows: slice, count: Tensor | None = None
    ) -> None:
        """Run the first `count` (None: all) of the next pairs of these rows: features [B',A,d],
        tokens [B',A].
        """
        count = torch.full_like(tokens[:, 0], tokens.shape[1]) if count is None else count
        for begin in range(0, tokens.shape[1], self.window):
            part = slice(begin, begin + self.window)
            self._feed_part(
                features[:, part],
                tokens[:, part],
                rows,
                (count - begin).clamp(0, tokens[:, part].shape[1]),
            )

    def _feed_part(self, feature: Tensor, tokens: Tensor, rows: slice, count: Tensor) -> None:
        """At most `window` pairs a row, each run by all layers."""
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        pair = self.fed[rows, None] + steps
        real = steps < count[:, None]
        chain = Tree.chain(tokens)
        alone = torch.eye(len(steps), dtype=torch.bool, device=tokens.device)
        last = (count - 1).clamp(min=0)[:, None, None].expand(-1, 1, feature.shape[-1])
        for i, ring in enumerate(self.rings):
            whole = pair >= self.since[rows, None] + i
            nodes = replace(chain, mask=(chain.mask & whole[:, None]) | alone)
            output, _ = self._run(i, feature, nodes, 0, rows, pair)
            ring.keep(rows, pair, real & whole)
            before = self.outputs[i][rows]
            feature = torch.cat([before, output[:, :-1]], 1)
            self.outputs[i][rows] = torch.where(
                count[:, None, None] > 0, output.gather(1, last), before
            )
        self.fed[rows] += count

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        count = seqs.cache.length - self.fed  # new tokens of each row; 0 if it was done
        # rows that missed steps or were never read are left to `ready`
        count = count.where(count <= verdict.count, 0)
        if count.any():
            features = self._features(captured.states)
            features = features.gather(
                1, verdict.path[..., None].expand(-1, -1, features.shape[-1])
            )
            self._feed(features, verdict.emitted, slice(0, len(count)), count)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if limits.depth < 1:
            return tree
        self.ready(seqs)
        one_layer = len(self.compiled) == 1
        return beam(
            self._logits,
            tree,
            self.widths,
            seqs,
            limits,
            partial(self._chain, tree) if one_layer else None,
        )

    def _chain(self, tree: Tree, draws: ChainDraws) -> Tensor:
        return self.compiled[0].chain(
            self.rings[0], tree.tokens[:, 0], self.outputs[0], self.fed, draws
        )

    def _logits(self, tree: Tree, start: int) -> Tensor:
        """[B,W,V] of nodes [start, size), which are one level."""
        level = int(tree.depth[0, -1])
        if not level:
            self._below = self.outputs[0]  # of the layer that ran last, for all nodes so far
            return self.module.scores(self._below)
        layer = min(level, len(self.module) - 1)
        # a layer that runs for the first time runs all levels
        first = start if layer < level else 1
        rows = torch.arange(len(tree.tokens), device=tree.tokens.device)[:, None]
        parent = tree.parent[:, first:]
        nodes = Tree(
            tree.tokens[:, 1:], tree.parent[:, 1:] - 1, tree.depth[:, 1:], tree.mask[:, 1:, 1:]
        )
        pair = self.fed[:, None] - 1 + tree.depth[:, first:]
        feature = self._below[rows, parent]
        output, logits = self._run(
            layer, feature, nodes, first - 1, slice(0, len(rows)), pair, tree.size - start
        )
        above = self._below if layer < level else self.outputs[layer]
        self._below = torch.cat([above, output], 1)
        return self.module.scores(self._below[:, start:]) if logits is None else logits

    def _run(
        self,
        i: int,
        feature: Tensor,
        nodes: Tree,
        start: int,
        rows: slice,
        pair: Tensor,
        scored: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Layer i's output [B,W,d] for nodes [start, size) of scratch, pairs pair [B,W] of these
        rows.

        And logits of the last `scored` nodes (None: of none) if they come from the same call.
        """
        ring = self.rings[i]
        if self.compiled:
            return self.compiled[i].run(ring, rows, nodes, start, pair, feature, scored)
        seen = ring.over(rows, pair, nodes.mask[:, start:])
        return self.module.run(i, feature, nodes.tokens[:, start:], pair + 1, seen), None
