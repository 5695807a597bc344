"""Groups of options that several commands share: a dataclass each, whose fields are the options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from longdraft.methods.drafter_weights import DrafterWeights
    from longdraft.methods.spec import MethodSpec

Dtype = Annotated[
    str, typer.Option(help="Data type of the weights and the KV cache: float32 or bfloat16.")
]
Rope = Annotated[
    str | None,
    typer.Option(
        metavar="KIND:FACTOR",
        help="Extend rotary positions without training: yarn:2 or linear:2 allows twice the "
        "context.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="int8|int4",
        help="Quantize the linear layers on loading: the quantized model is the target "
        "(default: as stored).",
    ),
]


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option per field of each group, in the place of the parameter that holds
    the group.

    A parameter holds a group if its default is a dataclass instance; that instance has the options'
    defaults. A field of a group may hold a group too.
    """
    parameters = list(signature(command, eval_str=True).parameters.values())

    @wraps(command)
    def function(**values: Any) -> None:
        command(**_grouped(parameters, values))

    options = [option for p in parameters for option in _options(p)]
    function.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return function


def command_of(measurement: type[Any]) -> Callable[..., None]:
    """The command whose options are the fields of a dataclass, expanded as by `expand`.

    It makes the dataclass, which checks itself, and calls its method `run`.
    """

    def function(**values: Any) -> None:
        measurement(**_grouped(_parameters(measurement), values)).run()

    function.__doc__ = measurement.__doc__
    function.__signature__ = Signature(options_of(measurement))  # type: ignore[attr-defined]
    return function


def options_of(group: type[Any]) -> list[Parameter]:
    """The options of a dataclass, those of the groups in it in their places."""
    return [option for p in _parameters(group) for option in _options(p)]


def _parameters(group: type[Any]) -> Iterator[Parameter]:
    """A parameter for each field of a dataclass, with its default."""
    types = get_type_hints(group, include_extras=True)
    for f in fields(group):
        default = Parameter.empty if f.default is MISSING else f.default
        if f.default_factory is not MISSING:
            default = f.default_factory()
        yield Parameter(f.name, Parameter.KEYWORD_ONLY, default=default, annotation=types[f.name])


def _options(parameter: Parameter) -> Iterator[Parameter]:
    """The parameter, or one per field of the group that it holds."""
    group = parameter.default
    if not is_dataclass(group):
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return
    for p in _parameters(type(group)):
        yield from _options(p.replace(default=getattr(group, p.name)))


def _grouped(parameters: Iterable[Parameter], values: dict[str, Any]) -> dict[str, Any]:
    """{parameter's name: value or group}; values: of the options, as `_options` names them."""
    return {p.name: _value(p.name, p.default, values) for p in parameters}


def _value(name: str, default: Any, values: dict[str, Any]) -> Any:
    if not is_dataclass(default):
        return values[name]
    group: Any = default
    inside = {f.name: _value(f.name, getattr(group, f.name), values) for f in fields(group)}
    return replace(group, **inside)


@dataclass(frozen=True)
class TargetOptions:
    """How the target is loaded. The fields are keyword arguments of
    `longdraft.models.loading.load`.
    """

    dtype: Dtype = "bfloat16"
    rope: Rope = None
    weights: Weights = None
    kv: Annotated[
        str | None,
        typer.Option(
            metavar="int8|full",
            help="int8 keeps the target's keys and values in 8 bits, which is faster at long "
            "contexts and changes the target model; full does not (default: int8 for a GGUF file "
            "in bfloat16 where the CPU kernels read them faster).",
        ),
    ] = None
    activations: Annotated[
        str | None,
        typer.Option(
            metavar="int8|full",
            help="int8 quantizes the inputs of packed layers (GGUF, --weights), which is faster "
            "and changes the target"
            " model; full does not (default: int8 for a GGUF file where the CPU kernels "
            "support it).",
        ),
    ] = None

    def trained(self, model: str) -> str:
        """The target's name if drafters may have been trained for it; '' with other rotary
        positions.
        """
        return "" if self.rope else model


@dataclass(frozen=True)
class DrafterOptions:
    """The source of a drafter's weights."""

    drafter: Annotated[
        str | None,
        typer.Option(
            help="Folder with the drafter weights that the method needs; a small model is named "
            "as with -m."
        ),
    ] = None
    random_drafter: Annotated[
        bool,
        typer.Option("--random-drafter", help="Use random drafter weights, drawn from --seed."),
    ] = False
    any_target: Annotated[
        bool,
        typer.Option(
            "--any-target", help="Accept a --drafter that was trained for another target."
        ),
    ] = False

    def drafter_weights(self, target: str, seed: int) -> DrafterWeights:
        """target: the name of the model beside which drafters are searched ('': nowhere). Raises
        InputError.
        """
        from longdraft.methods.drafter_weights import DrafterWeights

        return DrafterWeights(self.drafter, self.random_drafter, seed, target, self.any_target)


@dataclass(frozen=True)
class MethodOptions:
    """A method and its options."""

    method: Annotated[str, typer.Option(help="The method; `longdraft methods` lists all.")] = "fill"
    option: Annotated[
        list[str],
        typer.Option(
            "-o", "--option", help="An option of the method as KEY=VALUE; may be repeated."
        ),
    ] = field(default_factory=list)

    def spec(self, drafter: DrafterOptions, target: str, seed: int) -> MethodSpec:
        """See DrafterOptions.drafter_weights. Raises InputError."""
        from longdraft.core.options import pairs
        from longdraft.methods.spec import MethodSpec

        options = pairs(self.option)
        return MethodSpec(self.method, self.method, options, drafter.drafter_weights(target, seed))
