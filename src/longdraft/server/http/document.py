"""The answers in /openapi.json: the statuses of each path, and one shape for every error."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

Responses = dict[int | str, dict[str, Any]]
ABOUT = {
    400: "A field or the body is wrong; the message names it",
    401: "The API key is missing or wrong",
    404: "There is no such model or path",
    413: "The body is too large",
    415: "The body is not application/json",
    421: "The host name is not served here",
    429: "Too many requests wait, or too many of this client are open; Retry-After says when to "
    "try again",
    431: "The headers are too large",
    500: "The server could not complete this request",
    503: "There is no time or memory for this request, or the server is shutting down",
}
TEXT: dict[str, Any] = {"type": "string"}
STREAM: dict[str, Any] = {"text/event-stream": {}}


def _object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


_TEXT_OR_NULL = {"anyOf": [TEXT, {"type": "null"}]}
ERROR = _object(error=_object(message=TEXT, type=TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL))


def errors(*statuses: int) -> Responses:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": ABOUT[status], "content": content} for status in statuses}


ANYWHERE = errors(400, 401, 421, 429, 431, 503)  # by the guard
POSTED = errors(400, 404, 413, 415)
DECODED = POSTED | errors(500, 503)


def answer(kind: str, parts: str) -> Responses:
    """An object with an id and these parts, or server-sent events; and errors."""
    listed = {"type": "array", "items": {"type": "object"}}
    whole = _object(
        id=TEXT, object={"const": kind}, model=TEXT, usage={"type": "object"}, **{parts: listed}
    )
    content = {"application/json": {"schema": whole}} | STREAM
    return {
        200: {
            "description": "The answer; with stream=true, as server-sent events",
            "content": content,
        }
    } | DECODED


def events() -> Responses:
    return {200: {"description": "Server-sent events", "content": STREAM}} | DECODED


class Documented(FastAPI):
    """An application whose document has no 422.

    A body that does not validate is answered with 400, in the shape that every error has.
    strict: unknown fields are errors, here as in requests.
    """

    strict = False

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        if not self.strict:
            for described in schema["components"]["schemas"].values():
                if described.get("additionalProperties") is False:
                    del described["additionalProperties"]
        schema["components"]["schemas"]["Error"] = ERROR
        return schema
