"""The options of sampling, each with the range that `longdraft.sampling_parameters` has."""

from __future__ import annotations

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
