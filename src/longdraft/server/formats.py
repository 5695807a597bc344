"""Answers in the shapes of OpenAI's API: chat completions and completions, whole and as chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.server.messages import delta_of, message_of
from longdraft.server.reply import Delta, Reply

Json = dict[str, Any]


def usage(prompt: int, replies: list[Reply], n: int) -> Json:
    """Tokens read and written, and in its details how many were cached, drafted and accepted.

    prompt: tokens of all prompts, each of which has n replies.
    """
    written = sum(r.tokens for r in replies)
    drafts = [r.drafts for r in replies]
    steps, drafted, accepted = (sum(getattr(d, k) for d in drafts) for k in ("steps", "drafted", "accepted"))
    mean = 1 + accepted / steps if steps else 1.0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {
            "cached_tokens": sum(max(r.known for r in replies[i : i + n]) for i in range(0, len(replies), n))
        },
        "completion_tokens_details": {
            "draft_steps": steps,
            "drafted_tokens": drafted,
            "accepted_draft_tokens": accepted,
            "reasoning_tokens": sum(r.reasoning_tokens for r in replies),
            "mean_acceptance_length": round(mean, 4),
        },
    }


@dataclass
class Format:
    """The fields of every chunk of an answer. word: a token's own text.

    top: how many alternatives a log-probability has; None: none is given. with_usage: the last chunk has the usage, and
    if in_parts, every chunk has the usage so far.
    """

    id: str
    created: int
    model: str
    word: Callable[[int], str]
    top: int | None
    with_usage: bool = False
    in_parts: bool = False

    kind = ""

    def log_probabilities(self, tokens: int) -> int:
        """How many there are for this many tokens, alternatives included: what formatting them costs."""
        return 0 if self.top is None else tokens * (self.top + 1)

    def head(self) -> Json:
        return {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}

    def chunk(self, choices: list[Json]) -> Json:
        return self.head() | {"choices": choices} | ({"usage": None} if self.with_usage else {})

    def last(self, counted: Json, metrics: Json | None) -> Json:
        """The chunk with the usage, after all choices have finished. metrics: see Answer."""
        return self.head() | {"choices": [], "usage": counted, "metrics": metrics}


@dataclass
class ChatFormat(Format):
    """call_id: makes the ids of calls."""

    call_id: Callable[[], str] = str

    kind = "chat.completion.chunk"

    def first(self, index: int) -> Json:
        """The chunk that begins a choice."""
        delta = {"role": "assistant", "content": ""}
        return self.chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def part(self, index: int, delta: Delta) -> Json:
        choice = {"index": index, "delta": delta_of(delta.parts, self.call_id)}
        return self.chunk([choice | {"logprobs": self._logprobs(delta.logprobs), "finish_reason": delta.finish}])

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
        return self.head() | {"object": "chat.completion", "choices": choices, "usage": counted, "metrics": metrics}

    def _logprobs(self, entries: list[TokenLogprobs]) -> Json | None:
        if self.top is None:
            return None
        return {"content": [self._entry(x.token, x.logprob, x.top) for x in entries], "refusal": None}

    def _entry(self, token: int, logprob: float, top: list[tuple[int, float]] | None = None) -> Json:
        text = self.word(token)
        entry = {"token": text, "logprob": logprob, "bytes": _bytes(text)}
        return entry if top is None else entry | {"top_logprobs": [self._entry(t, p) for t, p in top]}


@lru_cache(1 << 16)
def _bytes(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


@dataclass
class Echo:
    """A prompt as its choices repeat it."""

    tokens: list[int]
    text: str
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass
class CompletionFormat(Format):
    """echoes: each prompt's tokens, text and log-probabilities, with which its n choices begin; empty: none does."""

    echoes: list[Echo] = field(default_factory=list)
    n: int = 1
    offsets: dict[int, int] = field(default_factory=dict)  # characters of each choice so far

    kind = "text_completion"

    def echo(self, index: int) -> Echo | None:
        return self.echoes[index // self.n] if self.echoes else None

    def first(self, index: int) -> Json | None:
        echo = self.echo(index)
        return None if echo is None else self.part(index, Delta(echo.text, echo.logprobs), echo.tokens)

    def part(self, index: int, delta: Delta, prompt: list[int] | None = None) -> Json:
        logprobs = self._logprobs(index, delta.logprobs, prompt)
        choice = {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish}
        return self.chunk([choice])

    def whole(self, deltas: list[Delta], counted: Json, metrics: Json | None) -> Json:
        choices = [self._choice(i, d) for i, d in enumerate(deltas)]
        return self.head() | {"choices": choices, "usage": counted, "metrics": metrics}

    def _choice(self, index: int, delta: Delta) -> Json:
        before = ""
        parts: list[tuple[list[TokenLogprobs], list[int] | None]] = [(delta.logprobs, None)]
        if (echo := self.echo(index)) is not None:
            before = echo.text
            parts.insert(0, (echo.logprobs, echo.tokens))
        logprobs: Json | None = None
        for entries, prompt in parts:
            more = self._logprobs(index, entries, prompt)
            logprobs = more if logprobs is None or more is None else {k: v + more[k] for k, v in logprobs.items()}
        return {"index": index, "text": before + delta.text, "logprobs": logprobs, "finish_reason": delta.finish}

    def _logprobs(self, index: int, entries: list[TokenLogprobs], prompt: list[int] | None) -> Json | None:
        """prompt: the echoed tokens, of which the first has no log-probability."""
        if self.top is None:
            return None
        tokens = [x.token for x in entries] if prompt is None else prompt
        first: list[Any] = [None] if prompt is not None else []
        texts = [self.word(t) for t in tokens]
        offsets, offset = [], self.offsets.get(index, 0)
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self.offsets[index] = offset
        return {
            "tokens": texts,
            "token_logprobs": first + [x.logprob for x in entries],
            "top_logprobs": first + [self._top(x) for x in entries],
            "text_offset": offsets,
        }

    def _top(self, x: TokenLogprobs) -> Json:
        """The most likely tokens and the token itself."""
        return {self.word(t): p for t, p in [*reversed(x.top), (x.token, x.logprob)]}
