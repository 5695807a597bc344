"""States of recurrent layers: whatever happens to a row, a node reads what its own path has
left.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from longdraft.backends.features.scans import recurrent_pass
from longdraft.backends.features.scans.recurrences import (
    Additive,
    Convolution,
    DeltaRule,
    Scan,
    StateSpace,
)
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass, RowPlan, RowSegment
from longdraft.core import PAD, KVCache, Tree
from longdraft.core.rewinding import Rewinding
from longdraft.core.states import RECENT, ROOM, RowStates
from longdraft.ops.scan import ON

PRIME = 1009
TAPS = torch.tensor([[3.0, 5.0, 7.0, 11.0]])


class Digest(Scan):
    """A toy recurrence whose state tells the whole path: s becomes (31 s + x + 1) mod PRIME, and is
    the output.
    """

    def along(self, state, inputs, queries, order):
        (x,), empty = inputs, torch.zeros(1)
        out = torch.zeros(len(x), 1)
        saved = torch.zeros(order.saved, 1)
        now = empty
        for token, before, save in order.steps.tolist():
            if before != ON:
                now = saved[before].clone() if before >= 0 else empty if state is None else state
            out[token] = now = (31 * now + x[token] + 1) % PRIME
            if save >= 0:
                saved[save] = now
        return out[len(x) - len(queries[0]) :] if queries else out[:0], saved[: order.kept].clone()


def said(path: list[int]) -> float:
    """What Digest says after these tokens."""
    state = 0
    for x in path:
        state = (31 * state + x + 1) % PRIME
    return float(state)


def convolved(path: list[int]) -> float:
    return float(sum(int(t) * x for t, x in zip(TAPS[0], [0, 0, 0, *path][-4:], strict=True)))


class History:
    """Rows of a cache through random operations, beside lists of the tokens that each row holds."""

    def __init__(self, seed: int, rows: int = 3, every: int = 8):
        self.draw = random.Random(seed)
        self.cache = KVCache(rows, 1)
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        # where each row was resumed or shortened to: earlier inputs are not known
        self.since = [0] * rows
        self.cache.keep_checkpoints(every)

    def token(self) -> int:
        return self.draw.randrange(500)

    def grown(self, sizes: list[int]) -> list[Tree]:
        """A random tree after each level of its growth, with padding in some rows."""
        tree = Tree.root(torch.tensor([self.token() for _ in self.texts]))
        trees = [tree]
        for wide in sizes:
            parent = [
                [self.draw.choice([*range(tree.size), PAD]) for _ in range(wide)]
                for _ in self.texts
            ]
            rows = zip(parent, tree.parent.tolist(), strict=True)
            real = [[PAD if p >= 0 and row[p] == PAD else p for p in new] for new, row in rows]
            tree = tree.grow(
                torch.tensor(real),
                torch.tensor([[self.token() for _ in range(wide)] for _ in self.texts]),
            )
            trees.append(tree)
        return trees

    def run(self, trees: list[Tree], whole: bool = True) -> None:
        """Passes over the levels of a tree, each compared with the paths of its nodes. whole:
        through all layers.
        """
        start = 0
        for tree in trees:
            p = RecurrentPass(tree, self.cache, start)
            tokens = tree.tokens[:, start:].float()
            # queries only tell which outputs are wanted
            out = p.scan(Digest(), (tokens[..., None],), (tokens,))
            conv = p.convolve(tokens[:, None], TAPS, None)[:, 0] if whole else None
            p.finish()
            for b, text in enumerate(self.texts):
                for i in range(start, tree.size):
                    if int(tree.parent[b, i]) != PAD:
                        path = text + tree.tokens[b, tree.mask[b, i].nonzero()[:, 0]].tolist()
                        assert float(out[b, i - start]) == said(path)
                        assert conv is None or float(conv[b, i - start]) == convolved(path)
            start = tree.size

    def path(self, tree: Tree, b: int) -> list[int]:
        """A random path from the root."""
        node = self.draw.choice([i for i, p in enumerate(tree.parent[b].tolist()) if p != PAD])
        return tree.mask[b, node].nonzero()[:, 0].tolist()

    def commit(self, tree: Tree) -> None:
        paths = [self.path(tree, b) for b in range(len(self.texts))]
        most = max(map(len, paths))
        padded = [[*p, *range(tree.size, tree.size + most - len(p))] for p in paths]
        self.cache.keep(torch.tensor(padded), torch.tensor([len(p) for p in paths]))
        for b, p in enumerate(paths):
            self.texts[b] = self.texts[b] + tree.tokens[b, p].tolist()

    def step(self) -> None:
        trees = self.grown([self.draw.randrange(1, 4) for _ in range(self.draw.randrange(4))])
        if self.draw.random() < 0.2:
            self.run(trees, whole=False)  # as an early exit does
        self.run(trees)  # as a drafter does
        if self.draw.random() < 0.7:
            self.run(trees[-1:])  # as verification does
        self.commit(trees[-1])

    def read(self, many: int | None = None) -> None:
        """A chain that is committed whatever is computed, as of a prompt."""
        many = many or self.draw.choice([3, 40, 50, 64, 80, 200])
        tokens = torch.tensor([[self.token() for _ in range(many)] for _ in self.texts])
        with self.cache.appending(many):
            self.run([Tree.chain(tokens)])
        self.texts = [text + new for text, new in zip(self.texts, tokens.tolist(), strict=True)]

    def drafted(self) -> None:
        """A chain of drafts that may be as long as a prompt; a backend runs it in parts, and some
        of it is accepted.
        """
        many = self.draw.choice([10, 30, 64, 100, 150])
        part = 64
        kept = self.draw.randrange(1, many + 1)
        tokens = torch.tensor([[self.token() for _ in range(many)] for _ in self.texts])
        self.run([Tree.chain(tokens[:, :end]) for end in [*range(part, many, part), many]])
        self.cache.length += kept
        self.texts = [
            text + new[:kept] for text, new in zip(self.texts, tokens.tolist(), strict=True)
        ]

    def rolled_back(self) -> None:
        before = list(self.texts)
        with self.cache.rollback():
            for _ in range(self.draw.randrange(1, 4)):
                self.step()
        self.texts = before

    def reopened(self) -> None:
        before = list(self.texts)
        count = self.draw.randrange(1, 30)
        if all(
            self.cache.row(b).resumable(max(len(t) - count, 0)) == max(len(t) - count, 0)
            for b, t in enumerate(before)
        ):
            with self.cache.reopen(count):
                self.texts = [t[: max(len(t) - count, 0)] for t in before]
                self.run(self.grown([2, 2]))
            self.texts = before

    def shortened(self) -> None:
        b = self.draw.randrange(len(self.texts))
        row = self.cache.row(b)
        length = len(self.texts[b])
        wanted = length - self.draw.randrange(min(length, self.draw.choice([100, length])) + 1)
        count = row.resumable(wanted)
        assert count == wanted or (count < wanted < max(len(self.texts[b]) - RECENT, self.since[b]))
        self.cut(count, b)

    def cut(self, count: int, b: int = 0) -> None:
        self.cache.row(b).truncate(count)
        self.texts[b] = self.texts[b][:count]
        self.since[b] = count

    def moved(self) -> None:
        source, to = self.draw.sample(range(len(self.texts)), 2)
        self.cache.move(source, to)
        self.texts[to], self.since[to] = list(self.texts[source]), self.since[source]

    def cleared(self) -> None:
        b = self.draw.randrange(len(self.texts))
        self.cache.row(b).clear()
        self.texts[b] = []
        self.since[b] = 0

    def resumed(self) -> None:
        """Another row begins with what one row's checkpoint has."""
        source, to = self.draw.sample(range(len(self.texts)), 2)
        count = len(self.texts[source]) // 8 * 8
        states = self.cache.row(source).states_at(count)
        if states is not None:
            self.cache.row(to).resume(count, states)
            self.texts[to] = self.texts[source][:count]
            self.since[to] = count

    def marked(self) -> None:
        before = list(self.texts)
        mark = self.cache.mark()
        for _ in range(3):
            self.step()
        self.cache.restore(mark)
        self.texts = before


