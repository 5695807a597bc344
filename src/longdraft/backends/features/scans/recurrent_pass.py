"""One forward pass through recurrent layers: every scan runs along the paths of a tree, from the
committed states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft import ops
from longdraft.backends.features.scans.recurrences import Convolution, Scan, convolved
from longdraft.core import PAD, KVCache, Tree
from longdraft.core.states import Inputs, RowStates
from longdraft.ops import recurrence
from longdraft.ops.scan import Order, chain, depth_first

FEW = 16  # nodes of a pass that are replayed faster than the states after them are written
LONG = 64  # nodes of a chain that is committed whole from which on it is computed in chunks
SCAN_CHUNK = 32  # tokens of a chunk; the inputs of the last one or two are kept

InChunks = Callable[[int, slice, Tensor | None], tuple[Tensor, Tensor]]
"""(row, nodes of a chain, state before) -> outputs [T,..] and the state after.

The model's own form for prompts.
"""


@dataclass(frozen=True)
class RowSegment:
    """Tokens that follow each other, after those of segment `after` (-1: after the settled
    states).
    """

    after: int
    # numbers of tokens: slots that are committed but not settled come first, then nodes
    tokens: list[int]


class RowPlan:
    """The tokens that a pass computes for one row: the new nodes, and before them those that no
    state contains yet.

    known: tokens whose inputs are in the cache: committed slots that are not settled, and earlier
    nodes. whole: whether all tokens follow each other. long: how many nodes of a long pass leave no
    inputs behind: only nodes that are committed whatever is computed, because others are replayed
    from their inputs. stops: after how many slots the pass settles states, which it computes on the
    way. tip: whether it keeps the states that it ends with too. kept: the tokens after which states
    are kept, those of stops first. appended: see Rewinding.
    """

    def __init__(
        self, states: RowStates, length: int, parent: list[int], start: int, appended: int = 0
    ):
        self.states = states
        self.begin = length + start
        early = length - states.position
        self.known = early + start
        # a root's is -1
        self.parent = [
            *range(-1, early - 1),
            *(p if p == PAD else early + p for p in parent),
        ]
        self.whole = all(p == i - 1 for i, p in enumerate(self.parent))
        size = len(parent) - start
        lasts = self.whole and not self.known and states.floor is None and size == appended
        self.long = (size - SCAN_CHUNK) // SCAN_CHUNK * SCAN_CHUNK if lasts and size >= LONG else 0
        self.stops = states.stops(length)
        # Writing a state costs as much as many tokens: that after the last one only where it is
        # likely to be committed.
        lasting = size > FEW or (size == 1 and not self.stops)
        self.tip = self.whole and not start and states.floor is None and lasting
        self.kept = (
            *(n - states.position - 1 for n in self.stops),
            *[len(self.parent) - 1] * self.tip,
        )
        self.segments = (
            [RowSegment(-1, list(range(len(self.parent))))] if self.whole else self._branches()
        )
        self.states.open(self.begin, self.begin + size, self.long)
        self._order: Order | None = None
        self._windows: dict[int, Tensor] = {}

    def order(self, device: torch.device) -> Order:
        """The steps of a scan."""
        if self._order is None:
            count = len(self.parent)
            segments = [(s.after, s.tokens) for s in self.segments]
            if self.whole:
                self._order = chain(count, device, self.kept)
            else:
                self._order = depth_first(segments, count, device, self.kept)
        return self._order

    def windows(self, size: int, device: torch.device) -> Tensor:
        """[W,size]: for each new node, where the inputs that it reads lie behind size-1 inputs of
        settled tokens.
        """
        if size not in self._windows:
            if self.whole:
                table = torch.arange(self.known, len(self.parent))[:, None] + torch.arange(size)
            else:
                table = torch.tensor(_windows(self, size))
            self._windows[size] = table.to(device)
        return self._windows[size]

    def _branches(self) -> list[RowSegment]:
        """The tokens on paths to new nodes: a segment ends where several begin, and follows the one
        it grows from.
        """
        real = [p != PAD for p in self.parent]
        needed = [real[i] and (i >= self.known or i in self.kept) for i in range(len(real))]
        for i in reversed(range(len(real))):
            if needed[i] and self.parent[i] >= 0:
                needed[self.parent[i]] = True
        children: dict[int, list[int]] = {}
        for i, p in enumerate(self.parent):
            if needed[i]:
                children.setdefault(p, []).append(i)
        segments = list[RowSegment]()
        open_ = [(-1, i) for i in reversed(children.get(-1, []))]
        while open_:  # depth first, so that few states are kept for later branches
            after, i = open_.pop()
            tokens = [i]
            while len(below := children.get(tokens[-1], [])) == 1:
                tokens.append(below[0])
            segments.append(RowSegment(after, tokens))
            open_ += [(len(segments) - 1, i) for i in reversed(below)]
        return segments


class RecurrentPass:
    """A pass over nodes [start, size) of a tree. Its scans are numbered in the order in which the
    model calls them.

    Nodes of padding have outputs of zero. calls: how many scans there were.
    """

    def __init__(self, tree: Tree, cache: KVCache, start: int):
        self.cache = cache
        self.calls = 0
        lengths = cache.length.tolist()
        self.rows = list[RowPlan]()
        for b, (n, parent) in enumerate(zip(lengths, tree.parent.tolist(), strict=True)):
            states = cache.states(b)
            (states.settle if cache.appended >= LONG else states.adopt)(n, cache.recurrences)
            self.rows.append(RowPlan(states, n, parent, start, cache.appended))
        self._kept: list[dict[int, list[Tensor]]] = [{} for _ in lengths]  # as RowPlan.kept
        self._before: list[dict[int, Tensor]] = [{} for _ in lengths]

    def _next(self) -> int:
        self.calls += 1
        return self.calls - 1

    def scan(
        self, scan: Scan, inputs: Inputs, queries: Inputs, in_chunks: InChunks | None = None
    ) -> Tensor:
        """Outputs [B,W,..] in float32 of the new nodes, whose inputs and queries are [B,W,..]."""
        number = self._next()
        self.cache.recurrences[number] = scan
        return torch.stack(
            [
                self._row(
                    b,
                    number,
                    scan,
                    tuple(x[b] for x in inputs),
                    tuple(x[b] for x in queries),
                    in_chunks,
                )
                for b in range(len(self.rows))
            ]
        )

    def _row(
        self,
        b: int,
        number: int,
        scan: Scan,
        inputs: Inputs,
        queries: Inputs,
        in_chunks: InChunks | None,
    ) -> Tensor:
        row = self.rows[b]
        settled = row.states.states.get(number)
        row.states.write(number, tuple(x[row.long :] for x in inputs), row.begin + row.long)
        if row.long:
            return self._long(b, number, scan, inputs, queries, in_chunks)
        everything = row.states.inputs(number, row.states.position, row.begin + len(inputs[0]))
        out, kept = scan.along(settled, everything, queries, row.order(everything[0].device))
        # none holds another one
        self._kept[b][number] = list(kept) if len(kept) == 1 else [x.clone() for x in kept]
        return out

    def _long(
        self,
        b: int,
        number: int,
        scan: Scan,
        inputs: Inputs,
        queries: Inputs,
        in_chunks: InChunks | None,
    ) -> Tensor:
        """A long chain in two parts; the inputs of the second are kept, so that the row can be
        shortened.
        """
        row = self.rows[b]

        def in_order(_: int, nodes: slice, state: Tensor | None) -> tuple[Tensor, Tensor]:
            return scan.run(state, _of(inputs, nodes), _of(queries, nodes))

        # The kernel of CPUs is several times faster than the model's own form, and has the order of
        # decoding.
        compute = in_order if in_chunks is None or recurrence.has_kernel(*inputs) else in_chunks
        first, state = compute(b, slice(0, row.long), row.states.states.get(number))
        self._before[b][number] = state
        second, end = compute(b, slice(row.long, None), state)
        self._kept[b][number] = [end]
        return torch.cat([first.float(), second.float()])

    def convolve(self, x: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
        """Causal convolutions of channels x [B,C,W] with taps [C,K] along the paths -> [B,C,W] in
        the dtype of x.
        """
        size = taps.shape[1]
        gpu = ops.scans(x)
        if gpu is None:
            return convolved(self.windows(x.mT, size), taps, bias).to(x.dtype).mT
        rows = zip(self.rows, self._left(x.mT, size), strict=True)
        read = [(left, new, row.windows(size, x.device)) for row, (left, new) in rows]
        return torch.stack([gpu.convolve(*given, taps, bias).to(x.dtype).mT for given in read])

    def windows(self, x: Tensor, size: int) -> Tensor:
        """x [B,W,C] of each node and of the `size` - 1 tokens before it on its path, oldest first
        -> [B,W,size,C].

        Zeros before the first token.
        """
        rows = list[Tensor]()
        for row, (left, new) in zip(self.rows, self._left(x, size), strict=True):
            source = torch.cat([left, new])
            in_order = row.whole  # then windows overlap in memory, and nothing is copied
            rows.append(
                source[row.known :].unfold(0, size, 1).mT
                if in_order
                else source[row.windows(size, x.device)]
            )
        return torch.stack(rows)

    def _left(self, x: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
        """For each row, the size-1 inputs before its settled tokens' end, and those of all tokens
        of the pass.
        """
        number = self._next()
        kind = Convolution(size)
        self.cache.recurrences[number] = kind
        return [self._row_left(b, number, kind, x[b]) for b in range(len(self.rows))]

    def _row_left(self, b: int, number: int, kind: Convolution, x: Tensor) -> tuple[Tensor, Tensor]:
        row = self.rows[b]
        row.states.write(number, (x[row.long :],), row.begin + row.long)
        settled = row.states.states.get(number)
        if row.long:
            everything = x
            self._before[b][number] = kind.replay(settled, (x[: row.long],))
        else:
            (everything,) = row.states.inputs(number, row.states.position, row.begin + len(x))
        self._kept[b][number] = [
            kind.replay(settled, (everything[: last + 1],)) for last in row.kept
        ]
        return kind.before(settled, everything), everything

    def finish(self) -> None:
        """Settle the states that were computed on the way, and keep what the latest chain ended
        with: that is the row's state if all of it is committed. A pass through some of the layers
        settles nothing.
        """
        for row, kept, before in zip(self.rows, self._kept, self._before, strict=True):
            complete = len(kept) == len(self.cache.recurrences)
            end = row.begin + len(row.parent) - row.known
            for i, stop in enumerate(row.stops if complete else ()):
                row.states.advance(stop, {n: states[i] for n, states in kept.items()})
            row.states.tip = (
                (end, {n: s[-1] for n, s in kept.items()}) if row.tip and complete else None
            )
            row.states.before_tip = (
                (row.begin + row.long, before) if row.long and complete else None
            )


def _windows(row: RowPlan, size: int) -> list[list[int]]:
    """For each new node, where the inputs that it reads lie behind size-1 inputs of settled
    tokens.
    """
    windows = list[list[int]]()
    for i in range(row.known, len(row.parent)):
        path = [i] if row.parent[i] == PAD else []
        node = i
        while len(path) < size and row.parent[i] != PAD:
            path.append(node)
            node = row.parent[node] if node >= 0 else node - 1
        path += [-size] * (size - len(path))
        windows.append([n + size - 1 if n >= 1 - size else 0 for n in reversed(path)])
    return windows


def _of(tensors: Inputs, tokens: slice) -> Inputs:
    return tuple(x[tokens] for x in tensors)
