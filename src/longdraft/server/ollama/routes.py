"""Ollama's API for text: chats, generation and the list of models, as JSON or as lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from time import monotonic

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from longdraft.errors import InputError
from longdraft.models.chat import has_template, template_of
from longdraft.server.app import owner_of, unless_gone
from longdraft.server.decode.answer import Answer
from longdraft.server.decode.fill_middle import fill_middle_of
from longdraft.server.decode.service import Service
from longdraft.server.decode.talk import Offer, prompted
from longdraft.server.decode.work import RequestWork
from longdraft.server.http.entry import current
from longdraft.server.http.events import Ends
from longdraft.server.http.pieces import at_once
from longdraft.server.http.problems import Problem
from longdraft.server.models import Models
from longdraft.server.ollama.answer_objects import (
    CallCollector,
    Json,
    answer_object,
    loaded_object,
    now,
)
from longdraft.server.ollama.ollama_schema import Chat, Generate, OllamaRequest, ShowRequest
from longdraft.server.openai.chat_options import SWITCH, reads
from longdraft.server.openai.schema import ChatRequest, CompletionRequest
from longdraft.server.openai.tools import Function
from longdraft.version import __version__

OLLAMA_VERSION = "0.13.4"  # whose API this is; Codex accepts no older one
UNUSED = {"system", "think"}  # fields that no prompt with a gap has
ANY_TOOL = Offer([Function(name="any")]).tools


class JsonLines(Ends, StreamingResponse):
    """An answer as lines of JSON."""

    def __init__(self, answer: Answer, parts: AsyncIterator[Json]):
        super().__init__(
            (at_once(part) + "\n" async for part in parts), media_type="application/x-ndjson"
        )
        self.answer = answer


async def parts_of(answer: Answer, chat: bool) -> AsyncIterator[Json]:
    """The objects of a stream; an error is one of them, and the last."""
    begin = monotonic()
    first = None
    finish = None
    part = partial(answer_object, answer.service.model, chat)
    talk = answer.work.talk
    calls = CallCollector(str if talk is None else talk.dialect.call_id)
    try:
        async for _, delta in answer.parts():
            first = first or monotonic()
            finish = delta.finish
            thinking = "".join(p.text for p in delta.parts if p.kind == "reasoning")
            complete = calls.take(delta.parts)
            text = calls.text() + delta.text
            if text or thinking or complete:
                yield part(text, thinking, complete)
    except Problem as problem:
        yield {"error": problem.message, "status": problem.status}
        return
    complete = calls.finish()
    text = calls.text()
    if text or complete:
        yield part(text, calls=complete)
    end = monotonic()
    count = answer.usage
    times = {
        "total_duration": end - begin,
        "load_duration": 0,
        "prompt_eval_duration": (first or end) - begin,
        "eval_duration": end - (first or end),
    }
    counts = {"prompt_eval_count": count["prompt_tokens"], "eval_count": count["completion_tokens"]}
    reason = "stop" if finish == "tool_calls" else finish  # Ollama has no other for calls
    measured: Json = counts | {name: int(s * 1e9) for name, s in times.items()}
    yield part("", done_reason=reason, **measured)


async def whole(answer: Answer, chat: bool) -> Response:
    """The objects of a stream as one: their texts joined, and all calls."""
    text = ""
    thinking = ""
    calls = list[Json]()
    last: Json = {}
    async for last in parts_of(answer, chat):
        said = last.get("message", last) if chat else last
        text += said.get("content" if chat else "response", "")
        thinking += said.get("thinking", "")
        calls += said.get("tool_calls", [])
    if "error" in last:
        return JSONResponse({"error": last["error"]}, last["status"])
    said = answer_object(last["model"], chat, text, thinking, calls)
    ends = {key: value for key, value in last.items() if key not in ("message", "response")}
    return JSONResponse(said | ends)


def about(service: Service) -> Json:
    details = {
        "format": "",
        "family": service.target.config.model_type,
        "families": None,
        "parameter_size": "",
        "quantization_level": "",
    }
    return {
        "name": service.model,
        "model": service.model,
        "modified_at": now(),
        "size": 0,
        "digest": "",
        "details": details,
    }


def capabilities(service: Service) -> list[str]:
    """The uses that the chat template, or a description in its place, makes of a model."""
    found = ["completion"]
    with suppress(InputError):
        fill_middle_of(service.tokenizer, "suffix")
        found.append("insert")
    if not has_template(service.tokenizer):
        return found
    messages = [{"role": "user", "content": ""}]
    dialect, _, _ = prompted(service.tokenizer, messages, ANY_TOOL)
    if dialect.kind is not None:
        found.append("tools")
    if dialect.writes:
        found.append("thinking")
    return found


def check_room(service: Service, body: OllamaRequest) -> None:
    """Raises Problem, on a strict server, for a context that is larger than the server's."""
    if current().strict and (wanted := body.options.num_ctx or 0) > service.room:
        raise Problem(
            400,
            f"options.num_ctx: {wanted} tokens are more than the {service.room} here",
            "options.num_ctx",
        )


