"""vLLM's scheduler with room for drafts that the target makes in its own cache."""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler


class LookaheadScheduler(Scheduler):
    """Every running request has slots for the drafts of its next step, as with a draft model."""

    @property
    def num_lookahead_tokens(self) -> int:
        return self.num_spec_tokens

    @num_lookahead_tokens.setter
    def num_lookahead_tokens(self, value: int) -> None:
        """vLLM's own number, which is 0 for a method that it does not know."""
