"""The options of sampling, each with the range that `longdraft.sampling_parameters` has."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from longdraft.sampling_parameters import (
    ETA,
    MIN_P,
    PENALTY,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WINDOW,
    Parameter,
)


def sampling_option(parameter: Parameter[Any], about: str = "") -> Any:
    """An option for a parameter; about: the first sentences of its help, instead of the table's."""

    def check(param: typer.CallbackParam, value: Any) -> Any:
        if value is not None:
            parameter.check(value, str(param.opts[-1]))
        return value

    return typer.Option(
        callback=check, help=f"{about or parameter.about} {parameter.span.capitalize()}."
    )


Temperature = Annotated[float, sampling_option(TEMPERATURE)]
TopK = Annotated[int, sampling_option(TOP_K)]
TopP = Annotated[float, sampling_option(TOP_P)]
MinP = Annotated[float, sampling_option(MIN_P)]
Eta = Annotated[float, sampling_option(ETA)]
OWN = f"{PENALTY.about} By default, the model's own, if it has one."
Penalty = Annotated[float | None, sampling_option(PENALTY, OWN)]
Window = Annotated[int, sampling_option(WINDOW)]
Seed = Annotated[int, sampling_option(SEED)]


def _default(parameter: Parameter[Any]) -> Any:
    """An option for the default of requests that do not send this parameter."""
    about = f"Default of requests. {parameter.about} If not given, the model's own, or the API's."
    return sampling_option(parameter, about)


@dataclass(frozen=True)
class DefaultSampling:
    """Sampling for the fields that requests do not send, by the names of a Sampler."""

    temperature: Annotated[float | None, _default(TEMPERATURE)] = None
    top_k: Annotated[int | None, _default(TOP_K)] = None
    top_p: Annotated[float | None, _default(TOP_P)] = None
    min_p: Annotated[float | None, _default(MIN_P)] = None
    penalty: Annotated[float | None, _default(PENALTY)] = None

    @property
    def given(self) -> dict[str, float]:
        """The options that were given."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
