"""A task: a document, and what is asked about it in one or several turns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

Message = dict[str, str]


@dataclass(frozen=True)
class Task:
    """A conversation. Its first message has the document between `before` and `after`, then
    turns[0]; next, turns[1:].

    Only the document may be shortened (Fitting). kind: the row of a report that it belongs to.
    instance: its name within the suite. new_tokens: the most for each answer; None: the caller's
    default. sources: the files that it was made from, by name and sha256.
    """

    kind: str
    instance: str
    turns: tuple[str, ...]
    document: str = ""
    before: str = ""
    after: str = "\n\n"
    new_tokens: int | None = None
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def opening(self) -> str:
        """The first message."""
        return (
            f"{self.before}{self.document}{self.after}{self.turns[0]}"
            if self.document
            else self.turns[0]
        )

    def messages(self, answers: list[str]) -> list[Message]:
        """The conversation after these answers, up to the next question."""
        chat = [{"role": "user", "content": self.opening}]
        for answer, turn in zip(answers, self.turns[1:], strict=False):
            chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        return chat

    def with_document(self, document: str) -> Task:
        return replace(self, document=document)

    def fields(self) -> dict[str, Any]:
        """The fields of a record about it."""
        sources = [{"name": name, "sha256": sha256} for name, sha256 in self.sources]
        return {
            "kind": self.kind,
            "instance": self.instance,
            "turns": len(self.turns),
            "sources": sources,
        }


def sha256(text: str) -> str:
    """The digest of its UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