def live(seed: int, steps: int = 30) -> None:
    """A random life of three rows; AssertionError where a node reads another state than its
    path's.
    """
    history = History(seed)
    history.read(history.draw.choice([1, 5, 70]))
    rare = [
        history.rolled_back,
        history.reopened,
        history.shortened,
        history.moved,
        history.cleared,
    ]
    rare += [history.resumed, history.marked, history.shortened, history.read, history.drafted]
    for _ in range(steps):
        history.step()
        if history.draw.random() < 0.5:
            history.draw.choice(rare)()


def edit(seed: int, steps: int = 40) -> None:
    """A random life of one row whose text is cut and goes on otherwise, again and again; errors as
    in `live`.
    """
    history = History(seed, rows=1, every=seed % 2 * 32)
    history.read(history.draw.choice([20, 100, 300]))
    for _ in range(steps):
        history.draw.choice(
            [history.shortened, history.shortened, history.read, history.drafted, history.step]
        )()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_a_node_reads_the_states_of_its_path(seed):
    live(seed)
    edit(seed)


@pytest.mark.full
@pytest.mark.parametrize(
    "seed", [*range(4, 12), *(pytest.param(n, marks=pytest.mark.weekly) for n in range(12, 60))]
)
def test_a_node_reads_the_states_of_its_path_in_many_histories(seed):
    live(seed, 60)
    edit(seed, 100)


