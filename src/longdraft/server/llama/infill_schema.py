"""The fields of llama-server's requests to fill in the middle."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from longdraft.sampling_parameters import MAX_TOKENS
from longdraft.server.decode.fill_middle import Gap
from longdraft.server.openai.request_fields import (
    UNSUPPORTED,
    Frequency,
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
from longdraft.server.openai.schema import MOST_STOPS, CompletionRequest, Stop

MOST_FILES = 1000
SAMPLED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop",
    "ignore_eos",
    "frequency_penalty",
    "presence_penalty",
    "speculative",
    "most_drafted",
)


def eased(given: dict[str, Any]) -> dict[str, Any]:
    """The fields without a seed that asks for any seed, as llama-server spells it."""
    if given.get("seed") in (-1, (1 << 32) - 1):
        return {name: value for name, value in given.items() if name != "seed"}
    return given


class OtherFile(Strict):
    text: Text
    filename: Annotated[Text, Field(max_length=4096)] = "tmp"


class InfillRequest(Strict):
    """A text with a gap.

    prompt: text between the prefix and the gap. n_predict: -1 for as many tokens as fit; 0 reads
    the text, so that it is cached. Sampling fields that are not given have the defaults of
    completions.
    """

    easings = (eased,)
    unsupported = UNSUPPORTED | {"logit_bias"}
    model: Name | None = None
    input_prefix: Text
    input_suffix: Text
    input_extra: Annotated[list[OtherFile], Field(max_length=MOST_FILES)] = Field(
        default_factory=list
    )
    prompt: Text = ""
    n_predict: Annotated[int, Field(ge=-1, le=MAX_TOKENS.high)] = -1
    stream: bool = False
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    ignore_eos: bool = False
    repeat_penalty: Penalty | None = None
    frequency_penalty: Frequency | None = None
    presence_penalty: Presence | None = None
    speculative: Speculative | None = None
    most_drafted: MostDrafted = None

    @property
    def gap(self) -> Gap:
        files = [(file.filename, file.text) for file in self.input_extra]
        return Gap(self.input_prefix, self.input_suffix, self.prompt, files)

    def completion(self, model: str) -> CompletionRequest:
        """The request in OpenAI's names, without the text."""
        sent = self.model_fields_set.intersection(SAMPLED)
        named = self.model_dump(include=sent, by_alias=True)
        if self.repeat_penalty is not None:
            named["repetition_penalty"] = self.repeat_penalty
        asked = CompletionRequest(model=model, prompt="", **named)
        return asked.model_copy(update={"max_tokens": self.n_predict})
