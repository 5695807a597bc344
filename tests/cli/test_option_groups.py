"""Options that several commands share: one wording, type and default for all, and groups that
become flat options.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer
from test_cli_fuzz import KNOWN
from typer.testing import CliRunner

from longdraft.cli import option_groups
from longdraft.cli.option_groups import TargetOptions, expand

# Of an option, the commands (by their names, or by the first word of these) in which it means
# something else, and why.
# Commands with the same reason agree among themselves.
OWN = {
    "any_target": {
        "import": "compares tables of a released drafter",
        "export-drafter": "writes a drafter",
    },
    "environment": {"train target": "is on unless it is turned off"},
    "drafter": {"plan": "a small model's config is enough"},
    "max_new_tokens": {
        "chat": "of an answer",
        "serve": "an upper limit for clients",
        "bench tasks": "set by the suite",
        "bench peers-tasks": "set by the suite",
    },
    "methods": {
        "plan": "all, unless some are named",
        "serve": "allowed to requests, not compared",
    },
    "model": {
        "methods": "only drafters beside it are looked up",
        "demo": "depends on what was fetched",
        "import": "a drafter's target",
        "export-drafter": "a drafter's target",
        "serve": "several",
    },
    "name": {"fetch": "a model to download"},
    "option": {"bench": "of one of several methods", "train": "of an objective"},
    "prompt_cache": {"generate": "a file, for one prompt"},
    "chat": {"audit": "asks a server for chats"},
    "prompt_file": {
        "generate": "standard input too, and rows of a batch",
        "audit": "not needed with --url",
    },
    "repeat": {"tune": "turns, of which the shortest counts"},
    "resume": {"train": "from a checkpoint"},
    "text": {"bench": "the names of texts that are packaged"},
    "threads": {"train": "0 is a valid number, torch's choice"},
    "work": {"train target": "does not depend on --out"},
}
SAMPLING = {
    **{
        name: {"chat": "the model's own, unless it is given", "serve": "a default of requests"}
        for name in ("top_k", "top_p", "penalty")
    },
    "min_p": {"serve": "a default of requests"},
    "seed": {"generate": "derives a seed per row", "audit": "the first of several"},
    "temperature": {
        "demo": "the scene's",
        "audit": "both if none is given",
        "chat": "the model's own",
        "serve": "a default of requests",
        "train text": "without a greedy default",
    },
}
# What a command reads or writes, and sizes of its work: each command says it in its own words.
EACH = {"out", "folder", "prompt_tokens", "batch", "context"}
OWN_WORDS = {"train target", "train text", "bench tasks", "bench peers-tasks"}  # beside their group
# The defaults of these suit the command: a model to talk with, sampling for answers, an exact dtype
# for an audit.
DEFAULTS = {"model", "method", "dtype", "max_new_tokens", "temperature", "top_p", "penalty"}
DEFAULTS |= {"prompt_file", "stage", "step_tokens", "decay", "probe_every", "methods", "repeat"}
DEFAULTS |= {"accept"}
WORDING = (
    "opts",
    "secondary_opts",
    "metavar",
    "min",
    "max",
    "multiple",
    "is_flag",
    "required",
    "help",
)


def wording(option: Any) -> tuple[Any, ...]:
    """What a user sees of an option, but its default."""
    optional = {"required"} if option.name in DEFAULTS else set()
    seen = [str(getattr(option, name, None)) for name in WORDING if name not in optional]
    new = hasattr(option, "type_descriptor")  # older versions of typer have click's type
    return (str(option.type_descriptor.annotation if new else option.type.to_info_dict()), *seen)


def meaning(option: str, command: str) -> str:
    """Commands for which this is equal share the option."""
    first = command.split()[0]
    if option in EACH:
        return command if command in OWN_WORDS else first
    reasons = (OWN | SAMPLING).get(option, {})
    return reasons.get(command) or reasons.get(first) or ""


def faults(commands: dict[str, Any]) -> list[str]:
    """Each command whose option differs from that of an earlier command with the same meaning."""
    first = {}
    different = []
    for command, parsed in commands.items():
        for option in parsed.params:
            key = option.name, meaning(option.name, command)
            other = first.setdefault(key, option)
            if wording(other) != wording(option):
                different.append(f"{command} has its own {option.opts[-1]}")
            elif option.name not in DEFAULTS and other.default != option.default:
                different.append(f"{command} has its own default of {option.opts[-1]}")
    return different


def test_an_option_is_the_same_in_all_commands():
    assert len(KNOWN) > 20 and not faults(KNOWN)


def test_every_exception_is_needed():
    """An option that has come to agree with the others is no exception. Sampling options may
    agree.
    """
    for option, reasons in OWN.items():
        shared = {c: o for c, p in KNOWN.items() for o in p.params if o.name == option}
        usual = {wording(o) for c, o in shared.items() if not meaning(option, c)}
        own = {meaning(option, c): wording(o) for c, o in shared.items() if meaning(option, c)}
        assert len(usual) == 1 and own.keys() == set(reasons.values())
        assert not usual & set(own.values()), option


def command(function: Any) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return typer.main.get_command(app)


def own_help(
    kv: Annotated[str | None, typer.Option(metavar="int8", help="Store them in 8 bits.")] = None,
) -> None: ...


def own_range(
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")] = None,
) -> None: ...


@expand
def own_default(target_options: TargetOptions = TargetOptions(kv="int8")) -> None: ...


@pytest.mark.parametrize(
    ("planted", "says"),
    [(own_help, "own --kv"), (own_range, "own --threads"), (own_default, "own default of --kv")],
)
def test_an_option_with_its_own_words_is_seen(planted, says):
    assert faults({**KNOWN, "planted": command(planted)}) == [f"planted has its {says}"]


@dataclass(frozen=True)
class Budget:
    """A group."""

    keep_ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of slots.")] = 0.07
    slots: Annotated[list[int], typer.Option(help="Slots.")] = field(default_factory=lambda: [256])


def flat_command() -> Any:
    @expand
    def select(
        name: Annotated[str, typer.Argument()],
        first: int = 1,
        budget: Budget = Budget(keep_ratio=0.5),
        last: int = 2,
    ) -> None:
        print(name, first, budget, last)

    return select


def check_order_and_defaults() -> None:
    """The options of a group are in its place, with the command's defaults, within its limits, and
    make the group.
    """
    app = typer.Typer()
    app.command()(flat_command())
    assert [p.name for p in command(flat_command()).params] == [
        "name",
        "first",
        "keep_ratio",
        "slots",
        "last",
    ]
    run = CliRunner().invoke
    assert run(app, ["x"]).output == f"x 1 {Budget(0.5)} 2\n"
    words = ["x", "--last", "3", "--slots", "5", "--slots", "6", "--keep-ratio", "0.25"]
    assert run(app, words).output == f"x 1 {Budget(0.25, [5, 6])} 3\n"
    assert "--keep-ratio" in run(app, ["x", "--keep-ratio", "2"]).output


def test_a_group_becomes_flat_options():
    check_order_and_defaults()


GOOD = option_groups._options


def class_defaults(parameter):
    """The options of a group with the defaults of its class."""
    group = parameter.default
    yield from GOOD(parameter.replace(default=Budget()) if isinstance(group, Budget) else parameter)


def backwards(parameter):
    """The options of a group in reverse."""
    yield from reversed(list(GOOD(parameter)))


def untyped(parameter):
    """The options of a group without the limits of their types."""
    yield from (
        p.replace(annotation=type(p.default)) if p.name == "keep_ratio" else p
        for p in GOOD(parameter)
    )


@pytest.mark.parametrize("planted", [class_defaults, backwards, untyped])
def test_a_wrong_expansion_is_seen(planted, monkeypatch):
    monkeypatch.setattr(option_groups, "_options", planted)
    with pytest.raises(AssertionError):
        check_order_and_defaults()


def test_two_options_of_one_name_are_refused():
    with pytest.raises(ValueError, match="duplicate"):

        @expand
        def twice(keep_ratio: float = 0.0, budget: Budget = Budget()) -> None: ...
