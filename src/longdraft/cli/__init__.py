"""`longdraft COMMAND ...`: runs a command, and reports errors that the user can correct in one
line.

A command's module is imported only when that command runs or completes: `longdraft --help` does not
import torch.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from longdraft.cli import processes
from longdraft.cli.loading_views import loading_bar
from longdraft.errors import InputError
from longdraft.models.loading_progress import viewing
from longdraft.version import __version__

# Of each command, "module:function" (or :app, a Typer application with subcommands) and its line of
# help.
COMMANDS = {
    "generate": ("generate:generate", "Continue a prompt; --compare also runs plain decoding."),
    "chat": ("chat:chat", "Talk with a model; what was said stays in the cache."),
    "serve": ("serve:serve", "Serve a model over OpenAI's API."),
    "methods": ("methods:methods", "List all methods, their options, and what they need."),
    "demo": ("demo:demo", "Compare plain decoding, vegas and lookup on a long prompt."),
    "bench": ("bench:app", "Measure methods side by side; writes one record per measurement."),
    "tune": (
        "tune:tune",
        "Measure what passes cost here, so that adaptive drafting knows it from the first token.",
    ),
    "audit": ("audit:audit", "Check that a method is lossless on your model and texts."),
    "doctor": ("doctor:doctor", "Check this installation: kernels, threads, memory, versions."),
    "report": ("report_command:report", "Make tables from benchmark records."),
    "plan": ("plan:plan", "Predict which method pays on a model, a machine and a context."),
    "fetch": ("fetch:fetch", "Download a small model once, for use without a network."),
    "train": ("train:app", "Train a model or a drafter."),
    "export": ("export:export", "Write a model as safetensors, for vLLM and Transformers."),
    "import": ("import_:import_drafter", "Convert a released drafter to longdraft's layout."),
    "pack-drafter": ("import_:pack_drafter", "Store a drafter in 8 bits: half its size."),
    "export-drafter": ("import_:export_drafter", "Write a drafter in the layout that vLLM reads."),
}


class LazyGroup(TyperGroup):
    """Lists commands without importing them, and imports a command when it is resolved."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        processes.check(str(name))
        module, attribute = COMMANDS[str(name)][0].split(":")
        app = getattr(import_module(f"longdraft.cli.{module}"), attribute)
        if not isinstance(app, typer.Typer):
            function = app
            app = typer.Typer(add_completion=False)
            app.command()(function)
        return name, typer.main.get_command(app), rest


app = typer.Typer(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def longdraft(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Lossless speculative decoding for long contexts."""


def run(words: list[str]) -> int:
    """The exit status of one command line."""
    words = ["--help"] if words in ([], ["help"]) else words
    words = [*words, "--help"] if words == ["train"] else words
    try:
        status = typer.main.get_command(app).main(
            words, prog_name="longdraft", standalone_mode=False
        )
    finally:
        if "longdraft.ops.threads" in sys.modules:  # a command may have pinned them
            sys.modules["longdraft.ops.threads"].release()
        gc.unfreeze()
    return status if isinstance(status, int) else 0


def explain(error: Any) -> str | None:
    """One line about an error that the user can correct; None for a bug."""
    if isinstance(error, InputError):
        text = str(error)
    elif hasattr(error, "format_message"):  # an error of the command line itself
        ctx = getattr(error, "ctx", None)
        path = ctx.command_path if ctx else "longdraft"
        known = (
            ": choose a command of " + ", ".join(COMMANDS)
            if ctx and isinstance(ctx.command, LazyGroup)
            else ""
        )
        text = f"{error.format_message().rstrip('.')}{known} ({path} --help shows all options)"
    elif (
        isinstance(error, MemoryError)
        or "not enough memory" in str(error)
        or "out of memory" in str(error)
    ):
        text = "not enough memory for this: give a shorter prompt, fewer new tokens or fewer rows"
    elif (
        isinstance(error, OSError) and error.strerror
    ):  # of a file or a disk; commands say more where they know more
        text = (
            f"{error.strerror}"
            + (f": {error.filename}" if error.filename else "")
            + f" ({type(error).__name__})"
        )
    elif "Could not determine home directory" in str(error):  # of `~name`, by pathlib
        text = "a path begins with ~ and the name of no user: give another path"
    else:
        return None
    return " ".join(text.split())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line -> exit status: 0 done, 1 a check failed, 2 bad input, 130 interrupted,
    141 broken pipe.

    Without argv, the process's own: one of several processes then ends here (`processes.leave`).
    """
    status = _main(argv)
    return processes.leave(status) if argv is None else status


def _main(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # a terminal that cannot show a character shows "?"
            stream.reconfigure(errors="replace")
    try:
        with processes.as_one(), viewing(loading_bar):
            status = run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        line = explain(error)
        with processes.reporting() as mine:
            if mine and line is None:
                raise
            if mine:
                print(f"longdraft: {line}", file=sys.stderr, flush=True)
        return 2
