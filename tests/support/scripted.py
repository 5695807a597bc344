"""A server whose model says what a test wrote, in a chat template of the test's choice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import pytest
from support.served import loaded

from longdraft.engine.requests import Event
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.models.text import token_ids


class Script:
    """A stream whose text was written before. at_once: tokens of an event."""

    def __init__(self, text: str, ended: str, at_once: int = 3):
        tokens = [*token_ids(loaded()[1], text), 0]
        self.events = list[Event]()
        for low in range(0, len(tokens), at_once):
            part = tokens[low : low + at_once]
            logprobs = [TokenLogprobs(token, -1.0, []) for token in part]
            self.events.append(
                Event(1, part, ended if low + at_once >= len(tokens) else None, logprobs=logprobs)
            )

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            yield event

    def close(self) -> None:
        pass


@pytest.fixture
def says(server, monkeypatch):
    """Makes the model use a template and, if a text is given, say it. What it is asked is kept in
    the list.
    """
    asked = list[dict[str, Any]]()

    def use(
        template: str, text: str | None = None, ended: str = "eos", at_once: int = 3
    ) -> list[dict[str, Any]]:
        tokenizer = deepcopy(loaded()[1])
        tokenizer.chat_template = template
        monkeypatch.setattr(server.service, "tokenizer", tokenizer)
        if text is not None:
            submit = lambda **given: asked.append(given) or Script(text, ended, at_once)  # noqa: E731
            monkeypatch.setattr(server.engine, "submit", submit)
        return asked

    return use