def thinking_fields(service: Service, body: Chat | Generate) -> Json:
    """The fields of a chat that turn the model's reasoning on or off, or say how much it is.

    Where the template has no such variable, `think` is reported as ignored, unless it is off.
    Raises Problem on a strict server.
    """
    think = body.think
    if think is None or not has_template(service.tokenizer):
        return {}
    tools = Offer([tool.function for tool in body.tools]).tools
    template = template_of(service.tokenizer, tools)
    if isinstance(think, str) and reads(template, "reasoning_effort"):
        return {"reasoning_effort": think}
    if reads(template, SWITCH):
        return {"chat_template_kwargs": {SWITCH: think is not False}}
    if think is not False:
        if current().strict:
            raise Problem(400, "think: this model's chat template has no switch for it", "think")
        current().ignore("think")
    return {}


def add_ollama(app: FastAPI, models: Models) -> None:
    """Add the paths, which /openapi.json leaves out: Ollama documents them."""

    async def answered(
        service: Service, work: RequestWork, body: OllamaRequest, request: Request
    ) -> Response:
        work.owner = owner_of(request)
        chat = isinstance(body, Chat)
        answer = service.submit(work)
        if body.stream:
            return JsonLines(answer, parts_of(answer, chat))
        return await unless_gone(lambda: whole(answer, chat), answer, request)

    async def talk(service: Service, body: Chat | Generate, request: Request) -> Response:
        check_room(service, body)
        sampled = body.sampled_without(service.defaults.settings)
        fields = sampled | thinking_fields(service, body)
        asked = ChatRequest(
            messages=body.messages, tools=body.tools, max_tokens=body.limit, **fields
        )
        return await answered(service, await service.chat(asked), body, request)

    async def fill(service: Service, body: Generate, request: Request) -> Response:
        check_room(service, body)
        for name in UNUSED.intersection(body.model_fields_set):
            current().ignore(name)
        sampled = body.sampled_without(service.defaults.settings)
        limit = body.limit or -1
        asked = CompletionRequest(
            prompt=body.prompt, suffix=body.suffix, max_tokens=limit, **sampled
        )
        return await answered(service, await service.completion(asked), body, request)

    @app.post("/api/chat", include_in_schema=False)
    async def chat(body: Chat, request: Request) -> Response:
        service = models.of(body.model)
        if not body.messages:
            return JSONResponse(loaded_object(service.model, True))
        return await talk(service, body, request)

    @app.post("/api/generate", include_in_schema=False)
    async def generate(body: Generate, request: Request) -> Response:
        service = models.of(body.model)
        if body.suffix:
            return await fill(service, body, request)
        if not body.prompt:
            return JSONResponse(loaded_object(service.model, False))
        if not body.raw and has_template(service.tokenizer):
            return await talk(service, body, request)
        check_room(service, body)
        text = "\n\n".join(part for part in (body.system, body.prompt) if part)
        sampled = body.sampled_without(service.defaults.settings)
        asked = CompletionRequest(prompt=text, max_tokens=service.most_new, **sampled)
        tokens = await service.tokens(text, control=body.raw and service.trusting)
        limit = service.fitting(tokens, body.limit)
        work = await service.completion(
            asked.model_copy(update={"prompt": tokens, "max_tokens": limit})
        )
        return await answered(service, work, body, request)

    @app.head("/api/tags", include_in_schema=False)
    @app.get("/api/tags", include_in_schema=False)
    @app.get("/api/ps", include_in_schema=False)
    async def tags() -> Json:
        return {"models": [about(service) for service in models]}

    @app.post("/api/show", include_in_schema=False)
    async def show(body: ShowRequest) -> Json:
        service = models.of(body.model)
        kind = service.target.config.model_type
        info = {"general.architecture": kind, f"{kind}.context_length": service.room}
        return about(service) | {"model_info": info, "capabilities": capabilities(service)}

    @app.head("/api/version", include_in_schema=False)
    @app.get("/api/version", include_in_schema=False)
    async def version() -> Json:
        return {"version": OLLAMA_VERSION, "longdraft": __version__}
