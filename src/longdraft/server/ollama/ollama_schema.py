"""The schema of requests in Ollama's API."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from longdraft.sampling_parameters import FREQUENCY, MIN_P, PRESENCE
from longdraft.server.ollama.history import as_openai
from longdraft.server.openai.request_fields import (
    UNSUPPORTED,
    Frequency,
    MaxTokens,
    MinP,
    MostDrafted,
    Name,
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
from longdraft.server.openai.schema import MOST_MESSAGES, MOST_STOPS, ChatMessage, Stop
from longdraft.server.openai.structured import Schema
from longdraft.server.openai.tools import MAX_TOOLS, Tool, check_choice


class OllamaOptions(Strict):
    """Ollama's options, with its defaults, but no penalty except the model's own.

    num_predict below 0: as many tokens as there may be. The penalty counts the whole text, which is
    what a repeat_last_n of -1 asks for. num_ctx: has no effect, the context is the server's.
    speculative, speculative.n_max: as in SampledRequest.
    """

    num_predict: Literal[-1, -2] | MaxTokens = -1
    num_ctx: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature = 0.8
    top_k: TopK = 40
    top_p: TopP = 0.9
    min_p: MinP = MIN_P.default
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    repeat_penalty: Penalty | None = None
    repeat_last_n: Literal[-1] = -1
    frequency_penalty: Frequency = FREQUENCY.default
    presence_penalty: Presence = PRESENCE.default
    speculative: Speculative | None = None
    most_drafted: MostDrafted = None


class OllamaRequest(Strict):
    """The fields that chats and generation share.

    format: "json" or a schema. keep_alive: ignored, since models stay loaded.
    """

    unsupported = UNSUPPORTED
    model: Name
    stream: bool = True
    options: OllamaOptions = OllamaOptions()
    keep_alive: float | Text | None = None
    format: Literal["", "json"] | Schema = ""
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: Literal[False] = False

    @property
    def sampled(self) -> dict[str, Any]:
        """The fields of a request in OpenAI's names."""
        named = self.options.model_dump(
            by_alias=True, exclude={"num_predict", "num_ctx", "repeat_penalty", "repeat_last_n"}
        )
        structure = {}
        if self.format:
            asked = {"json_object": True} if self.format == "json" else {"json": self.format}
            structure = {"structured_outputs": asked}
        penalty = self.options.repeat_penalty
        return named | structure | {"model": self.model, "repetition_penalty": penalty}

    def sampled_without(self, defaults: Collection[str]) -> dict[str, Any]:
        """The fields of a request in OpenAI's names.

        defaults: fields for which the server has a default, left out unless they were sent.
        """
        unsent = set(OllamaOptions.model_fields) - self.options.model_fields_set
        replaced = unsent & set(defaults)
        return {name: value for name, value in self.sampled.items() if name not in replaced}

    @property
    def limit(self) -> int | None:
        return self.options.num_predict if self.options.num_predict > 0 else None


class Chat(OllamaRequest):
    """A conversation; without messages, the model is only to be loaded."""

    messages: Annotated[
        list[ChatMessage], Field(max_length=MOST_MESSAGES), BeforeValidator(as_openai)
    ] = Field(default_factory=list)
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_differ(self) -> Chat:
        check_choice([tool.function for tool in self.tools], "auto")
        return self


class Generate(OllamaRequest):
    """A question for the model's chat template; without a prompt, the model is only to be loaded.

    raw: a text to continue. suffix: the text after the gap that the answer fills.
    """

    prompt: Text = ""
    suffix: Text = ""
    system: Text | None = None
    raw: bool = False

    @property
    def tools(self) -> list[Tool]:
        return []

    @property
    def messages(self) -> list[ChatMessage]:
        first = [ChatMessage(role="system", content=self.system)] if self.system else []
        return [*first, ChatMessage(role="user", content=self.prompt)]


class ShowRequest(Strict):
    model: Name
    verbose: bool = False
