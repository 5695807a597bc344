"""The pairs that an EAGLE layer attends to: their keys, and which of them it sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.core import KVCache, Sequences, Tree, without
from longdraft.core.draft_layers import CompiledLayers, DraftKeys
from longdraft.drafters.eagle.block import EagleBlock
from longdraft.models.lm import LM

PAIRS_PER_PASS = 512  # pairs that the layer runs at once


@dataclass(frozen=True)
class PairSpan:
    """Which pairs are held and seen. reach: the latest tokens of a prompt whose pairs are held.

    window above 0: of a text of more than `reach` tokens only the latest `window` and the first
    `sink` are, and a text that grows beyond that is seen so from then on. All keys serve a layer
    best in a text as short as those it was trained on, and mislead it in a longer one. sink is less
    than reach.
    """

    reach: int
    window: int = 0
    sink: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sink", min(self.sink, self.reach - 1))

    @property
    def most(self) -> int:
        """Pairs of which missing ones are computed again."""
        return min(self.reach, self.window + self.sink) if self.window else self.reach

    def first(self, n: int) -> int:
        """The position of the first slot where `n` tokens have pairs."""
        return 0 if n <= self.reach else n - self.most

    def tail(self, first: Tensor, length: Tensor) -> Tensor | None:
        """[B]: the slot from which on each row's pairs are seen, besides the first `sink`; None:
        all are.
        """
        if not self.window:
            return None
        tail = torch.where(first + length > self.reach, length - self.window, 0).clamp(min=0)
        return tail if bool(tail.any()) else None


class Pairs:
    """Slot i of a row holds the keys of pair first + i, except that where pairs are left out, the
    slots before hold the keys of earlier pairs: of the sinks, or of those before a gap.

    Pair t is the feature of token t with token t+1. output [B,1,d]: what the layer gave for each
    row's last pair.
    """

    def __init__(
        self, target: LM, block: EagleBlock, compiled: CompiledLayers | None, span: PairSpan
    ):
        self.target = target
        self.block = block
        self.compiled = compiled
        self.span = span
        self.dtype = torch.float32 if compiled else block.o.weight.dtype  # of outputs

    def begin(self, seqs: Sequences, scratch: int) -> None:
        """No pairs yet."""
        B = len(seqs.length)
        cache = seqs.cache
        ahead = seqs.tokens.shape[1] - max(
            min(cache.length.tolist(), default=0) - self.span.most, 0
        )
        self._whole = KVCache(seqs.capacity, ahead + scratch, cache.length.device)
        self.own = self._whole.first(B)
        self.first = torch.zeros_like(cache.length)
        self.output = torch.zeros(
            B, 1, self.target.config.hidden_size, dtype=self.dtype, device=cache.length.device
        )

    def enter(self, row: int) -> None:
        self._whole.length[row] = 0
        self.own = self._whole.first(row + 1)
        self.first = torch.cat([self.first, self.first.new_zeros(1)])
        self.output = torch.cat([self.output, self.output.new_zeros(1, *self.output.shape[1:])])

    def leave(self, row: int) -> None:
        last = len(self.first) - 1
        if row != last:
            self._whole.move(last, row)
        self.own = self._whole.first(last)
        self.first = without(self.first, row)
        self.output = without(self.output, row)

    def keep(self, count: int, n: int) -> bool:
        """Keeps the only row's pairs before position `count` that n tokens have; False if there
        are none.
        """
        first = int(self.first[0])
        span = self.span
        end = min(count, int(self.next[0]))
        low = max(first, span.first(n))
        sinks = span.sink if span.window and low else 0
        if low + sinks >= end:
            return False
        if low > first:
            held = [*range(sinks), *range(low + sinks - first, end - first)]
            k, v = (x[None, :, held] for x in self.own.read(0, 0))
            self.own.write(0, k, v, [0])
        self.first[0] = low
        self.own.length[0] = end - low
        return True

    @property
    def next(self) -> Tensor:
        """[B]: the position of the next pair."""
        return self.first + self.own.length

    def skip(self, b: int, first: int) -> int:
        """Forget a row's pairs; those from `first` on will be fed next -> how many sinks must be
        fed before them.
        """
        self.first[b] = first
        self.own.length[b] = 0
        return self.span.sink if self.span.window and first else 0

    def leave_out(self, b: int, to: int) -> None:
        """Pair `to` of a row will be fed next; the missing ones before it are left out, and those
        held stay.
        """
        gap = to - int(self.next[b])
        if gap > 0:
            self.first[b] += gap
            self.output[b] = 0  # what follows the gap does not follow the last pair before it

    def feed(
        self, features: Tensor, tokens: Tensor, rows: slice, count: list[int], at: int | None = None
    ) -> None:
        """Append the first `count` of the pairs features [B',A,..], tokens [B',A] of these rows.

        at: their position, where they are not the next ones.
        """
        own = self.own.row(rows.start) if rows.stop - rows.start == 1 else self.own
        taken = torch.tensor(count, device=tokens.device)
        for begin in range(0, tokens.shape[1], PAIRS_PER_PASS):
            part = tokens[:, begin : begin + PAIRS_PER_PASS]
            W = part.shape[1]
            tree = Tree.chain(part)
            position = tree.depth + (self.next[rows, None] if at is None else at + begin)
            out = self._run(features[:, begin : begin + W], tree, position, own, self.first[rows])
            real = (taken - begin).clamp(0, W)
            last = out.gather(
                1, (real - 1).clamp(min=0)[:, None, None].expand(-1, 1, out.shape[-1])
            )
            self.output[rows] = torch.where(real[:, None, None] > 0, last, self.output[rows])
            own.length += real

    def _run(
        self, features: Tensor, tree: Tree, position: Tensor, own: KVCache, first: Tensor
    ) -> Tensor:
        if self.compiled is not None:
            keys = self.keys(own, first, tree.size)
            return self.compiled.forward(
                tree, 0, position, tree.mask, keys, features, self.block.fuses
            )[0]
        tail = self.span.tail(first, own.length)
        return self.block(
            features, self.embed(tree.tokens), position, tree.mask, own, 0, tail, self.span.sink
        )

    def run(self, feature: Tensor, tree: Tree, start: int) -> Tensor:
        """The layer, computed by torch, on nodes [start, size) of a tree below the last pair, after
        feature [B,W,d].
        """
        position = tree.depth[:, start:] - 1 + self.next[:, None]
        mask = tree.mask[:, start:, 1:]
        tail = self.span.tail(self.first, self.own.length)
        feature = feature.to(self.block.o.weight.dtype)
        embedded = self.embed(tree.tokens[:, start:])
        out = self.block(
            feature, embedded, position, mask, self.own, start - 1, tail, self.span.sink
        )
        return out.to(self.dtype)

    def keys(self, own: KVCache, first: Tensor, nodes: int) -> DraftKeys:
        """The keys of these rows, with room for this many nodes after them."""
        end = int(own.length.max()) + nodes
        places = own.pointers(end, [0], self.block.kv, self.block.dim, self.block.o.weight.dtype)
        return DraftKeys(places, own.length, self.span.tail(first, own.length), self.span.sink)

    def features(self, states: list[Tensor]) -> Tensor:
        """The target's captured states -> what `feed` reads."""
        if self.compiled is None:
            return self.block.feature(self.target, states)
        return self.block.sources(self.target, states)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.target.hf.get_input_embeddings()(tokens).to(self.block.o.weight.dtype)
