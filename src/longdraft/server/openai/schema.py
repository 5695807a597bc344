"""The fields of requests, each typed and bounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from longdraft.sampling_parameters import FREQUENCY, MAX_TOKENS, MIN_P, PRESENCE, TOP_K, TOP_P
from longdraft.server.decode.talk import Offer
from longdraft.server.openai import easing
from longdraft.server.openai.chat_options import Effort, Turn, Variables, turn
from longdraft.server.openai.conditions import Given, NotGiven, Rule, wrong
from longdraft.server.openai.contents import joined, only_text
from longdraft.server.openai.request_fields import (
    FEW,
    MOST_ENTRIES,
    UNSUPPORTED,
    Bias,
    Frequency,
    Limit,
    MinP,
    MostDrafted,
    Name,
    Parsed,
    Penalty,
    Presence,
    Seed,
    Speculative,
    Strict,
    Temperature,
    Text,
    TopK,
    TopP,
)
from longdraft.server.openai.structured import Structured
from longdraft.server.openai.tools import MAX_TOOLS, Tool, ToolCall, ToolChoice, check_choice

MOST_N = 8  # choices of a prompt
MOST_CHOICES = 64  # choices of a request
MOST_STOPS = 16
LONGEST_STOP = 256  # characters
MOST_TOP = 20  # most likely tokens beside a token's log-probability
MOST_MESSAGES = 1000
MOST_TOKENS = 1 << 31

Stop = Annotated[Text, Field(min_length=1, max_length=LONGEST_STOP)]
TokenId = Annotated[int, Field(ge=0, lt=MOST_TOKENS)]
# not an error for each of a million wrong ones
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Tokens = Annotated[TokenIds, Field(min_length=1)]
BY_TEMPLATE = "add_special_tokens must be false for messages: their template writes special tokens"
# in TokenizeRequest
OF_CHATS = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
)
CONTINUED = Rule(
    "add_generation_prompt",
    {"continue_final_message": True},
    {"add_generation_prompt": (False, None)},
    "add_generation_prompt begins another message: leave it out beside continue_final_message",
)
A_TOOLS = "a message of a tool has a tool_call_id, and no other has one"
Biases = Annotated[
    dict[Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")], Bias],
    FEW,
    Field(json_schema_extra={"maxProperties": MOST_ENTRIES, "additionalProperties": False}),
]


def few_choices(schema: dict[str, Any]) -> None:
    """Adds to a completion's JSON Schema: with n choices of each, there are fewer prompts."""
    ids = {"type": "array", "items": {"type": "integer"}}
    for n in range(2, MOST_N + 1):
        fewer = {
            "anyOf": [{"type": "string"}, ids, {"type": "array", "maxItems": MOST_CHOICES // n}]
        }
        given = {"properties": {"n": {"const": n}}, "required": ["n"]}
        schema.setdefault("allOf", []).append(
            {"if": given, "then": {"properties": {"prompt": fewer}}}
        )


def one_effort(schema: dict[str, Any]) -> None:
    """Adds to a chat's JSON Schema: reasoning_effort is given once."""
    variables = {
        "properties": {"chat_template_kwargs": {"not": {"required": ["reasoning_effort"]}}}
    }
    given = {
        "properties": {"reasoning_effort": {"not": {"type": "null"}}},
        "required": ["reasoning_effort"],
    }
    schema.setdefault("allOf", []).append({"if": given, "then": variables})


class StreamOptions(Strict):
    """The options of a stream.

    continuous_usage_stats: with include_usage, every part has the usage so far (vLLM's; load
    generators ask).
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


class SampledRequest(Strict):
    """The fields of every request that is answered with text.

    top_k to stop_token_ids are vLLM's additions to OpenAI's. A temperature that is not given is the
    server's default (see SamplingDefaults), or 1, as in OpenAI's API.

    user to metadata are labels. Of store and service_tier only the values that ask for nothing are
    accepted. min_tokens: no end token, stop token or stop string ends the answer before it has this
    many tokens. speculative: see MethodChoice.
    """

    rules = (
        Rule(
            "stream_options",
            {"stream_options": Given},
            {"stream": True},
            "stream_options needs stream=true",
        ),
    )
    easings = (easing.sampled,)
    unsupported = UNSUPPORTED
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
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    metadata: Annotated[
        dict[Name, Annotated[Text, Field(max_length=512)]], Field(max_length=16), FEW
    ] = Field(default_factory=dict)
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"
    top_k: TopK = TOP_K.default
    min_p: MinP = MIN_P.default
    repetition_penalty: Penalty | None = None
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] = Field(default_factory=list)
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS.high)] = 0
    speculative: Speculative | None = None
    most_drafted: MostDrafted = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


class ChatTextPart(Strict):
    type: Literal["text"]
    text: Text


class ChatMessage(Strict):
    rules = (
        Rule(
            "tool_calls",
            {"tool_calls": Given},
            {"role": "assistant"},
            "tool_calls are the assistant's",
        ),
        Rule(
            "reasoning_content",
            {"reasoning_content": Given},
            {"role": "assistant"},
            "it is the assistant's",
        ),
        Rule("reasoning", {"reasoning": Given}, {"role": "assistant"}, "it is the assistant's"),
        Rule("tool_call_id", {"role": "tool"}, {"tool_call_id": Given}, A_TOOLS),
        Rule("tool_call_id", {"tool_call_id": Given}, {"role": "tool"}, A_TOOLS),
        Rule(
            "content",
            {"content": NotGiven},
            {"tool_calls": Given},
            "content is missing: give a text",
        ),
    )
    easings = (easing.message,)
    unsupported = UNSUPPORTED
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Text | Annotated[list[ChatTextPart], Field(min_length=1, max_length=MOST_MESSAGES)],
        BeforeValidator(only_text),
    ] = ""
    name: Name | None = None
    tool_call_id: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1, max_length=MAX_TOOLS)] | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None  # the same, as vLLM names it
    parsed: Parsed = None

    @property
    def thought(self) -> str | None:
        return self.reasoning if self.reasoning_content is None else self.reasoning_content

    @property
    def plain(self) -> dict[str, Any]:
        """The message as chat templates read it; a developer's message is the system's."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": joined(self.content)}
        message |= self.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
        if self.thought is not None:
            message["reasoning_content"] = self.thought
        if self.tool_calls is not None:
            message["tool_calls"] = [call.plain for call in self.tool_calls]
        return message


class ChatRequest(Structured, SampledRequest):
    model_config = ConfigDict(json_schema_extra=one_effort)
    rules = (
        *SampledRequest.rules,
        Rule(
            "top_logprobs",
            {"top_logprobs": Given},
            {"logprobs": True},
            "top_logprobs needs logprobs=true",
        ),
        CONTINUED,
    )
    easings = (easing.sampled, easing.chat)

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] = Field(default_factory=list)
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Variables = Field(default_factory=dict)
    return_progress: bool = False

    @property
    def offer(self) -> Offer:
        choice = self.tool_choice
        name = choice if isinstance(choice, str) else choice.function.name
        return Offer([tool.function for tool in self.tools], name, self.parallel_tool_calls)

    @model_validator(mode="after")
    def _choice_is_a_tool(self) -> ChatRequest:
        check_choice(self.offer.functions, self.offer.choice)
        return self

    @property
    def turn(self) -> Turn:
        """The options that end the conversation, and the variables of its template."""
        variables = self.chat_template_kwargs
        if self.reasoning_effort is not None:
            variables = variables | {"reasoning_effort": self.reasoning_effort}
        return turn(self.add_generation_prompt, self.continue_final_message, variables)

    @model_validator(mode="after")
    def _once(self) -> ChatRequest:
        if self.reasoning_effort is not None and "reasoning_effort" in self.chat_template_kwargs:
            raise wrong(
                "reasoning_effort", "reasoning_effort is in chat_template_kwargs too: give it once"
            )
        same = (None, self.max_tokens)
        if self.max_tokens is not None and self.max_completion_tokens not in same:
            why = (
                f"it is {self.max_completion_tokens}, and max_tokens, its older name, is "
                f"{self.max_tokens}: give one"
            )
            raise wrong("max_completion_tokens", why)
        return self

    @property
    def limit(self) -> int | None:
        limit = self.max_tokens
        if self.max_completion_tokens is not None:
            limit = self.max_completion_tokens
        return None if limit == -1 else limit


