"""What all request bodies have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def encodable(text: str) -> str:
    """The text. Half a surrogate pair, which JSON can spell, is not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text must not contain half of a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(encodable)]
Name = Annotated[Text, Field(max_length=256)]


class Strict(BaseModel):
    """Types are not converted, unknown fields are errors, and null is as if the field were not there."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given
