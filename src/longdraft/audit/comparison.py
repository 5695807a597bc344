"""The result of comparing a method with plain decoding on one prompt."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from longdraft.audit.plan import Prompt, Way
from longdraft.engine.generate import Stats
from longdraft.engine.measure import diversity


@dataclass
class Tally:
    """How many of plain decoding's tokens were compared so far, and every difference found."""

    tokens: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    @property
    def ties(self) -> int:
        return sum(d["kind"] == "tie" for d in self.found)

    @property
    def failures(self) -> int:
        return len(self.found) - self.ties


@dataclass
class Comparison:
    """One prompt decoded in one way: plainly, again in wider passes (the control), and by the method."""

    prompt: Prompt
    index: int
    way: Way
    plain: list[int] = field(default_factory=list)
    method: Tally = field(default_factory=Tally)
    control: Tally = field(default_factory=Tally)
    interrupted: bool = False

    def record(self) -> dict[str, Any]:
        found, stats = self.method, self.method.stats
        return {
            "index": self.index,
            "prompt": self.prompt.name,
            "prompt_tokens": len(self.prompt.tokens),
            "way": str(self.way),
            "sampler": asdict(self.way.sampler),
            "seed": self.way.seed,
            "tokens": found.tokens,
            "differences": len(found.found),
            "ties": found.ties,
            "failures": found.failures,
            "found": found.found,
            "control_tokens": self.control.tokens,
            "control_ties": self.control.ties,
            "control_failures": self.control.failures,
            "verify_steps": stats.steps,
            "accepted": sum(stats.accepted),
            "mean_acceptance_length": stats.mean_acceptance_length,
            "acceptance_per_position": stats.acceptance_per_position,
            **diversity([self.plain]),
            **({"interrupted": True} if self.interrupted else {}),
        }
