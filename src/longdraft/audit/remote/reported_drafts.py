"""Draft tokens that a server reports in its answers: whether speculation ran, and where."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from longdraft.audit.remote.endpoint import EndpointReply


@dataclass
class ReportedDrafts:
    """Sums over the answers of one kind of request.

    `reporting` counts the answers that have a number of drafted tokens at all.
    """

    answers: int = 0
    reporting: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, reply: EndpointReply) -> None:
        """Count an answer."""
        self.answers += 1
        if reply.drafts is not None:
            self.reporting += 1
            self.drafted += reply.drafts[0]
            self.accepted += reply.drafts[1]

    @property
    def none(self) -> bool:
        """Whether every answer reports that nothing was drafted."""
        return 0 < self.reporting == self.answers and not self.drafted


@dataclass
class SpeculationSeen:
    """Drafts by plain decoding, and by the audited server for each kind of request: greedy, sampled
    with log-probabilities (scored) and without (silent).
    """

    plain: ReportedDrafts = field(default_factory=ReportedDrafts)
    greedy: ReportedDrafts = field(default_factory=ReportedDrafts)
    scored: ReportedDrafts = field(default_factory=ReportedDrafts)
    silent: ReportedDrafts = field(default_factory=ReportedDrafts)

    @property
    def problems(self) -> list[str]:
        """Reasons why equal answers say nothing about speculation."""
        if self.plain.drafted:
            return [
                f"Plain decoding reports {self.plain.drafted} drafted tokens: speculation was not "
                "off, so the server was compared with itself. Give another --off, or a --baseline."
            ]
        if self.greedy.none and not self.scored.drafted and not self.silent.drafted:
            return ["The audited server reports no drafted tokens: no speculation was audited."]
        return []

    @property
    def limits(self) -> list[str]:
        """Results that say less than they seem to."""
        drafted = self.greedy.drafted or self.silent.drafted
        if drafted and self.scored.none:
            return [
                "The audited server reports no drafted tokens for requests with log-probabilities: "
                "tests by rank say nothing about its drafts."
            ]
        return []

    def record(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {"problems": self.problems}


def sentence(found: dict[str, Any]) -> str | None:
    """The record's numbers of the audited server, if it reports any."""
    kinds = {
        "greedy": "greedy",
        "scored": "sampled with log-probabilities",
        "silent": "sampled without",
    }
    parts = [
        f"{found[kind]['drafted']} ({found[kind]['accepted']}) in {found[kind]['answers']} "
        f"answers {name}"
        for kind, name in kinds.items()
        if found[kind]["reporting"]
    ]
    if not parts:
        return None
    return f"Drafted (accepted) tokens that the audited server reports: {', '.join(parts)}."