def cut_twice(first: int, second: int) -> None:
    """A text is cut after `first` tokens and goes on with others, and so again where it was the
    same for `second`.
    """
    history = History(first, rows=1, every=64)
    history.read(64)
    history.read(64)
    history.cut(history.cache.row(0).resumable(first))
    history.read(65)
    history.cut(history.cache.row(0).resumable(len(history.texts[0]) - 65 + second))
    history.read(20)
    history.step()


@pytest.mark.parametrize("second", [1, 4, 20, 32, 33, 50])
def test_a_text_is_cut_twice(second):
    for first in range(96, 128, 5):
        cut_twice(first, second)


def too_many(monkeypatch):
    """A state is replayed with one token too many."""
    create = RowPlan.__init__

    def wrong(self, *given):
        create(self, *given)
        if self.stops and self.whole:
            self.kept = (self.kept[0] + 1, *self.kept[1:])

    monkeypatch.setattr(RowPlan, "__init__", wrong)


def swapped(monkeypatch):
    """The states of a border are those of the pass's other stop."""
    finish = RecurrentPass.finish

    def wrong(self):
        self._kept = [{n: states[::-1] for n, states in kept.items()} for kept in self._kept]
        finish(self)

    monkeypatch.setattr(RecurrentPass, "finish", wrong)


def some_layers(monkeypatch):
    """A pass through some of the layers settles their states, and not the others'."""
    finish = RecurrentPass.finish

    def wrong(self):
        every = dict(self.cache.recurrences)
        for n in every.keys() - self._kept[0].keys():
            del self.cache.recurrences[n]
        finish(self)
        self.cache.recurrences.update(every)

    monkeypatch.setattr(RecurrentPass, "finish", wrong)


def sibling(monkeypatch):
    """A branch begins with what its sibling has left."""
    branches = RowPlan._branches

    def wrong(self):
        return [RowSegment(max(s.after, n - 1), s.tokens) for n, s in enumerate(branches(self))]

    monkeypatch.setattr(RowPlan, "_branches", wrong)


def no_left(monkeypatch):
    """A convolution forgets what is to the left of a pass."""
    monkeypatch.setattr(
        Convolution, "before", lambda self, state, x: x.new_zeros(self.size - 1, x.shape[1])
    )


def stale_tip(monkeypatch):
    """The end of the latest chain counts as committed, whatever was accepted of it."""
    adopt = RowStates.adopt

    def wrong(self, length, recurrences):
        if self.tip is not None and self.tip[0] > length > self.position:
            self.tip = (length, self.tip[1])
        adopt(self, length, recurrences)

    monkeypatch.setattr(RowStates, "adopt", wrong)


def refused(monkeypatch):
    """Inputs of accepted nodes stay where they were in the tree."""
    monkeypatch.setattr(RowStates, "compact", lambda self, start, path: None)


def beyond(monkeypatch):
    """What is committed inside a rollback stays in the states, and nobody compares their position
    with the length.
    """
    monkeypatch.setattr(
        RowStates, "floor", property(lambda self: None, lambda self, value: None), raising=False
    )
    adopt = RowStates.adopt

    def wrong(self, length, recurrences):
        self.position = min(self.position, length)
        adopt(self, length, recurrences)

    monkeypatch.setattr(RowStates, "adopt", wrong)


def neighbor(monkeypatch):
    """A border's checkpoint is another row's."""
    states_at = Rewinding.states_at

    def wrong(self, count):
        found = states_at(self, count)
        others = [row.checkpoints[count] for row in self._states if count in row.checkpoints]
        return found if found is None or not others else others[0]

    monkeypatch.setattr(Rewinding, "states_at", wrong)


def shared(monkeypatch):
    """Rows that were copied write their inputs to the same memory."""
    monkeypatch.setattr(RowStates, "copy", lambda self: self)


def later_checkpoints(monkeypatch):
    """A row that was shortened keeps the checkpoints of the text that it has left."""
    rewound = RowStates.rewound
    monkeypatch.setattr(
        RowStates,
        "rewound",
        lambda self, length: replace(rewound(self, length), checkpoints=self.checkpoints),
    )


