"""The paths of Anthropic's Messages API."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from longdraft.server.anthropic.anthropic_schema import MessagesRequest
from longdraft.server.anthropic.conversation import messages_of, turn_of
from longdraft.server.anthropic.error_shape import PATH
from longdraft.server.anthropic.message_object import PING, MessageObject
from longdraft.server.app import owner_of, unless_gone
from longdraft.server.decode.service import Service
from longdraft.server.decode.work import RequestWork
from longdraft.server.http.entry import current
from longdraft.server.http.events import EventStream
from longdraft.server.http.problems import Problem
from longdraft.server.http.server_log import say
from longdraft.server.models import Models

MOST_NAMED = 8  # ignored parts of a request in the header of its answer


async def work_of(service: Service, body: MessagesRequest) -> RequestWork:
    """The work of a request, with as many new tokens as it asks for and the server has room for.

    Raises Problem, on a strict server, for a request with parts that the answer would not follow.
    """
    ignored = ", ".join(body.ignored[:MOST_NAMED])
    if ignored and current().strict:
        raise Problem(400, f"this server gives no effect to {ignored}: leave it out")
    messages = messages_of(body)
    turn = turn_of(body, messages, service.tokenizer)
    work = await service.talk(body, messages, None, offer=body.offer, turn=turn)
    if body.max_tokens is not None:
        work.limit = min(work.limit, body.max_tokens)
    if ignored:
        current().warnings.append(f"ignored: {ignored}")
    return work


def add_anthropic(app: FastAPI, models: Models) -> None:
    """Add the paths, which /openapi.json leaves out: Anthropic documents them."""
    noted = False

    def service_of(name: str) -> Service:
        """The model of this name; the first model stands in for Anthropic's own."""
        nonlocal noted
        try:
            return models.of(name)
        except Problem:
            if not name.startswith("claude-"):
                raise
        if not noted:
            noted = True
            text = "a model named claude-* is asked for: the default model answers in its place"
            say(logging.INFO, text, model=models.first.model)
        return models.first

    @app.post(PATH, include_in_schema=False)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        service = service_of(body.model)
        work = await work_of(service, body)
        work.owner = owner_of(request)
        answer = service.submit(work)
        message = MessageObject(answer)
        if body.stream:
            return EventStream(answer, message.events(), lambda: PING)

        async def whole() -> Response:
            return JSONResponse(await message.whole())

        return await unless_gone(whole, answer, request)

    @app.post(f"{PATH}/count_tokens", include_in_schema=False)
    async def count_tokens(body: MessagesRequest) -> dict[str, Any]:
        work = await work_of(service_of(body.model), body)
        return {"input_tokens": work.prompt_tokens}

    @app.head("/", include_in_schema=False)
    async def reachable() -> Response:
        """Claude Code asks this before its first request."""
        return Response()
