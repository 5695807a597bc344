"""The fields and rules that all request bodies share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from longdraft import sampling_parameters as parameters
from longdraft.server.openai.conditions import Rule

MOST_ENTRIES = 300  # of an object whose keys the client chooses
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


def _few(given: Any) -> Any:
    """Refuses a large object before its entries are looked at."""
    if isinstance(given, dict) and len(given) > MOST_ENTRIES:
        raise ValueError(f"{len(given)} entries are too many: give at most {MOST_ENTRIES}")
    return given


FEW = BeforeValidator(_few)


class Strict(BaseModel):
    """A body whose types are not converted; unknown fields are errors, and null counts as absent.

    rules: between fields; the document has them too.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MOST_FIELDS:
            raise ValueError(f"an object has {len(given)} fields: give at most {MOST_FIELDS}")
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None}

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
