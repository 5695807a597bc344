"""A request while it is answered: its id, and the facts that the log will report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol
from uuid import uuid4

from longdraft.server.decode.reply import Reply

USABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_IGNORED = 16  # names that are reported


class Answered(Protocol):
    """The parts of an answer that the log needs.

    first_s: until the first tokens, of which there were `first_tokens`.
    """

    @property
    def prompt_tokens(self) -> int: ...

    replies: list[Reply]
    first_s: float | None
    first_tokens: int
    took_s: float | None


@dataclass
class Entry:
    """A request in the log; every id of the request ends with its name.

    reason: the code of the error that ended it. warnings: the parts of the request that the answer
    does not follow, in ASCII; a header has them. strict: unknown fields are errors. ignored: the
    names of fields that had no effect. method: the name of the one that drafts for the answer.
    """

    name: str = field(default_factory=lambda: uuid4().hex)
    id: str = ""
    reason: str | None = None
    answers: list[Answered] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    strict: bool = False
    ignored: list[str] = field(default_factory=list)
    method: str | None = None

    def ignore(self, name: str) -> None:
        """Report that a field of the request has no effect.

        Names that a log line or a header could not hold are not repeated.
        """
        name = name if USABLE_NAME.fullmatch(name) else "(unnamed)"
        if name not in self.ignored and len(self.ignored) < MOST_IGNORED:
            self.ignored.append(name)

    def identify(self, kind: str) -> str:
        """Set and return its id, which begins with a kind."""
        self.id = f"{kind}{self.name}"
        return self.id


ENTRY: ContextVar[Entry | None] = ContextVar("entry", default=None)


def current() -> Entry:
    """The request that is being answered; outside a server, one that nobody reads."""
    return ENTRY.get() or Entry()


def figures(answers: Sequence[Answered]) -> dict[str, Any]:
    """The costs of a request's answers: tokens, times and acceptance, of all choices together."""
    if not answers:
        return {}
    replies = list(chain.from_iterable(answer.replies for answer in answers))
    written = sum(r.tokens for r in replies)
    steps = sum(r.drafts.steps for r in replies)
    times = [
        (a.first_s, a.took_s, a.first_tokens)
        for a in answers
        if a.first_s is not None and a.took_s is not None
    ]
    first = min((t[0] for t in times), default=None)
    end = max((t[1] for t in times), default=0.0)
    later = written - sum(t[2] for t in times)  # than the first, whose time was the prompt's
    tokens_per_s = None
    if first is not None and end > first and later > 0:
        tokens_per_s = later / (end - first)
    acceptance_length = None
    if steps:
        acceptance_length = 1 + sum(r.drafts.accepted for r in replies) / steps
    return {
        "prompt_tokens": sum(a.prompt_tokens for a in answers),
        "cached_tokens": sum(max((r.known for r in a.replies), default=0) for a in answers),
        "new_tokens": written,
        "choices": len(replies),
        "first_token_s": first,
        "tokens_per_s": tokens_per_s,
        "mean_acceptance_length": acceptance_length,
        "finish": ",".join(sorted({r.finish or "abort" for r in replies})),
    }
