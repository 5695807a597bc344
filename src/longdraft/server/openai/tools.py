"""The tools of a chat request, which a model may call, and earlier calls in its messages."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps, loads
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from longdraft.server.http.entry import current
from longdraft.server.openai.request_fields import Name, Parsed, Strict, Text, encodable

MAX_TOOLS = 1024
MAX_TOOL_LEVELS = 32  # levels of a tool's JSON


def _is_object(text: str) -> str:
    try:
        arguments = loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        if not current().strict:
            return text  # an answer that a limit cut comes back so
        raise ValueError("the arguments of a call must be a JSON object, as text")
    is_shallow(arguments)
    return text


def is_shallow(value: Any) -> Any:
    """The value.

    Raises ValueError for more levels than MAX_TOOL_LEVELS, and for text that cannot be encoded.
    """
    level = [value]
    for _ in range(MAX_TOOL_LEVELS):
        inner = list[Any]()
        for entry in level:
            if isinstance(entry, dict | list):
                inner += entry.values() if isinstance(entry, dict) else entry
        level = inner
    if level:
        raise ValueError(f"a schema or a call may have {MAX_TOOL_LEVELS} levels at most")
    encodable(dumps(value, ensure_ascii=False))
    return value


class FunctionCall(Strict):
    """A call of a function.

    arguments: a JSON object, as text; a strict server refuses any other text.
    """

    name: Name
    arguments: Annotated[Text, AfterValidator(_is_object)]
    parsed_arguments: Parsed = None

    @property
    def given(self) -> dict[str, Any] | str:
        """The arguments as chat templates read them: an object, or the text that is none."""
        if not self.arguments.strip():
            return {}
        try:
            arguments = loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments
        return arguments if isinstance(arguments, dict) else self.arguments


class ToolCall(Strict):
    id: Name
    type: Literal["function"] = "function"
    function: FunctionCall

    @property
    def plain(self) -> dict[str, Any]:
        """The call as chat templates read it."""
        function = {"name": self.function.name, "arguments": self.function.given}
        return {"id": self.id, "type": self.type, "function": function}


class Function(Strict):
    """A function that a model may call.

    parameters: a JSON schema, for the model to read. strict: a call's arguments must follow it.
    """

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,256}$")]
    description: Text = ""
    parameters: Annotated[dict[str, Any], AfterValidator(is_shallow)] = Field(default_factory=dict)
    strict: bool = False


class Tool(Strict):
    type: Literal["function"]
    function: Function


class ChosenFunction(Strict):
    name: Name


class ToolChoice(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


def check_choice(functions: Sequence[Function], choice: str) -> None:
    """Raises ValueError for functions of one name, and for a choice that they do not allow."""
    names = [function.name for function in functions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"tools: two functions have the name {twice!r}: give each its own")
    if choice == "required" and not names:
        raise ValueError("tool_choice: 'required' needs tools")
    if choice not in ("auto", "none", "required", *names):
        raise ValueError(f"tool_choice: there is no function {choice[:80]!r} among the tools")
