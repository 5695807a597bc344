"""llama-server's path to fill in the middle of a text, as editors ask for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from longdraft.server.app import owner_of, unless_gone
from longdraft.server.decode.answer import Answer
from longdraft.server.http.entry import current
from longdraft.server.http.events import EventStream, sse
from longdraft.server.http.problems import Problem
from longdraft.server.llama.infill_schema import InfillRequest
from longdraft.server.models import Models

Json = dict[str, Any]


class InfillObject:
    """An answer in llama-server's shape, whole and in parts."""

    def __init__(self, answer: Answer):
        self.answer = answer
        self.reply = answer.replies[0]
        self.text = ""
        self.began = monotonic()
        self.first: float | None = None

    async def whole(self) -> Json:
        async for _ in self._texts():
            pass
        return self._last(self.text)

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, the last of which has the counts.

        An error after the first of them is an event too, and ends the stream.
        """
        try:
            async for text in self._texts():
                yield sse(self._part(text))
            yield sse(self._last(""))
        except Problem as problem:
            current().reason = problem.reason
            yield sse(problem.body)
        finally:
            self.answer.close()

    async def _texts(self) -> AsyncIterator[str]:
        async for _, delta in self.answer.parts():
            self.first = self.first or monotonic()
            self.text += delta.text
            if delta.text:
                yield delta.text

    def _part(self, text: str, stop: bool = False) -> Json:
        return {
            "index": 0,
            "content": text,
            "stop": stop,
            "tokens_predicted": self.reply.tokens,
            "tokens_evaluated": self.answer.prompt_tokens,
        }

    def _last(self, text: str) -> Json:
        word = self._stopping_word()
        kind = "word" if word else "eos"
        return self._part(text, stop=True) | {
            "model": self.answer.service.model,
            "stop_type": "limit" if self.reply.finish == "length" else kind,
            "stopping_word": word,
            "has_new_line": "\n" in self.text,
            "truncated": False,
            "tokens_cached": self.reply.known,
            "timings": self._timings(),
        }

    def _stopping_word(self) -> str:
        """The stop string that ended the text, which the reply still holds; or an empty text."""
        held = self.reply.held
        stops = self.answer.work.stops
        return next((stop for stop in stops if held.startswith(stop)), "")

    def _timings(self) -> Json:
        end = monotonic()
        first = self.first or end
        return {
            "cache_n": self.reply.known,
            **_rate("prompt", self.answer.prompt_tokens - self.reply.known, first - self.began),
            **_rate("predicted", self.reply.tokens, end - first),
            "draft_n": self.reply.drafts.drafted,
            "draft_n_accepted": self.reply.drafts.accepted,
        }


def _rate(name: str, tokens: int, seconds: float) -> Json:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_second": tokens / seconds if seconds else 0.0,
    }


def add_infill(app: FastAPI, models: Models) -> None:
    """Add the path, which /openapi.json leaves out: llama-server documents it."""

    @app.post("/infill", include_in_schema=False)
    async def infill(body: InfillRequest, request: Request) -> Response:
        service = models.of(body.model)
        work = await service.infill(body.completion(service.model), [body.gap], "input_suffix")
        work.owner = owner_of(request)
        answer = service.submit(work)
        found = InfillObject(answer)
        if body.stream:
            return EventStream(answer, found.events())

        async def whole() -> Response:
            return JSONResponse(await found.whole())

        return await unless_gone(whole, answer, request)
