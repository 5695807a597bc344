"""Errors in the shape of Anthropic's API, which its clients read."""

from __future__ import annotations

from typing import Any

PATH = "/v1/messages"
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Claude Code compacts a conversation when an error begins with these words
TOO_LONG = "prompt is too long: "


def error_of(status: int, message: str, code: str | None, id: str) -> dict[str, Any]:
    """The body of an error. code: that of the same error in OpenAI's shape."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    if code == "context_length_exceeded":
        message = TOO_LONG + message
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": id or None,
    }
