"""The base of drafters that are made of other drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from longdraft.core import (
    Captures,
    CaptureSpec,
    KVView,
    PromptSpec,
    Sequences,
    Tree,
    Verdict,
    Verifier,
)
from longdraft.costs.passes import Pass
from longdraft.drafters.base import Drafter
from longdraft.drafters.price import DraftPrice, SumOfPrices

D = TypeVar("D", bound=Drafter)


class Combined(Drafter, Generic[D]):
    """Made of other drafters: whatever changes or reads their state is done for all of them, in
    order.
    """

    drafters: Sequence[D]

    def combine(self, drafters: Sequence[D]) -> None:
        """Be made of these drafters; called once."""
        self.drafters = drafters
        self.lasts = max(d.lasts for d in drafters)
        self.renews = any(d.renews for d in drafters)

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

    def verified_by(self, verify: Verifier) -> None:
        for d in self.drafters:
            d.verified_by(verify)

    def start(self, seqs: Sequences) -> None:
        for d in self.drafters:
            d.start(seqs)

    def price(self) -> DraftPrice:
        parts = [d.price() for d in self.drafters]
        return parts[0] if len(parts) == 1 else SumOfPrices.of(parts, self.max_depth)

    def to_read(self, seqs: Sequences) -> list[Pass]:
        return [work for d in self.drafters for work in d.to_read(seqs)]

    def choosing(self) -> CaptureSpec:
        specs = [spec for spec in (d.choosing() for d in self.drafters) if spec.rows or spec.hidden]
        return specs[0] if specs else CaptureSpec()

    def stay(self, steps: int) -> None:
        for d in self.drafters:
            d.stay(steps)
        self.lasts = max(d.lasts for d in self.drafters)

    def enter(self, seqs: Sequences, row: int) -> None:
        for d in self.drafters:
            d.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        for d in self.drafters:
            d.leave(seqs, row)

    def idle(self) -> None:
        for d in self.drafters:
            d.idle()

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        for d in self.drafters:
            d.update(seqs, tree, verdict, captured)