class CompletionRequest(Structured, SampledRequest):
    model_config = ConfigDict(json_schema_extra=few_choices)
    rules = (
        *SampledRequest.rules,
        Rule("max_tokens", {"max_tokens": 0}, {"echo": True}, "max_tokens=0 needs echo=true"),
        Rule(
            "echo",
            {"echo": True},
            {"suffix": (None, "")},
            "echo repeats a prompt that is continued, and suffix asks to fill in the middle: "
            "give one of them",
        ),
        Rule(
            "parse_special",
            {"parse_special": True},
            {"suffix": (None, "")},
            "the texts around a gap are read as plain text: leave it out beside suffix",
        ),
    )

    prompt: (
        Text | Tokens | Annotated[list[Text | Tokens], Field(min_length=1, max_length=MOST_CHOICES)]
    )
    max_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS.high)] = 16
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    echo: bool = False
    suffix: Text | None = None
    best_of: Literal[1] = 1
    return_progress: bool = False
    parse_special: bool = False

    @property
    def limit(self) -> int | None:
        """The most new tokens; an answer that only repeats its prompt decodes one, too."""
        return None if self.max_tokens == -1 else max(self.max_tokens, 1)

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, of which choices k * n to k * n + n - 1 answer number k."""
        is_single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if is_single else list(self.prompt)  # type: ignore[list-item]

    @model_validator(mode="after")
    def _few_choices(self) -> CompletionRequest:
        if (count := len(self.prompts) * self.n) > MOST_CHOICES:
            why = (
                f"{len(self.prompts)} prompts are {count} choices with n={self.n}: at most "
                f"{MOST_CHOICES}"
            )
            raise wrong("prompt", why)
        return self


class TokenizeRequest(Strict):
    """A prompt, or a conversation as a chat request has it."""

    rules = (
        Rule(
            "prompt",
            {"prompt": NotGiven},
            {"messages": Given},
            "there is neither a prompt nor messages: give one of them",
        ),
        Rule(
            "messages",
            {"prompt": Given},
            {"messages": NotGiven},
            "there are a prompt and messages: give one of them",
        ),
        *(
            Rule(name, {name: Given}, {"messages": Given}, f"{name} needs messages")
            for name in OF_CHATS
        ),
        Rule(
            "add_special_tokens",
            {"messages": Given},
            {"add_special_tokens": (False, None)},
            BY_TEMPLATE,
        ),
        CONTINUED,
    )

    model: Name | None = None
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)] | None = (
        None
    )
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Variables = Field(default_factory=dict)

    @property
    def turn(self) -> Turn:
        return turn(
            self.add_generation_prompt, self.continue_final_message, self.chat_template_kwargs
        )


class DetokenizeRequest(Strict):
    model: Name | None = None
    tokens: Annotated[TokenIds, Field(max_length=1 << 20)]
