"""Errors in OpenAI's shape.

They tell what is wrong and what would be right, and nothing about the inside of the server.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from longdraft.server.anthropic.error_shape import PATH as MESSAGES
from longdraft.server.anthropic.error_shape import error_of
from longdraft.server.http.entry import current
from longdraft.server.http.mistakes import mistake, unreadable

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    431: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
MAX_MESSAGE = 500  # characters of a message


class Problem(Exception):
    """A request that is answered with an error.

    retry_s: when it may be tried again. close: the connection is closed, too.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_s: int | None = None,
        close: bool = False,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_s = retry_s
        self.close = close

    @property
    def body(self) -> dict[str, Any]:
        kind = ERROR_TYPES.get(self.status, "server_error")
        return {
            "error": {
                "message": self.message[:MAX_MESSAGE],
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def reason(self) -> str:
        """The reason in one word, without anything that the client sent."""
        return self.code or ERROR_TYPES.get(self.status, "server_error")

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_s is None else {"Retry-After": str(self.retry_s)}
        headers |= {"Connection": "close"} if self.close else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def response(self, path: str = "") -> JSONResponse:
        """The response in the shape that clients of this path read: Ollama's have a text."""
        current().reason = self.reason
        body = self.body
        if path.startswith("/api/"):
            body = {"error": self.message[:MAX_MESSAGE]}
        elif path.startswith(MESSAGES):
            body = error_of(self.status, self.message[:MAX_MESSAGE], self.code, current().id)
        return JSONResponse(body, self.status, self.headers)


async def answer_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return error.response(request.url.path)


async def answer_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    name, message = mistake(error)
    return Problem(400, f"{name}: {message}" if name else message, name).response(request.url.path)


async def answer_http(request: Request, error: Exception) -> JSONResponse:
    """Errors of the framework: unknown paths and methods, bodies that are not JSON."""
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else None
    cause = error.__cause__ if error.status_code == 400 else None
    response = Problem(
        error.status_code, unreadable(cause) or str(error.detail), code=code
    ).response(request.url.path)
    response.headers.update(error.headers or {})  # a 405 says which methods are allowed
    return response


async def answer_unexpected(request: Request, error: Exception) -> JSONResponse:
    problem = Problem(500, "the server could not complete this request")
    return problem.response(request.url.path)
