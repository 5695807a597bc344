"""Chat completions and completions in the shapes of OpenAI's API, whole and in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from longdraft.engine.requests import ReadingProgress
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.server.decode.reply import Delta, Reply
from longdraft.server.openai.messages import delta_of, message_of

Json = dict[str, Any]


def usage(prompt: int, replies: list[Reply], n: int) -> Json:
    """The tokens read and written, with details of cached, drafted and accepted ones.

    prompt: tokens of all prompts, each of which has n replies.
    """
    written = sum(r.tokens for r in replies)
    drafts = [r.drafts for r in replies]
    steps = sum(counts.steps for counts in drafts)
    accepted = sum(counts.accepted for counts in drafts)
    mean = 1 + accepted / steps if steps else 1.0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {
            "cached_tokens": sum(
                max(r.known for r in replies[i : i + n]) for i in range(0, len(replies), n)
            )
        },
        "completion_tokens_details": {
            "draft_steps": steps,
            "drafted_tokens": sum(counts.drafted for counts in drafts),
            "accepted_draft_tokens": accepted,
            "reasoning_tokens": sum(r.reasoning_tokens for r in replies),
            "mean_acceptance_length": round(mean, 4),
        },
    }


@dataclass
class AnswerFormat:
    """The fields of every chunk of an answer.

    word: a token's own bytes. top: how many alternatives a log-probability has; None: none is
    given. with_usage: the last chunk has the usage, and if in_parts, every chunk has the usage so
    far.
    """

    id: str
    created: int
    model: str
    word: Callable[[int], bytes]
    top: int | None
    with_usage: bool = False
    in_parts: bool = False

    kind = ""

    def log_probabilities(self, tokens: int) -> int:
        """The number of log-probabilities for this many tokens, alternatives included.

        It is the cost of formatting them.
        """
        return 0 if self.top is None else tokens * (self.top + 1)

    def head(self) -> Json:
        return {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}

    def chunk(self, choices: list[Json]) -> Json:
        return self.head() | {"choices": choices} | ({"usage": None} if self.with_usage else {})

    def progress(self, index: int, reading: ReadingProgress) -> Json:
        """A chunk about the prompt of a choice, as llama-server has it."""
        shown = {
            "total": reading.total,
            "cache": reading.known,
            "processed": reading.done,
            "time_ms": round(reading.seconds * 1e3),
        }
        return self.part(index, Delta()) | {"prompt_progress": shown}

    def part(self, index: int, delta: Delta) -> Json:
        """The chunk of a delta."""
        raise NotImplementedError

    def last(self, counted: Json, metrics: Json | None) -> Json:
        """The chunk with the usage, after all choices have finished.

        metrics: see Answer.
        """
        return self.head() | {"choices": [], "usage": counted, "metrics": metrics}


@dataclass
class ChatFormat(AnswerFormat):
    """A chat completion.

    call_id: makes the ids of calls.
    """

    call_id: Callable[[], str] = str

    kind = "chat.completion.chunk"

    def first(self, index: int) -> Json:
        """The chunk that begins a choice."""
        delta = {"role": "assistant", "content": ""}
        return self.chunk(
            [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]
        )

    def part(self, index: int, delta: Delta) -> Json:
        choice = {"index": index, "delta": delta_of(delta.parts, self.call_id)}
        return self.chunk(
            [choice | {"logprobs": self._logprobs(delta.logprobs), "finish_reason": delta.finish}]
        )

    def whole(self, deltas: list[Delta], counted: Json, metrics: Json | None) -> Json:
        choices = [
            {
                "index": i,
                "message": message_of(d.parts, self.call_id),
                "logprobs": self._logprobs(d.logprobs),
                "finish_reason": d.finish,
            }
            for i, d in enumerate(deltas)
        ]
        return self.head() | {
            "object": "chat.completion",
            "choices": choices,
            "usage": counted,
            "metrics": metrics,
        }

    def _logprobs(self, entries: list[TokenLogprobs]) -> Json | None:
        if self.top is None:
            return None
        return {
            "content": [self._entry(entry.token, entry.logprob, entry.top) for entry in entries],
            "refusal": None,
        }

    def _entry(
        self, token: int, logprob: float, top: list[tuple[int, float]] | None = None
    ) -> Json:
        word = self.word(token)
        entry = {"token": shown(word), "logprob": logprob, "bytes": _numbers(word)}
        if top is None:
            return entry
        return entry | {"top_logprobs": [self._entry(token, value) for token, value in top]}


_numbers = lru_cache(1 << 16)(tuple[int, ...])  # of a token's bytes


def shown(word: bytes) -> str:
    """A token's text, where a part of a character is a replacement character."""
    return word.decode("utf-8", "replace")


