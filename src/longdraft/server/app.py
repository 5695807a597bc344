"""The routes of the server: the body that each path takes, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.exceptions import HTTPException

from longdraft.server.decode.answer import Answer
from longdraft.server.decode.reply import Delta
from longdraft.server.decode.service import Service
from longdraft.server.decode.work import RequestWork
from longdraft.server.http import document, problems
from longdraft.server.http.entry import current
from longdraft.server.http.events import DONE, EventStream, sse
from longdraft.server.http.pieces import Writer, at_once
from longdraft.server.http.problems import Problem
from longdraft.server.models import Models, about
from longdraft.server.openai.formats import ChatFormat, CompletionFormat
from longdraft.server.openai.responses import ResponseObject, ResponsesRequest
from longdraft.server.openai.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    SampledRequest,
    StreamOptions,
    TokenizeRequest,
)
from longdraft.server.openai.tokenizing import about_tokenizer, tokenized
from longdraft.server.page import page
from longdraft.server.traces import Recording, Tracer, TraceRequest
from longdraft.version import __version__

AnyFormat = ChatFormat | CompletionFormat


def create_app(models: Models, tracer: Tracer | None = None, strict: bool = False) -> FastAPI:
    """The application: it starts the models' engines, and stops them when it shuts down.

    tracer: for a page. strict: see ServerSettings.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for service in models:
            service.engine.start()
        yield
        for service in models:
            service.stopping = True
        for service in models:
            await service.engine.stop()
            service.templates.close()

    app = document.Documented(
        title="longdraft",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=document.ANYWHERE,
    )
    app.strict = strict
    app.router.redirect_slashes = False  # a redirection would repeat the client's Host header
    app.add_exception_handler(Problem, problems.answer_problem)
    app.add_exception_handler(RequestValidationError, problems.answer_validation)
    app.add_exception_handler(HTTPException, problems.answer_http)
    app.add_exception_handler(Exception, problems.answer_unexpected)

    @app.post("/v1/chat/completions", responses=document.answer("chat.completion", "choices"))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        service = models.of(body.model)
        work = await service.chat(body)
        work.owner = owner_of(request)
        assert work.talk is not None
        how = ChatFormat(
            **_fields(service, "chatcmpl", work, body), call_id=work.talk.dialect.call_id
        )
        return await _answer(service.submit(work), body, how, request)

    @app.post("/v1/completions", responses=document.answer("text_completion", "choices"))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service = models.of(body.model)
        work = await service.completion(body)
        work.owner = owner_of(request)
        echoed = work.prompts if body.echo else []
        scored = body.logprobs is not None
        echoes = [
            await service.aside(len(prompt), service.echo, prompt, scored) for prompt in echoed
        ]
        how = CompletionFormat(**_fields(service, "cmpl", work, body), echoes=echoes, n=work.n)
        return await _answer(service.submit(work), body, how, request)

    @app.post("/v1/responses", responses=document.answer("response", "output"))
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        service = models.of(body.model)
        work = await service.talk(body, body.messages, body.limit, offer=body.offer, turn=body.turn)
        work.owner = owner_of(request)
        how = ResponseObject(body, work, service)
        answer = service.submit(work)
        if body.stream:
            return EventStream(answer, how.events(answer), how.in_progress)

        async def whole() -> Response:
            return JSONResponse(await how.whole(answer))

        return await unless_gone(whole, answer, request)

    @app.head("/v1/models", include_in_schema=False)
    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [about(service) for service in models]}

    @app.get("/v1/models/{name:path}", responses=document.errors(404))
    async def model(name: str) -> dict[str, Any]:
        return about(models.of(name))

    @app.post("/tokenize", responses=document.POSTED)
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        return await tokenized(models.of(body.model), body)

    @app.post("/detokenize", responses=document.POSTED)
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        service = models.of(body.model)
        return {"prompt": await service.aside(len(body.tokens), service.text, body.tokens)}

    @app.get("/tokenizer_info", responses=document.errors(400, 404))
    async def tokenizer_info(model: str | None = None) -> dict[str, Any]:
        return about_tokenizer(models.of(model))

    @app.head("/health", include_in_schema=False)
    @app.get(
        "/health",
        response_class=Response,
        responses={503: {"description": "The server accepts no requests"}},
    )
    async def health() -> Response:
        return Response(status_code=200 if models.ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return PlainTextResponse(
            models.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    if tracer is not None:
        _add_page(app, tracer)
    return app


def _add_page(app: FastAPI, tracer: Tracer) -> None:
    html, policy = page()

    @app.get("/", include_in_schema=False)
    async def start() -> Response:
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }
        return HTMLResponse(html, headers=headers | {"Referrer-Policy": "no-referrer"})

    @app.get("/v1/longdraft/methods")
    async def methods() -> dict[str, Any]:
        return tracer.methods

    @app.post("/v1/longdraft/trace", response_class=StreamingResponse, responses=document.events())
    async def trace(body: TraceRequest, request: Request) -> Response:
        recording = await tracer.record(body, owner_of(request))
        return EventStream(recording, _trace_events(recording))


async def _trace_events(recording: Recording) -> AsyncIterator[bytes]:
    async for event in recording.events():
        yield sse(event)
    yield DONE


def owner_of(request: Request) -> str:
    """The owner of the cached prompts that a request may use (see Guard)."""
    return request.state.owner


def _fields(service: Service, kind: str, work: RequestWork, body: SampledRequest) -> dict[str, Any]:
    """The fields of an answer format."""
    options = body.stream_options or StreamOptions()
    return {
        "id": current().identify(f"{kind}-"),
        "created": int(time()),
        "model": service.model,
        "word": service.word,
        "top": work.logprobs,
        "with_usage": options.include_usage,
        "in_parts": options.include_usage and options.continuous_usage_stats,
    }


async def _answer(
    answer: Answer, body: SampledRequest, how: AnyFormat, request: Request
) -> Response:
    if body.stream:
        return EventStream(answer, _events(answer, how))
    return await unless_gone(lambda: _whole(answer, how), answer, request)


async def _whole(answer: Answer, how: AnyFormat) -> Response:
    """The answer as one object."""
    choices = [Delta() for _ in answer.streams]
    async for i, delta in answer.parts():
        choices[i] += delta
    _score(how, answer)
    counted = answer.usage
    scored = sum(map(len, answer.prompt_logprobs.values()))
    tokens = answer.work.n * scored + counted["completion_tokens"]
    count = how.log_probabilities(tokens)
    body = await answer.service.formatted(
        count, lambda write: write(how.whole(choices, counted, answer.metrics)).encode()
    )
    return Response(body, media_type="application/json")


def _score(how: AnyFormat, answer: Answer) -> None:
    """Give echoed prompts their log-probabilities, as far as they are known."""
    if isinstance(how, CompletionFormat):
        for prompt, echo in enumerate(how.echoes):
            echo.logprobs = answer.prompt_logprobs.get(prompt, [])


async def _events(answer: Answer, how: AnyFormat) -> AsyncIterator[bytes]:
    """The answer as server-sent events.

    An error after the first of them is an event too, and ends the stream.
    """
    begun = [False] * len(answer.streams)

    def event(part: dict[str, Any], write: Writer) -> bytes:
        now = {"usage": answer.usage} if how.in_parts else {}
        return sse(part | now, write=write)

    def begin(i: int, write: Writer) -> bytes:
        part = how.first(i)
        return b"" if part is None else event(part, write)

    def go_on(i: int, delta: Delta, write: Writer) -> bytes:
        return event(how.part(i, delta), write)

    try:
        async for i, delta in answer.parts():
            if delta.reading is not None:
                yield event(how.progress(i, delta.reading), at_once)
                continue
            if not begun[i]:
                begun[i] = True
                _score(how, answer)
                count = how.log_probabilities(
                    len(answer.prompt_logprobs.get(i // answer.work.n, []))
                )
                if first := await answer.service.formatted(count, partial(begin, i)):
                    yield first
            for part in delta.by_calls() if delta else ():
                count = how.log_probabilities(len(part.logprobs))
                yield await answer.service.formatted(count, partial(go_on, i, part))
        if how.with_usage:
            yield sse(how.last(answer.usage, answer.metrics))
    except Problem as problem:
        current().reason = problem.reason
        yield sse(problem.body)
    finally:
        answer.close()
    yield DONE


async def unless_gone(
    call: Callable[[], Awaitable[Response]], answer: Answer, request: Request
) -> Response:
    """The call's result.

    If the client leaves before, the request is cancelled: nobody will read it.
    """
    work = asyncio.ensure_future(call())
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else Response(status_code=499)
    finally:
        for task in (work, gone):
            task.cancel()
        answer.close()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
