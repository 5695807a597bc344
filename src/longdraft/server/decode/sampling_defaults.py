"""Sampling settings for the fields that a request does not send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.recommended import recommended_settings, sampler_of
from longdraft.server.openai.schema import SampledRequest

Body = TypeVar("Body", bound=SampledRequest)
OPTION = "option"
MODEL = "model"


@dataclass(frozen=True)
class SamplingDefaults:
    """The server's sampling defaults, by the names of a request's fields.

    sources: OPTION or MODEL for each field. A field in neither has the API's own default. unusable:
    recommended values that are out of range, by field.
    """

    settings: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, target: LM, options: Mapping[str, float]) -> SamplingDefaults:
        """The defaults for a model: the options, else the model's recommendation.

        options: by the names of a Sampler. Raises InputError for one that is out of range.
        """
        recommended = dict[str, float]()
        unusable = dict[str, str]()
        for name, value in recommended_settings(target).items():
            if _is_in_range(name, value):
                recommended[name] = value
            elif name not in options:
                unusable[_field(name)] = str(value)[:40]
        chosen = {**recommended, **options}
        sampler = sampler_of(chosen)  # checks the ranges
        settings = {_field(name): getattr(sampler, name) for name in chosen}
        sources = {_field(name): OPTION if name in options else MODEL for name in chosen}
        return cls(settings, sources, unusable)

    def fill(self, body: Body) -> Body:
        """The request with these defaults in the fields that it does not send."""
        missing: dict[str, Any] = {}
        for name, value in self.settings.items():
            if name not in body.model_fields_set:
                missing[name] = value
        return body.model_copy(update=missing)

    def __str__(self) -> str:
        parts = [
            f"{name} {value:g} ({self.sources[name]})" for name, value in self.settings.items()
        ]
        return ", ".join([*parts, "others by API"])


def _is_in_range(name: str, value: float) -> bool:
    try:
        sampler_of({name: value})
    except (InputError, TypeError, ValueError, OverflowError):  # files may have any value
        return False
    return True


def _field(name: str) -> str:
    """The request's field for a setting of a Sampler."""
    return "repetition_penalty" if name == "penalty" else name
