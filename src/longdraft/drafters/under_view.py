"""The base of drafters that read the target's cache through a policy's view."""

from __future__ import annotations

from collections.abc import Sequence

from longdraft.core import Captures, CaptureSpec, KVView, Sequences, Tree, Verdict
from longdraft.drafters.base import Drafter
from longdraft.models.lm import LM
from longdraft.views.base import Policy


class UnderView(Drafter):
    """Drafts over a policy's view of the target's cache. widths: nodes per level ([1] * gamma is a
    chain).
    """

    def __init__(self, target: LM, policy: Policy, widths: Sequence[int]):
        self.target = target
        self.policy = policy
        self.widths = widths
        self.max_depth = len(widths)
        self.is_chain = set(widths) == {1}
        self.lasts = policy.lasts
        self.renews = policy.renews
        self._latest: KVView | None = None

    def look(self, seqs: Sequences) -> KVView | None:
        """The view for the draft that begins; `view_read` returns it until the next one."""
        self._latest = self.policy.view(seqs.cache)
        return self._latest

    def view_read(self) -> KVView | None:
        return self._latest

    def stay(self, steps: int) -> None:
        self.policy.stay(steps)
        self.lasts = self.policy.lasts

    def choosing(self) -> CaptureSpec:
        return self.policy.choosing()

    def captures(self) -> CaptureSpec:
        return self.policy.captures()

    def ready(self, seqs: Sequences) -> None:
        self.policy.ready(self.target, seqs.cache)

    def start(self, seqs: Sequences) -> None:
        self.policy.start(self.target, seqs.tokens, seqs.cache)

    def enter(self, seqs: Sequences, row: int) -> None:
        self.policy.enter(self.target, seqs.tokens, seqs.cache, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self.policy.leave(self.target, seqs.tokens, seqs.cache, row)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.policy.update(seqs.cache, captured)
