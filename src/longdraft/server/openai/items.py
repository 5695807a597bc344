"""The items of requests to the Responses API: messages, reasoning, calls, results, and tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from longdraft.models.chat import Message
from longdraft.server.http.entry import current
from longdraft.server.openai import easing
from longdraft.server.openai.contents import joined, only_text
from longdraft.server.openai.request_fields import Name, Parsed, Strict, Text
from longdraft.server.openai.schema import MOST_MESSAGES
from longdraft.server.openai.tools import MAX_TOOLS, Function, FunctionCall


class ItemTextPart(Strict):
    type: Literal["input_text", "output_text"]
    text: Text
    annotations: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    logprobs: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    parsed: Parsed = None


Content = Annotated[
    Text | Annotated[list[ItemTextPart], Field(min_length=1, max_length=MOST_MESSAGES)],
    BeforeValidator(only_text),
]


class Item(Strict):
    """An item of an earlier answer may be sent back as it came."""

    id: Name | None = None
    status: Name | None = None


class MessageItem(Item):
    easings = (easing.item_content,)
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    def add_to(self, messages: list[Message]) -> None:
        message = {
            "role": "system" if self.role == "developer" else self.role,
            "content": joined(self.content),
        }
        reasoning = {"role", "content", "reasoning_content"}
        if self.role == "assistant" and messages and set(messages[-1]) == reasoning:
            message = messages.pop() | message  # the reasoning before it
        messages.append(message)


class CallItem(Item, FunctionCall):
    """A call of a function. namespace: see FunctionTool."""

    type: Literal["function_call"]
    call_id: Name
    namespace: Name | None = None

    def add_to(self, messages: list[Message]) -> None:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        function = {"name": full_name(self), "arguments": self.given}
        messages[-1].setdefault("tool_calls", []).append(
            {"id": self.call_id, "type": "function", "function": function}
        )


class ResultItem(Item):
    easings = (easing.item_output,)
    type: Literal["function_call_output"]
    call_id: Name
    output: Content

    def add_to(self, messages: list[Message]) -> None:
        messages.append(
            {"role": "tool", "tool_call_id": self.call_id, "content": joined(self.output)}
        )


class ThoughtPart(Strict):
    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(Item):
    type: Literal["reasoning"]
    summary: Annotated[list[ThoughtPart], Field(max_length=MOST_MESSAGES)] = Field(
        default_factory=list
    )
    content: Annotated[list[ThoughtPart], Field(max_length=MOST_MESSAGES)] = Field(
        default_factory=list
    )

    def add_to(self, messages: list[Message]) -> None:
        if text := joined(self.content):
            messages.append({"role": "assistant", "content": "", "reasoning_content": text})


def _kind(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="item_type",
        custom_error_message="an item must be a message, reasoning, function_call or "
        "function_call_output",
    ),
]
Items = Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES)]
Input = Annotated[
    Annotated[Text, Tag("text")] | Annotated[Items, Tag("items")],
    Discriminator(lambda given: "text" if isinstance(given, str) else "items"),
]


def messages_of(
    items: Iterable[MessageItem | CallItem | ResultItem | ReasoningItem],
) -> list[Message]:
    """The messages of a conversation.

    Reasoning, a message and calls that follow each other are one message of the assistant.
    """
    messages = list[Message]()
    for item in items:
        item.add_to(messages)
    return messages


class FunctionTool(Function):
    """A function that a model may call; namespace: the name of the group that has it, if any."""

    type: Literal["function"]
    namespace: Name | None = None

    @property
    def function(self) -> Function:
        """The function by the name that the model reads and writes."""
        fields = self.model_dump(exclude={"type", "namespace", "name"})
        return Function(name=full_name(self), **fields)

    @property
    def shown(self) -> dict[str, Any]:
        """The tool as a response repeats it."""
        return self.model_dump(exclude=None if self.namespace else {"namespace"})


class ChosenTool(Strict):
    """The function that must be called. namespace: see FunctionTool."""

    type: Literal["function"]
    name: Name
    namespace: Name | None = None


def full_name(named: FunctionTool | ChosenTool | CallItem) -> str:
    """A function's name, with that of its group before it."""
    return f"{named.namespace}__{named.name}" if named.namespace else named.name


def _functions(tools: Any) -> Any:
    """The functions of all groups.

    Tools of other types, which only OpenAI's own servers can run, are left out and reported; a
    strict server refuses them.
    """
    if not isinstance(tools, list):
        return tools
    functions = list[Any]()
    for tool in tools:
        if _type(tool) == "namespace" and isinstance(tool.get("tools"), list):
            name = tool.get("name")
            functions += [_in_group(name, one) for one in tool["tools"] if _is_taken(one)]
        elif _is_taken(tool):
            functions.append(tool)
    return functions


def _type(tool: Any) -> Any:
    return tool.get("type", "function") if isinstance(tool, dict) else "function"


def _is_taken(tool: Any) -> bool:
    """Whether a tool is checked as a function; another one is reported. Groups have no groups."""
    kind = _type(tool)
    if kind == "function" or current().strict:
        return True
    current().ignore(f"tools.{kind}")
    return False


def _in_group(name: Any, tool: Any) -> Any:
    return tool | {"namespace": name} if isinstance(tool, dict) else tool


FunctionTools = Annotated[
    list[FunctionTool], Field(max_length=MAX_TOOLS), BeforeValidator(_functions)
]
