"""vLLM's scheduler with room for drafts that the target makes in its own cache."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class LookaheadScheduler(Scheduler):
    """Every running request has slots for the drafts of its next step, as for a draft model."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.num_lookahead_tokens = self.num_spec_tokens
