"""Counts of a request's accepted drafts, in the names of vLLM's per-request metrics.

The object is `metrics.speculative_decoding` of vLLM 0.29 to 0.32 (its pull request 48915): the same
fields in the same place of a response, so that a client that reads vLLM's, such as AIPerf, reads
ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class AcceptanceCounts:
    """Counts of the steps that verified a draft; a step without a draft does not count.

    histogram[n]: steps that accepted n draft tokens. drafted: the depths of all drafts, summed;
    deepest: the largest.
    """

    histogram: Counter[int] = field(default_factory=Counter)
    drafted: int = 0
    deepest: int = 0

    def add(self, drafted: int, accepted: int) -> None:
        """Count a step whose draft was `drafted` tokens deep, `accepted` of which were accepted."""
        if drafted:
            self.histogram[accepted] += 1
            self.drafted += drafted
            self.deepest = max(self.deepest, drafted)

    @property
    def steps(self) -> int:
        return self.histogram.total()

    @property
    def accepted(self) -> int:
        return sum(n * steps for n, steps in self.histogram.items())

    def metrics(self) -> dict[str, Any]:
        """The fields of vLLM.

        num_spec_tokens, the configured depth there, is the deepest draft: ours vary in depth.
        """
        steps = self.steps
        accepted = self.accepted
        return {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / self.drafted if self.drafted else 0.0,
            "acceptance_histogram": [self.histogram[n] for n in range(self.deepest + 1)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": self.drafted,
            "num_spec_tokens": self.deepest,
        }
