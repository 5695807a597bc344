"""The fields and rules that all request bodies share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from longdraft import sampling_parameters as parameters
from longdraft.server.http.entry import current
from longdraft.server.openai.conditions import Rule

MOST_ENTRIES = 300  # of an object whose keys the client chooses
NOTHING: tuple[Any, ...] = (False, 0, "", [], {})
# fields of other servers and APIs whose effect the answer would lack
UNSUPPORTED = frozenset(
    (
        "add_generation_prompt",
        "audio",
        "background",
        "chat_template",
        "context",
        "conversation",
        "documents",
        "function_call",
        "functions",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "image_embeds",
        "images",
        "input_embeds",
        "json_schema",
        "prediction",
        "previous_response_id",
        "prompt",
        "prompt_embeds",
        "suffix",
        "template",
        "use_beam_search",
        "web_search_options",
    )
)
Easing = Callable[[dict[str, Any]], dict[str, Any]]
# fields whose loss changes no answer: labels, hints to caches, and what an answer's parts repeat
QUIET = frozenset(
    (
        "annotations",
        "background",
        "cache_control",
        "cache_prompt",
        "client_metadata",
        "encrypted_content",
        "index",
        "phase",
        "prompt_cache_retention",
        "provider_specific_fields",
        "reasoning_details",
        "refusal",
    )
)
MOST_FIELDS = 64  # of any other; each unknown one would be a separate error


def encodable(text: str) -> str:
    """The text.

    Raises ValueError for half a surrogate pair, which JSON can spell, but is not text.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text must not contain half of a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(encodable)]
Name = Annotated[Text, Field(max_length=256)]

# a client's own reading of a text, which it sends back beside it; it is not used here
Parsed = Annotated[Any, Field(exclude=True)]

Temperature = Annotated[float, Field(**parameters.TEMPERATURE.limits)]
TopP = Annotated[float, Field(**parameters.TOP_P.limits)]
TopK = Annotated[int, Field(**parameters.TOP_K.limits)]
MinP = Annotated[float, Field(**parameters.MIN_P.limits)]
Penalty = Annotated[float, Field(**parameters.PENALTY.limits)]
Frequency = Annotated[float, Field(**parameters.FREQUENCY.limits)]
Presence = Annotated[float, Field(**parameters.PRESENCE.limits)]
Bias = Annotated[float, Field(**parameters.BIAS.limits)]
Seed = Annotated[int, Field(**parameters.SEED.limits)]
MaxTokens = Annotated[int, Field(**parameters.MAX_TOKENS.limits)]
# false: no drafts; true: the server's own method
Speculative = bool | Name
# llama-server's name for the longest draft
MostDrafted = Annotated[
    int | None, Field(alias="speculative.n_max", ge=0, le=parameters.MAX_TOKENS.high)
]


def _not_zero(limit: int) -> int:
    if limit == 0:
        raise ValueError("0 tokens are no answer: give 1 or more, or -1 for as many as fit")
    return limit


# -1: as many tokens as fit
Limit = Annotated[
    int,
    Field(ge=-1, le=parameters.MAX_TOKENS.high),
    AfterValidator(_not_zero),
    Field(json_schema_extra={"not": {"const": 0}}),
]


def _few(given: Any) -> Any:
    """Refuses a large object before its entries are looked at."""
    if isinstance(given, dict) and len(given) > MOST_ENTRIES:
        raise ValueError(f"{len(given)} entries are too many: give at most {MOST_ENTRIES}")
    return given


FEW = BeforeValidator(_few)


class Strict(BaseModel):
    """A body whose types are not converted; null counts as absent.

    Unknown fields are ignored and reported, except those of `unsupported`, which would change the
    answer, and `easings` rewrite values without an effect; a strict server refuses all of them.
    rules: between fields; the document has them too.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()
    easings: ClassVar[tuple[Easing, ...]] = ()
    unsupported: ClassVar[frozenset[str]] = frozenset()
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MOST_FIELDS:
            raise ValueError(f"an object has {len(given)} fields: give at most {MOST_FIELDS}")
        if not isinstance(given, dict):
            return given
        named = {key: value for key, value in given.items() if value is not None}
        return named if current().strict else cls._known(cls.eased(named))

    @classmethod
    def eased(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The fields with those left out or rewritten that mean nothing here, but no harm."""
        for easing in cls.easings:
            given = easing(given)
        return given

    @classmethod
    def _known(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The fields without unknown ones, whose names the answer's header and the log have."""
        names = {field.alias or name for name, field in cls.model_fields.items()}
        kept = dict[str, Any]()
        for name, value in given.items():
            if name in names or (name in cls.unsupported and value not in NOTHING):
                kept[name] = value
            elif name not in QUIET and name not in cls.unsupported:
                current().ignore(str(name))
        return kept

    @model_validator(mode="after")
    def _between_fields(self) -> Self:
        for rule in self.rules:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        reference = handler(core)
        schema = handler.resolve_ref_schema(reference)
        if cls.rules:
            schema.setdefault("allOf", []).extend(
                rule.schema(cls.model_fields) for rule in cls.rules
            )
        return reference
