"""`longdraft COMMAND ...`: finds the command, and turns whatever a user can mend into one line and exit status 2.

A command's module is imported when it is called; help imports none.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any, NamedTuple

import typer

from longdraft.errors import InputError


class Command(NamedTuple):
    """module.app runs it; shared: that app has several commands and wants this one's name as its first word."""

    module: str
    help: str
    shared: bool = False


COMMANDS = {
    "generate": Command(
        "longdraft.cli.generate", "Continue a prompt; --compare runs plain decoding beside the method."
    ),
    "methods": Command("longdraft.cli.methods", "Every method, its options, and what it needs."),
    "demo": Command("longdraft.cli.demo", "Plain decoding, vegas and lookup on a long real prompt, side by side."),
    "bench": Command("longdraft.cli.bench", "Measure methods against each other; one record per run.", True),
    "audit": Command(
        "longdraft.cli.audit", "Is a method lossless on your model and text? Ties explained, failures counted."
    ),
    "report": Command("longdraft.cli.bench", "Tables and plots from such records.", True),
    "train": Command("longdraft.cli.train", "Train a model or a drafter."),
    "import": Command("longdraft.cli.import_", "A drafter that others released, in longdraft's layout."),
}
HELP = ("-h", "--help", "help")


def present(command: Command) -> bool:
    try:
        return find_spec(command.module) is not None
    except ModuleNotFoundError:
        return False


def usage() -> str:
    lines = [f"  {name:<10} {command.help}" for name, command in COMMANDS.items() if present(command)]
    head = "longdraft COMMAND [options]: lossless speculative decoding for long contexts"
    return "\n".join([head, "", *lines, "", "longdraft COMMAND --help shows a command's options; longdraft --version"])


def run(words: list[str]) -> int:
    """The exit status of one command line."""
    if not words or words[0] in HELP:
        print(usage())
        return 0
    name, rest = words[0], words[1:]
    if name == "--version":
        from longdraft.version import __version__

        print(__version__)
        return 0
    known = {name: c for name, c in COMMANDS.items() if present(c)}
    if name not in known:
        kind = "option" if name.startswith("-") else "command"
        raise InputError(f"unknown {kind} {name!r}: choose a command of {', '.join(known)}")
    app = typer.main.get_command(import_module(known[name].module).app)
    group = hasattr(app, "commands")
    if group and not rest and not known[name].shared:
        rest = ["--help"]
    if group and known[name].shared:
        rest = [name, *rest]
    try:
        status = app.main(rest, prog_name=f"longdraft {name}", standalone_mode=False)
    finally:
        if "longdraft.ops.threads" in sys.modules:  # a command may have pinned them
            sys.modules["longdraft.ops.threads"].release()
        gc.unfreeze()
    return status if isinstance(status, int) else 0


def explain(error: BaseException, command: str) -> str | None:
    """What a user can mend, as one line; None for a fault of ours."""
    usage_error: Any = getattr(error, "format_message", None)  # typer's and click's own
    if isinstance(error, InputError):
        text = str(error)
    elif usage_error is not None:
        text = f"{usage_error()} (longdraft {command} --help shows what there is)"
    elif isinstance(error, MemoryError) or "not enough memory" in str(error) or "out of memory" in str(error):
        text = "not enough memory for this: give a shorter prompt, fewer new tokens or fewer rows"
    else:
        return None
    return " ".join(text.split())


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows "?"
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = run(words)
        sys.stdout.flush()
        return status
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        line = explain(error, words[0])
        if line is None:
            raise
        print(f"longdraft: {line}", file=sys.stderr)
        return 2