@dataclass
class Echo:
    """A prompt as its choices repeat it.

    offsets: where in its text each token begins, if that is asked for.
    """

    tokens: list[int]
    text: str
    offsets: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass
class CompletionFormat(AnswerFormat):
    """A completion.

    echoes: each prompt's tokens, text and log-probabilities, with which its n choices begin; empty:
    none does.
    """

    echoes: list[Echo] = field(default_factory=list)
    n: int = 1

    kind = "text_completion"

    def echo(self, index: int) -> Echo | None:
        return self.echoes[index // self.n] if self.echoes else None

    def first(self, index: int) -> Json | None:
        echo = self.echo(index)
        if echo is None:
            return None
        return self._part(index, Delta(echo.text), self._echoed(echo))

    def part(self, index: int, delta: Delta) -> Json:
        return self._part(index, delta, self._logprobs(index, delta))

    def _part(self, index: int, delta: Delta, logprobs: Json | None) -> Json:
        return self.chunk([self._choice(index, delta.text, logprobs, delta.finish)])

    def whole(self, deltas: list[Delta], counted: Json, metrics: Json | None) -> Json:
        choices = [self._whole(i, d) for i, d in enumerate(deltas)]
        return self.head() | {"choices": choices, "usage": counted, "metrics": metrics}

    def _whole(self, index: int, delta: Delta) -> Json:
        text = delta.text
        logprobs = self._logprobs(index, delta)
        if (echo := self.echo(index)) is not None:
            text = echo.text + text
            first = self._echoed(echo)
            logprobs = logprobs and first and {key: first[key] + logprobs[key] for key in first}
        return self._choice(index, text, logprobs, delta.finish)

    def _choice(self, index: int, text: str, logprobs: Json | None, finish: str | None) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _echoed(self, echo: Echo) -> Json | None:
        """The log-probabilities of a prompt, whose first token has none."""
        return self._scores(echo.tokens, [None], echo.logprobs, echo.offsets)

    def _logprobs(self, index: int, delta: Delta) -> Json | None:
        echo = self.echo(index)
        before = 0 if echo is None else len(echo.text)
        offsets = [before + offset for offset in delta.offsets]
        tokens = [entry.token for entry in delta.logprobs]
        return self._scores(tokens, [], delta.logprobs, offsets)

    def _scores(
        self, tokens: list[int], none: list[None], entries: list[TokenLogprobs], offsets: list[int]
    ) -> Json | None:
        """The log-probabilities of these tokens.

        none: for the first tokens, which have no entries.
        """
        if self.top is None:
            return None
        return {
            "tokens": [shown(self.word(t)) for t in tokens],
            "token_logprobs": [*none, *(entry.logprob for entry in entries)],
            "top_logprobs": [*none, *map(self._top, entries)],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprobs) -> Json:
        """The most likely tokens and the token itself, by text.

        Where texts are equal, the token itself or else the likeliest token has the text, and the
        others their ids.
        """
        keys = {entry.token: shown(self.word(entry.token))}
        for token, _ in entry.top:
            if token not in keys:
                text = shown(self.word(token))
                keys[token] = f"token_id:{token}" if text in keys.values() else text
        return {keys[token]: p for token, p in [*entry.top, (entry.token, entry.logprob)]}
