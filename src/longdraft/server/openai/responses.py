"""OpenAI's Responses API, without state.

A request brings the whole conversation, and nothing is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from time import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from longdraft.constraints import closed
from longdraft.models.chat import Message
from longdraft.server.decode.answer import Answer
from longdraft.server.decode.service import Service
from longdraft.server.decode.talk import Offer
from longdraft.server.decode.work import RequestWork
from longdraft.server.http.entry import current
from longdraft.server.http.events import sse
from longdraft.server.http.problems import Problem
from longdraft.server.openai import easing
from longdraft.server.openai.chat_options import Effort, Turn, turn
from longdraft.server.openai.conditions import Given, Rule
from longdraft.server.openai.formats import Json
from longdraft.server.openai.items import ChosenTool, FunctionTools, Input, full_name, messages_of
from longdraft.server.openai.request_fields import Limit, Name, Strict, Text
from longdraft.server.openai.response_output import Emit, ResponseOutput
from longdraft.server.openai.schema import SampledRequest
from longdraft.server.openai.structured import Schema, Structure
from longdraft.server.openai.tools import check_choice

STATELESS = "this server stores no responses: send the whole conversation as `input`"


class TextFormat(Strict):
    """The `response_format` of a chat, with the schema's fields beside the type."""

    rules = (
        Rule(
            "schema_",
            {"type": "json_schema"},
            {"schema_": Given},
            "schema is missing: this type needs it",
        ),
        Rule(
            "schema_",
            {"schema_": Given},
            {"type": "json_schema"},
            "schema belongs to the type 'json_schema'",
        ),
    )
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[Text, Field(max_length=64)] | None = None
    description: Text | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(Strict):
    easings = (easing.text_options,)
    format: TextFormat | None = None
    verbosity: Literal["medium"] = "medium"


class ReasoningOptions(Strict):
    """The effort goes to the chat template; summaries of reasoning are not written."""

    effort: Effort | None = None
    summary: Name | None = None
    generate_summary: Name | None = None


class ResponsesRequest(SampledRequest):
    """The body of a request for a response.

    include: the reasoning is never encrypted; its item always has the parts for which clients that
    keep no state ask.
    """

    easings = (easing.sampled, easing.response)

    input: Input
    reasoning: ReasoningOptions | None = None
    instructions: Text | None = None
    max_output_tokens: Limit | None = None
    n: Literal[1] = 1
    text: TextOptions | None = None
    tools: FunctionTools = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | ChosenTool = "auto"
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Literal["reasoning.encrypted_content"]], Field(max_length=1)] = Field(
        default_factory=list
    )
    truncation: Literal["disabled"] = "disabled"
    previous_response_id: Annotated[Any, WithJsonSchema({"type": "null"})] = None

    @field_validator("previous_response_id", mode="before")
    @classmethod
    def _stateless(cls, given: Any) -> Any:
        raise ValueError(STATELESS)

    @property
    def limit(self) -> int | None:
        return None if self.max_output_tokens == -1 else self.max_output_tokens

    structure_field: ClassVar[str] = "text"

    @property
    def structure(self) -> Structure | None:
        """The structure of the answer; None for any text."""
        form = None if self.text is None else self.text.format
        if form is None or form.type == "text":
            return None
        if form.schema_ is None:
            return Structure("json_object")
        return Structure("json", closed(form.schema_))

    @property
    def messages(self) -> list[Message]:
        first: list[Message] = []
        if self.instructions is not None:
            first.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*first, {"role": "user", "content": self.input}]
        return first + messages_of(self.input)

    @property
    def turn(self) -> Turn:
        effort = None if self.reasoning is None else self.reasoning.effort
        return turn(None, False, {} if effort is None else {"reasoning_effort": effort})

    @property
    def offer(self) -> Offer:
        choice = self.tool_choice
        name = choice if isinstance(choice, str) else full_name(choice)
        functions = [tool.function for tool in self.tools]
        return Offer(functions, name, self.parallel_tool_calls)

    @model_validator(mode="after")
    def _choice_is_a_tool(self) -> ResponsesRequest:
        check_choice(self.offer.functions, self.offer.choice)
        return self


class ResponseObject:
    """The response object in its present state, and its events, numbered in order."""

    def __init__(self, body: ResponsesRequest, work: RequestWork, service: Service):
        self.body = body
        self.work = work
        self.number = 0
        asked = None if body.text is None else body.text.format
        self.format: Json = {"type": "text"}
        if asked is not None:
            self.format = asked.model_dump(by_alias=True, exclude_none=True)
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

    def in_progress(self) -> bytes:
        """The event for a beginning or a silence.

        Some clients (Codex) count events only, so a comment does not keep them waiting.
        """
        return self.event("response.in_progress", response=self.response("in_progress"))

    def output(self, emit: Emit) -> ResponseOutput:
        assert self.work.talk is not None
        tools = {full_name(tool): tool for tool in self.body.tools}
        return ResponseOutput(emit, self.work.talk.dialect.call_id, tools)

    def response(
        self, status: str, items: Sequence[Json] = (), counted: Json | None = None
    ) -> Json:
        """The response object.

        status: in_progress, completed, or incomplete where the limit of tokens ended it.
        """
        body = self.body
        cut = status == "incomplete"
        choice = body.tool_choice
        return self.head | {
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "output": list(items),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": self.work.sampler.temperature,
            "text": {"format": self.format},
            "tool_choice": choice
            if isinstance(choice, str)
            else choice.model_dump(exclude_none=True),
            "tools": [tool.shown for tool in body.tools],
            "top_p": self.work.sampler.top_p,
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
            "output_tokens_details": counted["completion_tokens_details"],
            "total_tokens": counted["total_tokens"],
        }

    def _status(self, finish: str | None) -> str:
        return "incomplete" if finish == "length" else "completed"

    async def whole(self, answer: Answer) -> Json:
        output = self.output(lambda kind, **fields: b"")
        finish = None
        async for _, delta in answer.parts():
            finish = delta.finish
            deque(output.take(delta.parts), 0)
        status = self._status(finish)
        deque(output.finish(status), 0)
        return self.response(status, output.items, answer.usage)

    async def events(self, answer: Answer) -> AsyncIterator[bytes]:
        """The answer as server-sent events.

        An error after the first of them is an event too, and the last.
        """
        output = self.output(self.event)
        finish = None
        yield self.event("response.created", response=self.response("in_progress"))
        yield self.in_progress()
        try:
            async for _, delta in answer.parts():
                finish = delta.finish
                for event in output.take(delta.parts):
                    yield event
        except Problem as problem:
            current().reason = problem.reason
            error = problem.body["error"]
            yield self.event(
                "error",
                code=error["code"] or error["type"],
                message=error["message"],
                param=error["param"],
            )
            return
        status = self._status(finish)
        for event in output.finish(status):
            yield event
        counted = answer.usage
        yield self.event(
            f"response.{status}", response=self.response(status, output.items, counted)
        )
