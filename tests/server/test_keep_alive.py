"""Streams of answers that are silent for long: a sign keeps the connection open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.scripted import Script
from support.served import CHAT

from longdraft.engine.requests import Event
from longdraft.server.http import events
from longdraft.server.http.events import kept_alive

COMMENT = ": keep-alive"
USER = [{"role": "user", "content": "Hello"}]
SENT = {
    "/v1/completions": {"prompt": "Hello"},
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": USER, "max_tokens": 20},
    "/api/chat": {"messages": USER},
}


@pytest.mark.parametrize("fault", [False, True])
def test_silence_is_filled(fault, monkeypatch):
    """The events end only after three silences; with none of them, they would not end."""
    monkeypatch.setattr(events, "SILENCE_S", 60 if fault else 0.001)

    async def run() -> list[bytes]:
        seen = list[bytes]()
        heard = asyncio.Event()

        async def two() -> AsyncIterator[bytes]:
            yield b"a"
            await asyncio.wait_for(heard.wait(), 0.2 if fault else 20)
            yield b"b"

        async for event in kept_alive(two(), lambda: b"."):
            seen.append(event)
            if seen.count(b".") == 3:
                heard.set()
        return seen

    if fault:
        with pytest.raises(TimeoutError):
            asyncio.run(run())
        return
    seen = asyncio.run(run())
    assert [event for event in seen if event != b"."] == [b"a", b"b"] and seen.count(b".") >= 3


def test_who_stops_reading_ends_the_events(monkeypatch):
    """An answer whose client left during a silence is not computed any further."""
    monkeypatch.setattr(events, "SILENCE_S", 0.001)
    ended = list[str]()

    async def never() -> AsyncIterator[bytes]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            ended.append("ended")

    async def run() -> None:
        signs = kept_alive(never())
        assert await anext(signs) == events.COMMENT
        await signs.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    asyncio.run(run())
    assert ended == ["ended"]


class Slow(Script):
    """A stream with a silence before each event."""

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            await asyncio.sleep(0.05)
            yield event


def lines(http: httpx.Client, path: str) -> list[str]:
    """The lines of a streamed answer that are not empty."""
    body: dict[str, Any] = {"model": "tiny", "stream": True, **SENT[path]}
    with http.stream("POST", path, json=body) as reply:
        assert reply.status_code == 200
        return [line for line in reply.iter_lines() if line]


@pytest.mark.full
@pytest.mark.parametrize("path", SENT)
def test_a_silent_stream_has_signs(server, http, says, path, monkeypatch):
    says(CHAT)
    monkeypatch.setattr(server.engine, "submit", lambda **given: Slow("one two three", "eos"))
    without = lines(http, path)
    monkeypatch.setattr(events, "SILENCE_S", 0.001)
    with_signs = lines(http, path)
    if path == "/v1/messages":
        ping = "event: ping"
        assert without.count(ping) == 1  # at its beginning
        assert with_signs.count(ping) > 2 and COMMENT not in with_signs
    elif path == "/v1/responses":
        # Codex closes a stream without events, and comments are none
        progress = "event: response.in_progress"
        assert without.count(progress) == 1  # at its beginning
        assert with_signs.count(progress) > 3 and COMMENT not in with_signs
        numbers = [
            json.loads(line[6:])["sequence_number"] for line in with_signs if line[:4] == "data"
        ]
        assert numbers == list(range(len(numbers)))
    elif path == "/api/chat":
        assert all(json.loads(line) for line in with_signs)
    else:
        assert COMMENT not in without
        assert with_signs.count(COMMENT) > 2
    assert "one two three" in said(without) and said(with_signs) == said(without)


def said(streamed: list[str]) -> str:
    """The text of the deltas, whatever their API."""
    parts = list[str]()
    for line in streamed:
        text = line.removeprefix("data: ")
        if text.startswith("{"):
            parts.append(_text(json.loads(text)))
    return "".join(parts)


def _text(event: dict[str, Any]) -> str:
    if event.get("type") == "response.output_text.delta":
        return event["delta"]
    if event.get("type") == "content_block_delta":
        return event["delta"]["text"]
    if "message" in event and event.get("type") is None:
        return event["message"]["content"]
    for choice in event.get("choices") or []:
        return choice.get("text") or choice.get("delta", {}).get("content") or ""
    return ""
