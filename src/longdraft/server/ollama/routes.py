"""Ollama's API for text: chats, generation and the list of models, as JSON or as lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from longdraft.models.chat import has_template
from longdraft.server.app import owner_of, unless_gone
from longdraft.server.decode.answer import Answer
from longdraft.server.decode.service import Service
from longdraft.server.decode.work import RequestWork
from longdraft.server.http.events import Ends
from longdraft.server.http.pieces import at_once
from longdraft.server.http.problems import Problem
from longdraft.server.models import Models
from longdraft.server.ollama.ollama_schema import Chat, Generate, OllamaRequest, ShowRequest
from longdraft.server.openai.schema import ChatRequest, CompletionRequest
from longdraft.version import __version__

Json = dict[str, Any]


class JsonLines(Ends, StreamingResponse):
    """An answer as lines of JSON."""

    def __init__(self, answer: Answer, parts: AsyncIterator[Json]):
        super().__init__(
            (at_once(part) + "\n" async for part in parts), media_type="application/x-ndjson"
        )
        self.answer = answer


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


async def parts_of(answer: Answer, chat: bool) -> AsyncIterator[Json]:
    """The objects of a stream; an error is one of them, and the last."""
    begin = monotonic()
    first = None
    finish = None

    def part(text: str, **more: Any) -> Json:
        said = {"message": {"role": "assistant", "content": text}} if chat else {"response": text}
        return {
            "model": answer.service.model,
            "created_at": now(),
            **said,
            "done": bool(more),
            **more,
        }

    try:
        async for _, delta in answer.parts():
            first = first or monotonic()
            finish = delta.finish
            if delta.text:
                yield part(delta.text)
    except Problem as problem:
        yield {"error": problem.message, "status": problem.status}
        return
    end = monotonic()
    count = answer.usage
    times = {
        "total_duration": end - begin,
        "load_duration": 0,
        "prompt_eval_duration": (first or end) - begin,
        "eval_duration": end - (first or end),
    }
    counts = {"prompt_eval_count": count["prompt_tokens"], "eval_count": count["completion_tokens"]}
    yield part(
        "", done_reason=finish, **counts, **{name: int(s * 1e9) for name, s in times.items()}
    )


async def whole(answer: Answer, chat: bool) -> Response:
    text = ""
    last = {}
    async for last in parts_of(answer, chat):
        text += last["message"]["content"] if "message" in last else last.get("response", "")
    if "error" in last:
        return JSONResponse({"error": last["error"]}, last["status"])
    if chat:
        return JSONResponse(last | {"message": {"role": "assistant", "content": text}})
    return JSONResponse(last | {"response": text})


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


def check_room(service: Service, body: OllamaRequest) -> None:
    """Raises Problem for a context that is larger than the server's."""
    if (wanted := body.options.num_ctx or 0) > service.room:
        raise Problem(
            400,
            f"options.num_ctx: {wanted} tokens are more than the {service.room} here",
            "options.num_ctx",
        )


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
        asked = ChatRequest(messages=body.messages, max_tokens=body.limit, **sampled)
        return await answered(service, await service.chat(asked), body, request)

    @app.post("/api/chat", include_in_schema=False)
    async def chat(body: Chat, request: Request) -> Response:
        return await talk(models.of(body.model), body, request)

    @app.post("/api/generate", include_in_schema=False)
    async def generate(body: Generate, request: Request) -> Response:
        service = models.of(body.model)
        if not body.raw and has_template(service.tokenizer):
            return await talk(service, body, request)
        check_room(service, body)
        text = "\n\n".join(part for part in (body.system, body.prompt) if part)
        sampled = body.sampled_without(service.defaults.settings)
        asked = CompletionRequest(prompt=text, max_tokens=service.most_new, **sampled)
        tokens = await service.tokens(text)
        limit = service.fitting(tokens, body.limit)
        work = await service.completion(
            asked.model_copy(update={"prompt": tokens, "max_tokens": limit})
        )
        return await answered(service, work, body, request)

    @app.get("/api/tags", include_in_schema=False)
    @app.get("/api/ps", include_in_schema=False)
    async def tags() -> Json:
        return {"models": [about(service) for service in models]}

    @app.post("/api/show", include_in_schema=False)
    async def show(body: ShowRequest) -> Json:
        service = models.of(body.model)
        kind = service.target.config.model_type
        info = {"general.architecture": kind, f"{kind}.context_length": service.room}
        return about(service) | {"model_info": info, "capabilities": ["completion"]}

    @app.get("/api/version", include_in_schema=False)
    async def version() -> Json:
        return {"version": __version__}
