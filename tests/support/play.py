"""Plays adaptive drafting without a model: a script says which drafts are right, and decisions are
written down.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import torch
from support import tiny

from longdraft.core import UNBOUNDED, Captures, CaptureSpec, DraftLimits, Tree, Verdict, reject
from longdraft.drafters import AdaptiveDraft, Drafter
from longdraft.drafters.adaptive.decision import CaptureOnly, Draft, Plain, Undecided
from longdraft.drafters.price import DraftPrice


@dataclass(frozen=True, kw_only=True)
class BushPrice(DraftPrice):
    """The size of a draft with up to `wide` nodes on each level."""

    wide: int = 1

    def levels(self, depth: int, width: int) -> list[int]:
        return [min(self.wide, width)] * min(depth, self.max_depth)


# (step, row) -> how many levels of a full draft would be accepted
Right = Callable[[int, int], int]


class Scripted(Drafter):
    """Drafts `wide` nodes on each level, of which the one at place `rank` may be right.

    usual, finds, rough: of its price. there: by step, how deep what is there to draft is. took:
    seconds of a level. fields: others of Drafter.
    """

    def __init__(
        self,
        depth=7,
        wide=1,
        rank=0,
        usual=(0.8, 0.8),
        finds=1.0,
        rough=False,
        spec=None,
        took=0.0,
        **fields,
    ):
        self.max_depth = depth
        self.wide = wide
        self.rank = rank
        self.expected = {"usual": usual, "finds": finds, "rough": rough}
        self.spec = spec or CaptureSpec()
        self.took = took
        self.is_chain = wide == 1
        self.there: Callable[[int], int] = lambda step: UNBOUNDED
        self.step = 0
        self.stays = 1
        for name, value in fields.items():
            setattr(self, name, value)

    def captures(self):
        return self.spec

    def choosing(self):
        return self.spec

    def stay(self, steps):
        self.stays = steps
        self.lasts = steps

    def enter(self, seqs, row): ...

    def leave(self, seqs, row): ...

    def price(self):
        return BushPrice(max_depth=self.max_depth, wide=self.wide, **self.expected)

    def grow(self, tree, seqs, limits):
        below = 0
        wide = min(self.wide, limits.width)
        rows = len(seqs.length)
        for _ in range(min(self.max_depth, limits.depth, self.there(self.step))):
            first = tree.size
            tree = tree.grow(torch.full((rows, wide), below), torch.zeros(rows, wide).long())
            below = first + min(self.rank, wide - 1)
        self.clock(self.took * (int(tree.depth.max())))
        return tree

    def clock(self, seconds): ...


class Play:
    """A text that is decoded step by step. right: see Right; it may be changed between steps.

    clock, rates: what is told the seconds of a verification, and those without a draft and for each
    node.
    """

    def __init__(self, drafter: AdaptiveDraft, right: Right, rows: int = 1, slots: int = 1000):
        self.drafter = drafter
        self.right = right
        self.slots = slots
        self.words: list[str] = []
        self.steps = 0
        self.limits = DraftLimits()
        self.rejects = False
        self.greedy = True
        self.clock: Callable[[float], None] = lambda seconds: None
        self.rates = (1.0, 0.0)
        self.begin(rows)

    def _rows(self, lengths: list[int], prompts: list[int], done: list[bool]) -> None:
        length = torch.tensor(lengths, dtype=torch.long)
        self.seqs: Any = SimpleNamespace(
            length=length,
            cache=SimpleNamespace(length=length),
            prompt=torch.tensor(prompts, dtype=torch.long),
            limit=torch.full((len(lengths),), 4000),
            done=torch.tensor(done, dtype=torch.bool),
            deepest=[UNBOUNDED] * len(lengths),
            sampler=SimpleNamespace(greedy=self.greedy, constrained=False),
        )

    def begin(self, rows: int = 1, told: bool = False) -> None:
        """Another text, or at first no rows. told: that verify=reject is used."""
        self._rows([self.slots] * rows, [self.slots] * rows, [False] * rows)
        if told:
            self.drafter.verified_by(reject)
        self.drafter.start(self.seqs)
        self.words.append(f"begin{rows}({forecast(self.drafter)})")
        self.fresh = True

    @property
    def _state(self) -> list[list]:
        return [x.tolist() for x in (self.seqs.length, self.seqs.prompt, self.seqs.done)]

    def enter(self) -> None:
        lengths, prompts, done = self._state
        self._rows([*lengths, self.slots], [*prompts, self.slots], [*done, False])
        self.drafter.enter(self.seqs, len(lengths))
        self.words.append(f"enter({forecast(self.drafter)})")
        self.fresh = True

    def leave(self, row: int) -> None:
        keep = self._state
        for values in keep:
            last = values.pop()
            if row < len(values):
                values[row] = last
        self._rows(*keep)
        self.drafter.leave(self.seqs, row)
        self.words.append("leave")

    def run(self, steps: int, idle: Callable[[int], bool] = lambda step: False) -> Play:
        """idle: steps in which something else drafts."""
        for _ in range(steps):
            self._step(idle(self.steps))
            self.steps += 1
        return self

    def _step(self, idle: bool) -> None:
        rows = len(self.seqs.length)
        self.drafter.inner.step = self.steps
        tree = Tree.root(torch.zeros(rows).long())
        if self.rejects:
            tree = tree.with_draft_probs(0, torch.zeros(rows, 1, 4))
        if not self.fresh:
            tree = self.drafter.grow(tree, self.seqs, self.limits)
            if idle:
                tree = Tree.chain(torch.zeros(rows, 3).long())
                self.drafter.idle()
        self.fresh = False
        captured = Captures(self.drafter.captures())
        captured.target = tiny.target("llama")
        self.words.append(word(self.drafter, captured.spec, int(tree.depth.max())))
        verdict = self._verdict(tree)
        self.seqs.length += verdict.count
        self.clock(self.rates[0] + self.rates[1] * (tree.size - 1))
        self.drafter.update(self.seqs, tree, verdict, captured)

    def _verdict(self, tree: Tree) -> Verdict:
        rows = len(self.seqs.length)
        depth = tree.depth[0].tolist()
        counts = [depth.count(d) for d in range(max(depth) + 1)]
        inner = self.drafter.inner
        path = [depth.index(d) + min(inner.rank, n - 1) for d, n in enumerate(counts)]
        right = inner.rank < max(counts) or len(counts) == 1
        good = [self.right(self.steps, b) if right else 0 for b in range(rows)]
        count = torch.tensor([1 + min(n, len(counts) - 1) for n in good])
        return Verdict(torch.tensor([path] * rows), count, torch.zeros(rows, len(path)))

    def text(self) -> str:
        found = []
        for same, group in groupby(self.words):
            count = len(list(group))
            found.append(same if count == 1 else f"{same}*{count}")
        return " ".join([*found, known(self.drafter)])


def forecast(drafter: Drafter) -> str:
    return "none" if drafter.forecast is None else f"{drafter.forecast:.6g}"


def word(d: AdaptiveDraft, spec: CaptureSpec, depth: int) -> str:
    looks = "'" if spec.rows or spec.hidden else ""
    stays = f"@{d.inner.stays}" if d.inner.renews else ""
    return f"{decision(d, depth)}{looks}{stays}"


def decision(d: AdaptiveDraft, depth: int) -> str:
    """depth: what the draft has."""
    made = d.step.decision
    if isinstance(made, Undecided):
        return "?" if made.captures else "_"
    if isinstance(made, Draft):
        wide = "" if made.width == UNBOUNDED else f"x{made.width}"
        return f"{made.depth}{wide}" + ("" if depth == made.depth else f"/{depth}")
    return {Plain: ".", CaptureOnly: "c"}[type(made)]


def known(d: AdaptiveDraft) -> str:
    budget = d.pace.budget
    debt = f"debt {budget.debt:.6g} tokens {budget.tokens:.6g} off {d.pace.pause.left}"
    return f"{debt} seen {d.pace.acceptance.asked:.6g} drafts {d.drafts}"


def coin(seed: int, share: float, most: int = 7) -> Right:
    """Each token is right with this probability."""
    draw = random.Random(seed)

    def right(step: int, row: int) -> int:
        n = 0
        while n < most and draw.random() < share:
            n += 1
        return n

    return right
