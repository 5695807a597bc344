"""What /openapi.json says of answers: which statuses a path has, and that every error has one shape."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel


class ErrorContent(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorContent


ABOUT = {
    400: "A field or the body is wrong; the message names it",
    401: "The API key is missing or wrong",
    404: "There is no such model or path",
    413: "The body is too large",
    415: "The body is not application/json",
    421: "The host name is not served here",
    429: "Too many requests wait, or too many of this client are open; Retry-After says when to try again",
    431: "The headers are too large",
    500: "The server could not complete this request",
    503: "There is no time or memory for this request, or the server is shutting down",
}
Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int) -> Responses:
    return {status: {"model": ErrorBody, "description": ABOUT[status]} for status in statuses}


ANYWHERE = errors(401, 421, 429, 431)  # by the guard
POSTED = errors(400, 404, 413, 415)
DECODED = POSTED | errors(500, 503)


def answer(kind: str, parts: str) -> Responses:
    """An object with an id and these parts, or as a stream of events."""
    fields = {"id": {"type": "string"}, "object": {"const": kind}, "model": {"type": "string"}}
    fields |= {parts: {"type": "array", "items": {"type": "object"}}, "usage": {"type": "object"}}
    whole = {"schema": {"type": "object", "properties": fields, "required": sorted(fields)}}
    content = {"application/json": whole, "text/event-stream": {}}
    return {200: {"description": "The answer; with stream=true, as server-sent events", "content": content}}


class Documented(FastAPI):
    """An application whose document has no 422: a body that does not validate is answered with 400."""

    def openapi(self) -> dict[str, Any]:
        found = super().openapi()
        for path in found["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            found["components"]["schemas"].pop(name, None)
        return found
