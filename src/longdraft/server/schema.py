"""What requests may contain: every field is typed and bounded, and a field that is not here is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from longdraft.sampling_parameters import FREQUENCY, MAX_TOKENS, MIN_P, PENALTY, PRESENCE, TOP_K, TOP_P
from longdraft.server.fields import (
    FEW,
    Bias,
    Frequency,
    MaxTokens,
    MinP,
    Name,
    Penalty,
    Presence,
    Seed,
    Strict,
    Temperature,
    Text,
    TopK,
    TopP,
)
from longdraft.server.talk import Offer
from longdraft.server.tools import MOST_TOOLS, Choice, Tool, ToolCall, check_choice

MOST_N = 8  # choices of a request
MOST_STOPS, LONGEST_STOP = 16, 256  # stop strings, and characters of one
MOST_TOP = 20  # most likely tokens beside a token's log-probability
MOST_MESSAGES = 1000
MOST_TOKENS = 1 << 31


Stop = Annotated[Text, Field(min_length=1, max_length=LONGEST_STOP)]
TokenId = Annotated[int, Field(ge=0, lt=MOST_TOKENS)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]  # not an error for each of a million wrong ones
Tokens = Annotated[TokenIds, Field(min_length=1)]
Biases = Annotated[dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias], FEW]


class StreamOptions(Strict):
    """continuous_usage_stats: with include_usage, every part has the usage so far (vLLM's; load generators ask)."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampled(Strict):
    """Fields of every request that is answered with text. top_k to stop_token_ids are vLLM's additions to OpenAI's.

    A temperature that is not given is 1, as in OpenAI's API.

    user and metadata are labels. Of store and service_tier only the values that ask for nothing are accepted.
    """

    model: Name
    temperature: Temperature = 1.0
    top_p: TopP = TOP_P.default
    frequency_penalty: Frequency = FREQUENCY.default
    presence_penalty: Presence = PRESENCE.default
    logit_bias: Biases = Field(default_factory=dict)
    seed: Seed | None = None
    n: Annotated[int, Field(ge=1, le=MOST_N)] = 1
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Name | None = None
    metadata: Annotated[dict[Name, Annotated[Text, Field(max_length=512)]], FEW, Field(max_length=16)] = Field(
        default_factory=dict
    )
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"
    top_k: TopK = TOP_K.default
    min_p: MinP = MIN_P.default
    repetition_penalty: Penalty = PENALTY.default
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _options_of_streams(self) -> Sampled:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream=true")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


class TextPart(Strict):
    type: Literal["text"]
    text: Text


SENSES = {"image": "images", "audio": "sound", "video": "video", "file": "files"}  # first words of parts' types


def only_text(content: Any) -> Any:
    """The content of a message. Raises ValueError for parts that are images, sound, video or files, by name."""
    parts = content if isinstance(content, list) else []
    kinds = [str(part.get("type")).removeprefix("input_").split("_")[0] for part in parts if isinstance(part, dict)]
    other = next((SENSES[kind] for kind in kinds if kind in SENSES), None)
    if other:
        raise ValueError(f"this server reads no {other}: send parts of text only")
    return content


def joined(content: str | Sequence[Any]) -> str:
    """The text of a message, which may come in parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Text | Annotated[list[TextPart], Field(min_length=1, max_length=MOST_MESSAGES)], BeforeValidator(only_text)
    ] = ""
    name: Name | None = None
    tool_call_id: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1, max_length=MOST_TOOLS)] | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None  # the same, as vLLM names it

    @model_validator(mode="after")
    def _parts(self) -> ChatMessage:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("tool_calls are the assistant's")
        if self.thought is not None and self.role != "assistant":
            raise ValueError("reasoning_content is the assistant's")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("a message of a tool has a tool_call_id, and no other has one")
        if self.tool_calls is None and "content" not in self.model_fields_set:
            raise ValueError("content is missing: give a text")
        return self

    @property
    def thought(self) -> str | None:
        return self.reasoning if self.reasoning_content is None else self.reasoning_content

    @property
    def plain(self) -> dict[str, Any]:
        """As chat templates read it; a developer's message is the system's."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": joined(self.content)}
        message |= self.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
        message |= {} if self.thought is None else {"reasoning_content": self.thought}
        return message | ({} if self.tool_calls is None else {"tool_calls": [call.plain for call in self.tool_calls]})


class ResponseFormat(Strict):
    type: Literal["text"]


class ChatRequest(Sampled):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | Choice = "auto"
    parallel_tool_calls: bool = True
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] = Field(default_factory=list)

    @property
    def offer(self) -> Offer:
        choice = self.tool_choice if isinstance(self.tool_choice, str) else self.tool_choice.function.name
        return Offer([tool.function for tool in self.tools], choice, self.parallel_tool_calls)

    @model_validator(mode="after")
    def _choice_is_a_tool(self) -> ChatRequest:
        check_choice(self.offer.functions, self.offer.choice)
        return self

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs=true")
        return self

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionRequest(Sampled):
    prompt: Text | Tokens | Annotated[list[Text | Tokens], Field(min_length=1, max_length=1)]
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS.high)] = 16
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    echo: bool = False
    best_of: Literal[1] = 1

    @model_validator(mode="after")
    def _no_tokens_needs_echo(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens=0 needs echo=true")
        return self


class TokenizeRequest(Strict):
    model: Name | None = None
    prompt: Text
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    model: Name | None = None
    tokens: Annotated[TokenIds, Field(max_length=1 << 20)]
