"""A chat's answer as it comes: its parts, up to the first stop string of its content."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from longdraft.engine.requests import Event
from longdraft.server.calls.answer_reader import AnswerPart, AnswerReader, joined
from longdraft.server.calls.format_marks import MarkedText
from longdraft.server.decode.reply import Delta, Reply


class ChatReply(Reply):
    """The reply of a chat: stop strings apply to content alone, in each run of it.

    Reasoning and arguments may have any text. reader: splits the text into parts; it sees the
    special tokens that are in `shown`, as these characters. Its place in the text says which token
    has which character of the content.
    """

    def __init__(
        self,
        tokenizer: Any,
        stops: list[str],
        reader: AnswerReader,
        shown: dict[int, str],
        least: int = 0,
    ):
        super().__init__(tokenizer, stops, least)
        self.text = MarkedText(tokenizer, shown) if shown else self.text
        self.reader = reader
        self.starts = list[int]()  # where each token's text begins
        self.came = 0  # characters of text
        self.calls = 0  # given out

    def take(self, event: Event) -> Delta:
        if self.finish is not None:
            return Delta()
        self._note(event)
        delta = Delta()
        for i, token in enumerate(event.tokens):
            begin = self.came + len(self.text.open)
            text = None
            if event.ended != "eos" or i < len(event.tokens) - 1:  # an end token has no text
                text = self.text.push([token])
                begin = self.came + self.text.before
            self.starts.append(begin)
            if event.logprobs is not None:
                self.entries.append((begin, event.logprobs[i]))
            self.tokens += 1
            if text is not None:
                self._read(text, delta)
            if self.tokens <= self.least:
                self.free = self.came + len(self.text.open)
            if self.finish is not None:
                return delta
        if event.ended is not None:
            self._read(self.text.flush(), delta, event.ended)
        return delta

    def _read(self, text: str, delta: Delta, ended: str | None = None) -> None:
        """Add to a delta the parts of this text, and the answer's end if this is its last text."""
        self.came += len(text)
        parts = self.reader.push(text)
        if ended is not None:
            parts += self.reader.end(cut=ended != "eos")
        given = self._upto_stop(parts)
        if self.finish is None and ended is not None:
            self.finish = "stop" if ended == "eos" else "length"
        if self.finish is not None or self.reader.done:
            given += self._release(len(self.held))
        self._probabilities(delta, self.reader.done and self.finish is None)
        if self.reader.done:
            self.finish = self.finish or "stop"
        self.calls += sum(part.kind == "call" for part in given)
        delta.parts = joined(delta.parts + given)
        delta.text += "".join(part.text for part in given if part.kind == "content")
        delta.finish = "tool_calls" if self.finish == "stop" and self.calls else self.finish

    def _upto_stop(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """These parts, without content that may begin a stop string, or up to the first one."""
        given = list[AnswerPart]()
        for part in parts:
            if part.kind != "content":
                given += [*self._release(len(self.held)), part]
                continue
            self.held += part.text
            if (cut := self._stop()) is not None:
                given += self._release(cut)
                self.finish = "stop"
                self.held = ""
                break
            given += self._release(len(self.held) - self._possible())
        return given

    def _stop(self) -> int | None:
        """The position in the held content of the first stop string that ends the answer.

        It must end after the first `least` tokens. The tokens after it do not count.
        """
        matches = list[tuple[int, int]]()
        for stop in self.stops:
            begin = self.held.find(stop)
            while begin >= 0 and self.reader.place(self.end + begin + len(stop) - 1) < self.free:
                begin = self.held.find(stop, begin + 1)
            if begin >= 0:
                matches.append((begin, len(stop)))
        if not matches:
            return None
        begin, length = min(matches)
        self.matched = self.held[begin : begin + length]
        last = self.reader.place(self.end + begin + length - 1)
        self.tokens = bisect_left(self.starts, last + 1)
        self.came = self.reader.place(self.end + begin)
        return begin

    def _release(self, count: int) -> list[AnswerPart]:
        text = self.held[:count]
        self.held = self.held[count:]
        self.end += count
        return [AnswerPart("content", text)] if text else []

    def _probabilities(self, delta: Delta, every: bool) -> None:
        """Add the log-probabilities of tokens whose text cannot be part of a stop string any more.

        every: those of all tokens.
        """
        pending = bool(self.held or (self.stops and self.reader.rest))
        end = self.came
        if self.held:
            end = min(end, self.reader.place(self.end))
        elif pending:
            end = min(end, self.reader.taken)
        every = every or (not pending and self.finish != "stop")
        while self.entries and (self.entries[0][0] < end or every):
            begin, entry = self.entries.popleft()
            delta.offsets.append(begin)
            delta.logprobs.append(entry)

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens that were reasoning, with the marks around it."""
        thoughts = self.reader.thoughts
        return sum(
            bisect_left(self.starts, end) - bisect_left(self.starts, begin)
            for begin, end in thoughts
        )
