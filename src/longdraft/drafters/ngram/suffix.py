"""SuffixDecoding: drafts copied from earlier text, weighted by how often each continuation
occurred.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil

from longdraft.core import Captures, DraftLimits, Sequences, Tree, Verdict, without
from longdraft.drafters.base import Drafter
from longdraft.drafters.ngram.price import SuffixPrice

# last tokens of a sequence that are matched again when the memory of earlier outputs has grown
REMATCHED_TOKENS = 256
# limits the work per token: in a run of one token, every position ends as many repeats as precede
# it
NESTED = 64


class Automaton:
    """A suffix automaton: a state is the set of substrings with the same end positions; state 0 is
    the empty string.

    next[s]: token -> the state of those substrings with the token appended. link[s]: the state of
    the longest suffix with more end positions. count[s]: number of end positions, kept for the
    NESTED longest repeated suffixes of every position. It is built token by token, with at most two
    new states and amortized constant time each.
    """

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.count = [0]
        self.last = 0

    def _state(self, length: int, link: int, moves: dict[int, int], count: int) -> int:
        self.next.append(moves)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        return len(self.next) - 1

    def extend(self, token: int) -> None:
        new = self._state(self.length[self.last] + 1, 0, {}, 0)
        state = self.last
        self.last = new
        while state >= 0 and token not in self.next[state]:
            self.next[state][token] = new
            state = self.link[state]
        if state >= 0:
            self.link[new] = self._ending(state, token)
        for _ in range(NESTED):
            if new <= 0:
                break
            self.count[new] += 1
            new = self.link[new]

    def _ending(self, state: int, token: int) -> int:
        """The state whose longest string is that of `state`, then token; split from a longer one's
        if necessary.
        """
        reached = self.next[state][token]
        if self.length[reached] == self.length[state] + 1:
            return reached
        copy = self._state(
            self.length[state] + 1,
            self.link[reached],
            dict(self.next[reached]),
            self.count[reached],
        )
        self.link[reached] = copy
        while state >= 0 and self.next[state].get(token) == reached:
            self.next[state][token] = copy
            state = self.link[state]
        return copy

    def repeated(self) -> tuple[int, int]:
        """State and length of the longest suffix that occurred earlier."""
        state = max(self.link[self.last], 0)
        return state, self.length[state]

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """State and length of the longest known suffix of: the string of `state` with this length,
        then token.
        """
        while state and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        reached = self.next[state].get(token)
        return (0, 0) if reached is None else (reached, length + 1)

    def likely(
        self, state: int, nodes: int, depth: int, min_probability: float
    ) -> list[tuple[int, int]]:
        """The `nodes` likeliest continuations of a state as a tree: pairs (parent, token), parent 0
        for the state.

        A continuation's probability is the product of relative counts along its path, at least
        min_probability.
        """
        drafted: list[tuple[int, int]] = []
        # -probability, level, parent, token, state
        heap: list[tuple[float, int, int, int, int]] = []

        def offer(state: int, parent: int, probability: float, level: int) -> None:
            share = probability / max(sum(self.count[n] for n in self.next[state].values()), 1)
            for token, reached in self.next[state].items():
                if share * self.count[reached] >= min_probability:
                    heappush(heap, (-share * self.count[reached], level, parent, token, reached))

        offer(state, 0, 1.0, 1)
        while heap and len(drafted) < nodes:
            loss, level, parent, token, reached = heappop(heap)
            drafted.append((parent, token))
            if level < depth:
                offer(reached, len(drafted), -loss, level + 1)
        return drafted


class Recent:
    """An automaton over the latest tokens of a stream: at least `most`, fewer than 2 * `most`."""

    def __init__(self, most: int):
        self.most = most
        self.tokens = []
        self.index = Automaton()
        self.seen = 0

    def extend(self, tokens: list[int]) -> None:
        self.seen += len(tokens)
        if len(self.tokens) + len(tokens) >= 2 * self.most:
            tokens = (self.tokens + tokens)[-self.most :]
            self.tokens = []
            self.index = Automaton()
        self.tokens += tokens
        for token in tokens:
            self.index.extend(token)


class _Row(Recent):
    """A row's latest tokens, its output, and its longest suffix that earlier outputs have (state,
    length).
    """

    def __init__(self, most: int):
        super().__init__(most)
        self.output: list[int] = []
        self.matched = (0, 0)

    def match(self, memory: Recent, tokens: list[int]) -> None:
        for token in tokens:
            self.matched = memory.index.follow(*self.matched, token)


class Suffix(Drafter):
    """Drafts a tree of what followed the longest suffix that occurred before, in this sequence or
    in earlier outputs.

    nodes: most nodes of a tree; a match of m tokens allows `factor` * m (SuffixDecoding sec. 3.2).
    min_probability: the least probability of a node. most: latest tokens of the sequence that are
    indexed. earlier: tokens of earlier outputs that are kept (0: none, so that drafts depend on the
    sequence alone).
    """

    name = "n-grams"

    def __init__(
        self,
        nodes: int = 16,
        factor: float = 2.0,
        min_probability: float = 0.1,
        most: int = 1 << 16,
        earlier: int = 0,
    ):
        self.nodes = nodes
        self.factor = factor
        self.min_probability = min_probability
        self.most = most
        self.max_depth = nodes
        self.memory = Recent(earlier) if earlier else None
        self.rows: list[_Row] = []

    def start(self, seqs: Sequences) -> None:
        for row in self.rows:
            self._remember(row.output)
        self.rows = [_Row(self.most) for _ in range(len(seqs.length))]

    def _remember(self, output: list[int]) -> None:
        if self.memory is not None:
            # a separator that occurs only once
            self.memory.extend([*output, -1 - self.memory.seen])

    def enter(self, seqs: Sequences, row: int) -> None:
        self.rows.append(_Row(self.most))

    def leave(self, seqs: Sequences, row: int) -> None:
        """The row's output joins the earlier outputs, also for the rows that remain."""
        output = self.rows[row].output
        self.rows = without(self.rows, row)
        if self.memory is not None and output:
            self._remember(output)
            for kept in self.rows:
                kept.matched = (0, 0)
                kept.match(self.memory, kept.tokens[-REMATCHED_TOKENS:])

    def ready(self, seqs: Sequences) -> None:
        for b, (row, prompt) in enumerate(zip(self.rows, seqs.prompt.tolist(), strict=True)):
            new = seqs.tokens[b, row.seen : int(seqs.length[b])].tolist()
            if self.memory is not None:
                row.output += new[max(prompt - row.seen, 0) :]
                row.match(self.memory, new)
            row.extend(new)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        if self.memory is not None:  # so that outputs are complete, whether or not drafts were made
            self.ready(seqs)

    def price(self) -> SuffixPrice:
        return SuffixPrice(max_depth=self.max_depth, most=self.nodes)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        self.ready(seqs)
        rows = [
            [] if done else self._draft(b, limits.depth)
            for b, done in enumerate(seqs.done.tolist())
        ]
        return tree.add_below_root(rows, limits.width)

    def best(self, b: int, count: int) -> list[int]:
        """The likeliest continuation of row b, token by token: at most `count` tokens, as many as
        its tree is deep.
        """
        path = []
        node = 0
        for i, (parent, token) in enumerate(self._draft(b, count), 1):
            if parent == node:
                path.append(token)
                node = i
        return path

    def _draft(self, b: int, room: int) -> list[tuple[int, int]]:
        index = self.rows[b].index
        matched = self.rows[b].matched
        state, length = index.repeated()
        if self.memory is not None and matched[1] > length:
            index, (state, length) = self.memory.index, matched
        nodes = ceil(min(self.nodes, self.factor * length))
        drafts = index.likely(state, nodes, room, self.min_probability) if nodes and room else []
        return _without_separators(drafts)


def _without_separators(drafts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop the separators between earlier outputs and what was drafted after them."""
    place = {0: 0}
    kept = []
    for i, (parent, token) in enumerate(drafts, 1):
        if token >= 0 and parent in place:
            kept.append((place[parent], token))
            place[i] = len(kept)
    return kept
