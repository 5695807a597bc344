"""Turns a request's events into text, with log-probabilities.

Text is held back where a stop string may begin, and cut where one is complete.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from longdraft.engine.acceptance_counts import AcceptanceCounts
from longdraft.engine.requests import Event, ReadingProgress
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.models.text import Detokenizer
from longdraft.server.calls.answer_reader import AnswerPart, joined
from longdraft.server.calls.format_marks import MarkedText


@dataclass
class Delta:
    """The text and the log-probabilities that an event adds.

    parts: the parts of its text, in a chat; then `text` is the content among them. finish: "stop",
    "length" or "tool_calls" in the last one of a choice. offsets: where in the choice's text each
    token of `logprobs` begins. reading: how far the prompt is read; then there is nothing else.
    """

    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None
    parts: list[AnswerPart] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    reading: ReadingProgress | None = None

    def __add__(self, more: Delta) -> Delta:
        finish = more.finish or self.finish
        parts = joined(self.parts + more.parts)
        offsets = self.offsets + more.offsets
        return Delta(self.text + more.text, self.logprobs + more.logprobs, finish, parts, offsets)

    def by_calls(self) -> list[Delta]:
        """The same as several deltas, each about one call at most.

        Some clients read no other call in a chunk of a stream.
        """
        runs = [list[AnswerPart]()]
        about = None
        for part in self.parts:
            if part.kind in ("call", "arguments"):
                if about not in (None, part.index):
                    runs.append([])
                about = part.index
            runs[-1].append(part)
        if len(runs) == 1:
            return [self]
        deltas = [
            Delta("".join(p.text for p in run if p.kind == "content"), parts=run) for run in runs
        ]
        deltas[0].logprobs = self.logprobs
        deltas[0].offsets = self.offsets
        deltas[-1].finish = self.finish
        return deltas

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs or self.finish or self.parts)


class Reply:
    """A choice's text: its deltas together are the text before the first stop string.

    They are the same however tokens came in events. tokens: how many of the new tokens count: up to
    the one that completes a stop string, end token included. least: a stop string that ends within
    this many tokens is text.
    """

    reasoning_tokens = 0
    matched: str | None = None  # the stop string that ended a chat's content

    def __init__(self, tokenizer: Any, stops: list[str], least: int = 0):
        self.text: Detokenizer | MarkedText = Detokenizer(tokenizer)
        self.stops = stops
        self.held = ""  # text that may begin a stop string
        self.open = ""  # text after it that a later token may still change
        self.end = 0  # characters that have been given out
        self.least = least
        self.free = 0  # characters of the first `least` tokens, where no stop string may end
        # of tokens whose text is held back, with where it begins
        self.entries = deque[tuple[int, TokenLogprobs]]()
        self.tokens = 0
        self.known = 0
        self.drafts = AcceptanceCounts()
        self.finish: str | None = None

    def take(self, event: Event) -> Delta:
        """The delta that this event adds to the text.

        After a delta with `finish`, further events have no effect.
        """
        if self.finish is not None:
            return Delta()
        self._note(event)
        delta = Delta()
        for i, token in enumerate(event.tokens):
            self.tokens += 1
            settled = self.end + len(self.held)
            begin = settled + len(self.open)
            is_end_token = event.ended == "eos" and i == len(event.tokens) - 1
            if not is_end_token:
                self.held += self.text.push([token])
                begin = settled + self.text.before
            if event.logprobs is not None:
                self.entries.append((begin, event.logprobs[i]))
            self.open = self.text.open if self.stops else ""
            if self.tokens <= self.least:
                self.free = self.end + len(self.held) + len(self.open)
            if (cut := self._stop_in(self.open)) is not None:
                self.held += self.open
                return delta + self._out(cut, "stop")
        if event.ended is None:
            return delta + self._out(len(self.held) - self._possible())
        self.held += self.text.flush()
        cut = self._stop_in()
        finish = "stop" if cut is not None or event.ended == "eos" else "length"
        return delta + self._out(len(self.held) if cut is None else cut, finish)

    def _note(self, event: Event) -> None:
        """Count the drafts and the cached prompt of an event."""
        self.drafts.add(event.drafted, event.accepted)
        if event.prompt is not None:
            self.known = event.prompt.known

    def _stop_in(self, more: str = "") -> int | None:
        """The position of the first stop string in the held text, with more text after it."""
        text = self.held + more
        free = self.free - self.end
        places = (text.find(stop, max(free - len(stop) + 1, 0)) for stop in self.stops)
        return min((place for place in places if place >= 0), default=None)

    def _possible(self) -> int:
        """The number of the held text's last characters that may begin a stop string."""
        longest = max(map(len, self.stops), default=1) - 1
        for length in range(min(longest, len(self.held)), 0, -1):
            if any(stop.startswith(self.held[-length:]) for stop in self.stops):
                return length
        return 0

    def _out(self, count: int, finish: str | None = None) -> Delta:
        """Release this many characters of the held text."""
        delta = Delta(self.held[:count], [], finish)
        self.held = self.held[count:]
        self.end += count
        self.finish = finish
        every = not self.held and finish != "stop"
        while self.entries and (self.entries[0][0] < self.end or every):
            begin, entry = self.entries.popleft()
            delta.offsets.append(begin)
            delta.logprobs.append(entry)
        return delta


class Silent(Reply):
    """The reply to a request for no new tokens.

    One token is decoded because there has to be one; nothing of it is given out.
    """

    def take(self, event: Event) -> Delta:
        if self.finish is not None:
            return Delta()
        self.finish = "length"
        if event.prompt is not None:
            self.known = event.prompt.known
        return Delta(finish="length")
