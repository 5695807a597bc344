"""The base of drafters that are made of other drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from longdraft.core import Captures, KVView, PromptSpec, Sequences, Tree, Verdict
from longdraft.drafters.base import Drafter

D = TypeVar("D", bound=Drafter)


class Combined(Drafter, Generic[D]):
    """Made of other drafters: whatever changes or reads their state is done for all of them, in order."""

    drafters: Sequence[D]

    def proposed_by(self, node: int) -> str:
        return self.drafters[0].proposed_by(node)

    def view_read(self) -> KVView | None:
        return next((view for d in self.drafters if (view := d.view_read()) is not None), None)

    def prompt_captures(self) -> PromptSpec:
        return PromptSpec.union(d.prompt_captures() for d in self.drafters)

    def rewind(self, seqs: Sequences) -> None:
        for d in self.drafters:
            d.rewind(seqs)

    def ready(self, seqs: Sequences) -> None:
        for d in self.drafters:
            d.ready(seqs)

    def start(self, seqs: Sequences) -> None:
        for d in self.drafters:
            d.start(seqs)

    def reads(self, seqs: Sequences, depth: int) -> float:
        return sum(d.reads(seqs, depth) for d in self.drafters)

    def least_cost(self, seqs: Sequences) -> float:
        return max(d.least_cost(seqs) for d in self.drafters)

    def enter(self, seqs: Sequences, row: int) -> None:
        for d in self.drafters:
            d.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        for d in self.drafters:
            d.leave(seqs, row)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        for d in self.drafters:
            d.update(seqs, tree, verdict, captured)