def later_states(monkeypatch):
    """A row that was shortened keeps the latest states of the text that it has left."""
    rewound = RowStates.rewound
    monkeypatch.setattr(
        RowStates,
        "rewound",
        lambda self, length: replace(rewound(self, length), recent=self.recent),
    )


def stale_inputs(monkeypatch):
    """Behind what a long pass left out, inputs of refused nodes or of another text count as the
    row's.
    """
    open_ = RowStates.open
    monkeypatch.setattr(
        RowStates, "open", lambda self, begin, end, left_out=0: open_(self, begin + left_out, end)
    )


FAULTS = [
    too_many,
    swapped,
    some_layers,
    sibling,
    no_left,
    stale_tip,
    refused,
    beyond,
    neighbor,
    shared,
]
FAULTS += [later_checkpoints, later_states, stale_inputs]


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.whole
def test_wrong_states_would_be_noticed(fault, monkeypatch):
    """By a node that reads another state: an error of the library's own would be no proof that the
    tests compare.
    """
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(12):
            edit(seed)
            live(seed)


def random_inputs(kind: str, count: int) -> tuple[object, tuple[Tensor, ...], tuple[Tensor, ...]]:
    g = torch.Generator().manual_seed(count)

    def rand(*shape):
        return torch.randn(count, *shape, generator=g)

    if kind in ("delta", "channels"):
        decay = -rand(4).abs() if kind == "delta" else -rand(4, 8).abs()
        return (
            DeltaRule(True),
            (rand(2, 8) if kind == "delta" else rand(4, 8), rand(4, 6), decay, rand(4).sigmoid()),
            (rand(2, 8) if kind == "delta" else rand(4, 8),),
        )
    if kind == "additive":
        return Additive(), (-rand(4).abs(), rand(2, 8), rand(4, 6)), (rand(2, 8),)
    A = -torch.rand(4, 8, generator=g) if kind == "mamba" else -torch.rand(4, generator=g)
    return StateSpace(A), (rand(4, 6), rand(4).abs(), rand(1, 8)), (rand(1, 8),)


@pytest.mark.parametrize("kind", ["delta", "channels", "additive", "mamba", "mamba2"])
def test_any_split_of_a_chain_has_the_same_bits(kind):
    """One token, several, all of them, and a replay: one order of the same arithmetic."""
    scan, inputs, queries = random_inputs(kind, 12)
    whole, end = scan.run(None, inputs, queries)
    for parts in ([1] * 12, [5, 7], [8, 1, 3]):
        state = None
        outputs = []
        begin = 0
        for n in parts:
            some = slice(begin, begin + n)
            replayed = scan.replay(state, tuple(x[some] for x in inputs))
            out, state = scan.run(
                state, tuple(x[some] for x in inputs), tuple(q[some] for q in queries)
            )
            assert torch.equal(replayed, state)
            outputs.append(out)
            begin += n
        assert torch.equal(torch.cat(outputs), whole) and torch.equal(state, end)


def test_a_prompt_that_is_not_committed_whole_is_an_error():
    history = History(0, rows=1)
    history.read(200)
    history.cache.length.fill_(7)
    history.texts = [history.texts[0][:7]]
    with pytest.raises(ValueError, match="a long pass is kept whole"):
        history.run(history.grown([]))


def test_a_row_is_not_shortened_by_its_length_alone():
    history = History(0, rows=1)
    history.read(20)
    history.step()
    history.cache.length -= 15
    with pytest.raises(ValueError, match="truncate"):
        history.run(history.grown([]))


def test_what_is_far_back_is_only_at_checkpoints():
    history = History(0, rows=1, every=64)
    for _ in range(60):
        history.read(10)
    row = history.cache.row(0)
    assert row.resumable(580) == 580 and row.resumable(300) == 256 and row.resumable(63) == 0
    assert row.earliest(300) == 320 and row.earliest(580) == 580
    with pytest.raises(ValueError, match="no state of 300 tokens"):
        row.truncate(300)


@pytest.mark.full
def test_memory_does_not_grow_with_the_text():
    """Inputs are kept for a while, and of states the present one and two earlier ones."""
    history = History(0, rows=1, every=0)
    for _ in range(100):
        history.read(20)
    row = history.cache.states(0)
    kept = sum(len(buffers[0]) for buffers in row._inputs.values())
    assert kept <= 2 * 2 * ROOM and len(row.recent) == 2 and not row.checkpoints
    assert recurrent_pass.LONG <= 2 * recurrent_pass.SCAN_CHUNK
