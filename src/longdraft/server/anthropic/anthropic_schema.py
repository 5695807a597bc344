"""The schema of requests in Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from longdraft.constraints import closed
from longdraft.server.decode.talk import Offer
from longdraft.server.http.entry import current
from longdraft.server.openai.conditions import Given, Rule, wrong
from longdraft.server.openai.request_fields import Name, Strict, Text
from longdraft.server.openai.schema import MOST_STOPS, SampledRequest, Stop, only_text
from longdraft.server.openai.structured import Schema, Structure
from longdraft.server.openai.tools import MAX_TOOLS, Function, check_choice, is_shallow

MOST_TURNS = 10_000
MOST_BLOCKS = 1000
BLOCKS = {"text", "thinking", "tool_use", "tool_result"}  # that are read; others are ignored
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# fields with an effect that is not given here
WITHOUT_EFFECT = ("mcp_servers", "container")


class TextBlock(Strict):
    type: Literal["text"]
    text: Text


class ThinkingBlock(Strict):
    type: Literal["thinking"]
    thinking: Text


class ToolUseBlock(Strict):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: Annotated[Any, AfterValidator(is_shallow)] = None


class OtherBlock(Strict):
    """A block that says nothing to this model, such as a call of a tool on Anthropic's servers."""

    model_config = ConfigDict(extra="ignore")
    type: Name


def _readable(content: Any) -> Any:
    """The content.

    Raises ValueError for blocks that only a model of images or files could read.
    """
    if not isinstance(content, str | list):
        raise ValueError("give a text or a list of blocks")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "document":
            raise ValueError("this server reads no documents: send their text as text")
    return only_text(content)


def _kind(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return kind if isinstance(kind, str) and kind in BLOCKS else "other"


def _form(content: Any) -> str:
    return "string" if isinstance(content, str) else "list"


def _kind_of_result(block: Any) -> str:
    return "text" if _kind(block) == "text" else "other"


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[OtherBlock, Tag("other")],
    Discriminator(_kind_of_result),
]
TextContent = Annotated[
    Annotated[Text, Tag("string")]
    | Annotated[list[ResultBlock], Field(max_length=MOST_BLOCKS), Tag("list")],
    Discriminator(_form),
    BeforeValidator(_readable),
]


class ToolResultBlock(Strict):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: TextContent = ""
    is_error: bool = False


AnyBlock = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | OtherBlock
Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(_kind),
]
Content = Annotated[
    Annotated[Text, Tag("string")]
    | Annotated[list[Block], Field(max_length=MOST_BLOCKS), Tag("list")],
    Discriminator(_form),
    BeforeValidator(_readable),
]


class InputMessage(Strict):
    role: Literal["user", "assistant", "system"]
    content: Content = ""


class MessagesToolChoice(Strict):
    rules = (Rule("name", {"type": "tool"}, {"name": Given}, "name is missing: give a tool's"),)
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(Strict):
    effort: Name | None = None
    format: OutputFormat | None = None


class Thinking(Strict):
    type: Name


def _as_function(tool: Any) -> Any:
    """A tool with the field names of a Function, and on a strict server with its other fields."""
    if not isinstance(tool, dict):
        return tool
    kept = tool.keys() - {"type", "input_schema"}
    if not current().strict:
        kept &= {"name", "description", "strict"}
    return {key: tool[key] for key in kept} | {"parameters": tool.get("input_schema")}


def is_remote(tool: Any) -> bool:
    """Whether a tool is of a type that only Anthropic's servers or models know."""
    return isinstance(tool, dict) and tool.get("type") not in (None, "custom")


def spelled(name: Any) -> str:
    """A name as a header can have it."""
    text = str(name)
    return text if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text) else "unnamed"


class MessagesRequest(SampledRequest):
    """The body of a request for a message, and of one that counts its tokens.

    remote_tools: types of tools that are not offered to the model. Fields of SampledRequest that
    Anthropic's API lacks, such as seed, work too.
    """

    structure_field: ClassVar[str] = "output_config"

    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=MOST_TURNS)]
    system: TextContent = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Literal[1] = 1
    stop_sequences: Annotated[list[Stop], Field(max_length=MOST_STOPS)] = Field(
        default_factory=list
    )
    tools: Annotated[list[Function], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    remote_tools: list[str] = Field(default_factory=list)
    tool_choice: MessagesToolChoice = MessagesToolChoice()
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = None
    mcp_servers: Any = None
    container: Any = None
    metadata: Any = None
    service_tier: Any = None
    store: Any = None

    @model_validator(mode="before")
    @classmethod
    def _split_tools(cls, given: Any) -> Any:
        """Separates the tools of other types than functions."""
        if not isinstance(given, dict):
            return given
        tools = given.get("tools")
        if not isinstance(tools, list):
            return given | {"remote_tools": []}
        return given | {
            "tools": [_as_function(tool) for tool in tools if not is_remote(tool)],
            "remote_tools": [spelled(tool["type"]) for tool in tools if is_remote(tool)],
        }

    @model_validator(mode="after")
    def _choice_is_a_tool(self) -> MessagesRequest:
        if self.remote_tools and self.offer.choice not in ("auto", "none"):
            names = [function.name for function in self.tools]
            if not names or self.tool_choice.name not in (None, *names):
                raise wrong("tool_choice", "this tool is not run here: offer functions")
        check_choice(self.tools, self.offer.choice)
        return self

    @property
    def stops(self) -> list[str]:
        return list(self.stop_sequences)

    @property
    def structure(self) -> Structure | None:
        """The structure of the answer; None for any text."""
        form = self.output_config.format or self.output_format
        return None if form is None else Structure("json", closed(form.schema_))

    @property
    def offer(self) -> Offer:
        """The functions that may be called.

        Where a call is required, there is one, unless the client asks for several: models with
        little training on calls repeat them.
        """
        choice = self.tool_choice
        name = choice.name if choice.type == "tool" else CHOICES[choice.type]
        alone = choice.disable_parallel_tool_use
        if alone is None:
            alone = choice.type == "any"
        return Offer(self.tools, name or "auto", not alone)

    @property
    def ignored(self) -> list[str]:
        """The parts of the request that the answer does not follow."""
        fields = [name for name in WITHOUT_EFFECT if getattr(self, name)]
        return [*fields, *dict.fromkeys([*self.remote_tools, *self._other_blocks()])]

    def _other_blocks(self) -> Iterator[str]:
        """The types of blocks that the model does not see, those of results too."""
        for message in self.messages:
            blocks = _listed(message.content)
            for block in [*blocks, *chain.from_iterable(map(_results, blocks))]:
                if isinstance(block, OtherBlock) and block.type != "redacted_thinking":
                    yield spelled(block.type)


def _listed(content: str | list[Any]) -> list[Any]:
    return content if isinstance(content, list) else []


def _results(block: Any) -> list[Any]:
    return _listed(block.content) if isinstance(block, ToolResultBlock) else []
