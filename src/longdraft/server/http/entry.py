"""A request while it is answered: its id, and what the log will say of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from longdraft.server.decode.reply import Reply


class Answered(Protocol):
    """What the log needs of an answer. first_s: until the first tokens, of which there were
    `first_tokens`.
    """

    @property
    def prompt_tokens(self) -> int: ...

    replies: list[Reply]
    first_s: float | None
    first_tokens: int
    took_s: float | None


@dataclass
class Entry:
    """Every id of a request ends with its name. reason: the code of the error that ended it.

    warnings: what the answer does not keep of what was asked, in ASCII; a header has them.
    """

    name: str = field(default_factory=lambda: uuid4().hex)
    id: str = ""
    reason: str | None = None
    answers: list[Answered] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def identify(self, kind: str) -> str:
        """Its id, which begins with a kind."""
        self.id = f"{kind}{self.name}"
        return self.id


ENTRY: ContextVar[Entry | None] = ContextVar("entry", default=None)


def current() -> Entry:
    """The request that is being answered; outside a server, one that nobody reads."""
    return ENTRY.get() or Entry()


def figures(answers: Sequence[Answered]) -> dict[str, Any]:
    """What a request's answers cost: tokens, times and acceptance, of all choices together."""
    if not answers:
        return {}
    replies = [r for a in answers for r in a.replies]
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
    return {
        "prompt_tokens": sum(a.prompt_tokens for a in answers),
        "cached_tokens": sum(max((r.known for r in a.replies), default=0) for a in answers),
        "new_tokens": written,
        "choices": len(replies),
        "first_token_s": first,
        "tokens_per_s": later / (end - first)
        if first is not None and end > first and later > 0
        else None,
        "mean_acceptance_length": 1 + sum(r.drafts.accepted for r in replies) / steps
        if steps
        else None,
        "finish": ",".join(sorted({r.finish or "abort" for r in replies})),
    }
