"""A request's events as text: held back at a possible stop string, cut at a found one, with log-probabilities."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from longdraft.engine.acceptance import Acceptance
from longdraft.engine.requests import Event
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.models.text import Detokenizer


@dataclass
class Delta:
    """What an event adds. finish: "stop" or "length" in the last one of a choice."""

    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None


class Reply:
    """Its deltas together are the text before the first stop string, the same however tokens came in events.

    tokens: how many of the new tokens count: up to the one that completes a stop string, end token included. least: a
    stop string that ends within so many tokens is text.
    """

    def __init__(self, tokenizer: Any, stops: list[str], least: int = 0):
        self.text = Detokenizer(tokenizer)
        self.stops, self.held = stops, ""  # text that may begin a stop string
        self.open = ""  # text after it that a later token may still change
        self.end = 0  # characters that have been given out
        self.least, self.free = least, 0  # characters of the first `least` tokens, where no stop string may end
        self.entries = deque[tuple[int, TokenLogprobs]]()  # of tokens whose text is held back, with where it begins
        self.tokens = self.known = 0
        self.drafts = Acceptance()
        self.finish: str | None = None

    def take(self, event: Event) -> Delta:
        """What this event adds to the text. After a delta with `finish`, further events have no effect."""
        if self.finish is not None:
            return Delta()
        self.drafts.add(event.drafted, event.accepted)
        if event.prompt is not None:
            self.known = event.prompt.known
        for i, token in enumerate(event.tokens):
            if event.logprobs is not None:
                self.entries.append((self.end + len(self.held) + len(self.open), event.logprobs[i]))
            self.tokens += 1
            last = event.ended == "eos" and i == len(event.tokens) - 1
            self.held += "" if last else self.text.push([token])  # an end token has no text
            self.open = self.text.open if self.stops else ""
            if self.tokens <= self.least:
                self.free = self.end + len(self.held) + len(self.open)
            if (cut := self._stop_in(self.open)) is not None:
                self.held += self.open
                return self._out(cut, "stop")
        if event.ended is None:
            return self._out(len(self.held) - self._possible())
        self.held += self.text.flush()
        cut = self._stop_in()
        finish = "stop" if cut is not None or event.ended == "eos" else "length"
        return self._out(len(self.held) if cut is None else cut, finish)

    def _stop_in(self, more: str = "") -> int | None:
        """Where in the held text, with more text after it, the first stop string begins."""
        text, free = self.held + more, self.free - self.end
        found = (text.find(stop, max(free - len(stop) + 1, 0)) for stop in self.stops)
        return min((i for i in found if i >= 0), default=None)

    def _possible(self) -> int:
        """How many of the held text's last characters may begin a stop string."""
        longest = max(map(len, self.stops), default=1) - 1
        return next(
            (
                n
                for n in range(min(longest, len(self.held)), 0, -1)
                if any(s.startswith(self.held[-n:]) for s in self.stops)
            ),
            0,
        )

    def _out(self, count: int, finish: str | None = None) -> Delta:
        """Give out so many characters of the held text."""
        delta = Delta(self.held[:count], [], finish)
        self.held, self.end, self.finish = self.held[count:], self.end + count, finish
        while self.entries and (self.entries[0][0] < self.end or (not self.held and finish != "stop")):
            delta.logprobs.append(self.entries.popleft()[1])
        return delta


class Silent(Reply):
    """For a request for no new tokens: nothing is given out of the one that is decoded because there has to be one."""

    def take(self, event: Event) -> Delta:
        if self.finish is not None:
            return Delta()
        self.finish = "length"
        if event.prompt is not None:
            self.known = event.prompt.known
        return Delta(finish="length")
