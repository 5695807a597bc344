"""OpenAI's Responses API, without state: a request brings the whole conversation, and nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import time
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from longdraft.constraints import Constraints
from longdraft.models.chat import Message
from longdraft.server.answer import Answer
from longdraft.server.conditions import Present, Rule
from longdraft.server.entry import current
from longdraft.server.events import sse
from longdraft.server.fields import MaxTokens, Name, Strict, Text
from longdraft.server.formats import Json
from longdraft.server.problems import Problem
from longdraft.server.schema import MOST_MESSAGES, Sampled, joined, only_text
from longdraft.server.service import Service
from longdraft.server.structured import Make, Schema
from longdraft.server.work import Work

STATELESS = "this server stores no responses: send the whole conversation as `input`"


class Part(Strict):
    type: Literal["input_text", "output_text"]
    text: Text
    annotations: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    logprobs: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)


class Item(Strict):
    """A message; one of an earlier answer may be sent back as it came."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Text | Annotated[list[Part], Field(min_length=1, max_length=MOST_MESSAGES)], BeforeValidator(only_text)
    ]
    id: Name | None = None
    status: Name | None = None

    @property
    def plain(self) -> Message:
        return {"role": "system" if self.role == "developer" else self.role, "content": joined(self.content)}


class TextFormat(Strict):
    """As `response_format` of a chat, with the schema's fields beside the type."""

    rules = (
        Rule("schema_", {"type": "json_schema"}, {"schema_": Present}, "schema is missing: this type needs it"),
        Rule("schema_", {"schema_": Present}, {"type": "json_schema"}, "schema belongs to the type 'json_schema'"),
    )
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[Text, Field(max_length=64)] | None = None
    description: Text | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(Strict):
    format: TextFormat | None = None
    verbosity: Literal["medium"] = "medium"


class ResponsesRequest(Sampled):
    input: Text | Annotated[list[Item], Field(min_length=1, max_length=MOST_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: MaxTokens | None = None
    n: Literal[1] = 1
    text: TextOptions | None = None
    tools: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    truncation: Literal["disabled"] = "disabled"
    previous_response_id: Annotated[Any, WithJsonSchema({"type": "null"})] = None

    @field_validator("previous_response_id", mode="before")
    @classmethod
    def _stateless(cls, given: Any) -> Any:
        raise ValueError(STATELESS)

    structure_field: ClassVar[str] = "text"

    @property
    def structure(self) -> Make | None:
        """What makes the constraint; None for none."""
        form = None if self.text is None else self.text.format
        if form is None or form.type == "text":
            return None
        schema = form.schema_
        return Constraints.json_object if schema is None else lambda constraints: constraints.json_schema(schema)

    @property
    def messages(self) -> list[Message]:
        first: list[Message] = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        if isinstance(self.input, str):
            return [*first, {"role": "user", "content": self.input}]
        return first + [item.plain for item in self.input]


class ResponseObject:
    """The response object as it stands, and its events, numbered in order."""

    def __init__(self, body: ResponsesRequest, work: Work, service: Service):
        self.body, self.work, self.number = body, work, 0
        asked = None if body.text is None else body.text.format
        self.format = {"type": "text"} if asked is None else asked.model_dump(by_alias=True, exclude_none=True)
        self.item = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant"}
        self.head = {
            "id": current().identify("resp_"),
            "object": "response",
            "created_at": int(time()),
            "model": service.model,
        }

    def event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self.number, **fields}
        self.number += 1
        return sse(event, kind)

    def part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def message(self, status: str, text: str | None) -> Json:
        return self.item | {"status": status, "content": [] if text is None else [self.part(text)]}

    def response(self, status: str, text: str | None = None, counted: Json | None = None) -> Json:
        """status: in_progress, completed, or incomplete where the limit of tokens ended it."""
        body, cut = self.body, status == "incomplete"
        return self.head | {
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "output": [] if text is None else [self.message(status, text)],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": {"format": self.format},
            "tool_choice": "none",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if counted is None else self._usage(counted),
            "user": body.user,
            "metadata": body.metadata,
        }

    def _usage(self, counted: Json) -> Json:
        return {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0} | counted["completion_tokens_details"],
            "total_tokens": counted["total_tokens"],
        }

    async def whole(self, answer: Answer) -> Json:
        text, finish = "", None
        async for _, delta in answer.parts():
            text, finish = text + delta.text, delta.finish
        status = "incomplete" if finish == "length" else "completed"
        return self.response(status, text, answer.usage)

    async def events(self, answer: Answer) -> AsyncIterator[bytes]:
        """The answer as server-sent events. An error after the first of them is an event too, and the last."""
        place = {"item_id": self.item["id"], "output_index": 0, "content_index": 0}
        text, finish = "", None
        yield self.event("response.created", response=self.response("in_progress"))
        yield self.event("response.in_progress", response=self.response("in_progress"))
        yield self.event("response.output_item.added", output_index=0, item=self.message("in_progress", None))
        yield self.event("response.content_part.added", **place, part=self.part(""))
        try:
            async for _, delta in answer.parts():
                text, finish = text + delta.text, delta.finish
                if delta.text:
                    yield self.event("response.output_text.delta", **place, delta=delta.text, logprobs=[])
        except Problem as problem:
            current().reason, error = problem.reason, problem.body["error"]
            yield self.event(
                "error", code=error["code"] or error["type"], message=error["message"], param=error["param"]
            )
            return
        status = "incomplete" if finish == "length" else "completed"
        yield self.event("response.output_text.done", **place, text=text, logprobs=[])
        yield self.event("response.content_part.done", **place, part=self.part(text))
        yield self.event("response.output_item.done", output_index=0, item=self.message(status, text))
        counted = answer.usage
        yield self.event(f"response.{status}", response=self.response(status, text, counted))
