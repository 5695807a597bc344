"""Every command of the command line as click knows it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from longdraft.cli import COMMANDS


def commands() -> dict[str, Any]:
    """{name: command} of all commands, those of a group by both names: "train text"."""
    named = {}
    for name, (where, _) in COMMANDS.items():
        module, attribute = where.split(":")
        app = getattr(import_module(f"longdraft.cli.{module}"), attribute)
        if isinstance(app, typer.Typer):
            group: Any = typer.main.get_command(app)
            named |= {f"{name} {sub}": command for sub, command in group.commands.items()}
        else:
            named[name] = as_command(app)
    return named


def as_command(function: Any) -> Any:
    """The click command of a function that is one."""
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return typer.main.get_command(app)
