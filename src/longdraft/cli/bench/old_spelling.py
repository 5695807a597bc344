"""`longdraft bench --task ...`, read as the command that replaces it.

To be deleted with the next version.

One command measured everything: --task, --suite, --shape, --peers and --accept chose what.
"""

from __future__ import annotations

import shlex
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from longdraft.cli import common
from longdraft.cli.option_groups import options_of
from longdraft.errors import InputError

HELP = ("-h", "--help")
TASKS = ("speed", "anchored", "steps")
CHOOSING = {  # options that chose what was measured, and are no options any more
    "task": Annotated[str, typer.Option()],
    "suite": Annotated[str, typer.Option()],
    "shape": Annotated[str, typer.Option()],
}
METHODS = {"methods", "option", "drafter", "random_drafter", "any_target"}
SAMPLING = {"temperature", "top_p", "penalty"}
ANCHORS = {"anchors", "warmup_rounds"}
STEPS = METHODS | SAMPLING | ANCHORS | {"max_new_tokens", "batch", "accept"}
OF_A_MODEL = {"model", "text", "prompt_file"}
# Options that were accepted beside what was measured and had no effect: they are left out.
IGNORED = {
    "speed": ANCHORS,
    "cost": ANCHORS,
    "acceptance": {"max_new_tokens", "repeat"},
    "steps": STEPS | {"recommended"},
    "tasks": ANCHORS | {"text"},
    "peers": ANCHORS,
    "peers-tasks": ANCHORS | {"text"},
    "shape-cost": ANCHORS | OF_A_MODEL,
    "shape-steps": STEPS | OF_A_MODEL,
}


def is_old(args: list[str]) -> bool:
    """Whether a line has no command: it is empty, or begins with an option."""
    return not args or args[0].startswith("-")


def translated(args: list[str], context: Any, measurements: dict[str, type[Any]]) -> list[str]:
    """The words in the new spelling, which is also said on standard error. Raises InputError."""
    if any(word in HELP for word in args):
        return ["--help"]
    given = _given(args, context, measurements)
    task = given.pop("task", "speed")
    if task not in TASKS:
        raise InputError(f"unknown task {task!r}: choose speed, anchored or steps")
    command = _command(task, given)
    own = {p.name: p for p in options_of(measurements[command])}
    defaults = {p.name: p.default for m in measurements.values() for p in options_of(m)}
    positional = [given.pop(name) for name in ("suite", "shape") if name in own and name in given]
    words = [command, *positional]
    for name, value in given.items():
        if name in own:
            words += _words(name, value)
        elif name not in IGNORED[command] and value not in ("", defaults[name]):
            raise InputError(f"bench {command} has no --{name.replace('_', '-')}: leave it out")
    common.say(
        "this spelling of `longdraft bench` will end with the next version; write:"
        f" longdraft bench {shlex.join(words)}"
    )
    return words


def _command(task: str, given: dict[str, Any]) -> str:
    """The command that measures what these options chose."""
    if task == "anchored":
        return "acceptance"
    if task == "steps":
        return "shape-steps" if given.get("shape") else "steps"
    if given.get("suite"):
        return "peers-tasks" if given.get("peers") else "tasks"
    if given.get("shape"):
        return "shape-cost"
    if given.get("peers"):
        return "peers"
    return "speed" if given.get("accept") is None else "cost"


def _given(args: list[str], context: Any, measurements: dict[str, type[Any]]) -> dict[str, Any]:
    """The values of the options that stand on the line, read as the commands read them."""
    kinds = {p.name: p.annotation for m in measurements.values() for p in options_of(m)}
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (kinds | CHOOSING).items()
    ]

    def bench(**values: Any) -> None: ...

    bench.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(bench)
    command = typer.main.get_command(app)
    with command.make_context(context.info_name, list(args), parent=context.parent) as read:
        return {name: value for name, value in read.params.items() if _is_given(value)}


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != [] and value != ()


def _words(name: str, value: Any) -> list[str]:
    """An option as it is written."""
    option = "--" + name.replace("_", "-")
    if value is True:
        return [option]
    if isinstance(value, list | tuple):
        return [word for one in value for word in (option, str(one))]
    return [option, str(value)]
