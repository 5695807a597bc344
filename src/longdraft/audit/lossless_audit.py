"""Checks that a method is lossless on a model and texts.

Every difference from plain decoding is found and explained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from longdraft.audit.audit_plan import AuditPrompt, DecodingWay
from longdraft.audit.passage import Comparison, Passage
from longdraft.audit.ties import WIDTH
from longdraft.core.verify import Verifier, match
from longdraft.drafters import Drafter, PlainDecoding
from longdraft.engine import generate as engine
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.prompts.prompt_file import PromptFiles


@dataclass
class Audit:
    """Decodes each prompt in each way: plainly, and with a new drafter that `build` makes.

    tolerance: the largest difference of two logits that counts as a tie; 0: every difference is a
    failure. Where ties are allowed, plain decoding is also compared with itself in passes of WIDTH
    tokens: this control shows how often rounding alone produces ties (ties.py). kept: where prompts
    are kept.
    """

    target: LM
    build: Callable[[], Drafter]
    prompts: list[AuditPrompt]
    ways: list[DecodingWay]
    tolerance: float
    verify: Verifier | None = None
    kept: PromptFiles | None = None

    def check(self) -> None:
        """Raises InputError for arguments that would fail later."""
        if not self.tolerance >= 0:
            raise InputError(f"tolerance is {self.tolerance}: give 0 or more")
        for p in self.prompts:
            engine.check(self.target, [p.tokens], p.new, PlainDecoding(), match)
        self.build()

    def cost(self, prompt: AuditPrompt) -> int:
        """The progress steps of one prompt decoded in one way."""
        return 2 * prompt.new + (-(-prompt.new // WIDTH) if self.tolerance else 0)

    @property
    def steps(self) -> int:
        return len(self.ways) * sum(map(self.cost, self.prompts))

    def run(
        self, tick: Callable[[int, str], None], known: Callable[[int, str], bool]
    ) -> Iterator[dict[str, Any]]:
        """Yields one record per prompt and way that is not known yet.

        After an interrupt, the unfinished one is yielded too.
        """
        for i, prompt in enumerate(self.prompts):
            passage: Passage | None = None
            for way in self.ways:
                if known(i, str(way)):
                    tick(self.cost(prompt), "")
                    continue
                tick(0, f"{prompt.name} {way}")
                if passage is None or passage.damaged:
                    passage = Passage(
                        self.target, prompt, self.build, self.tolerance, self.verify, self.kept
                    )
                comparison = Comparison(prompt, i, way)
                try:
                    passage.compare(comparison, lambda n: tick(n, ""))
                except KeyboardInterrupt:
                    comparison.interrupted = True
                yield comparison.record()
                if comparison.interrupted:
                    raise KeyboardInterrupt
