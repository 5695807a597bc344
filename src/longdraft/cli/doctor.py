"""`longdraft doctor`: whether the installation is right, and why it is not faster."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from longdraft.cli import common

MARGIN = 12  # columns of the parts' names


def doctor(as_json: common.Json = False) -> None:
    """Check this installation in a few seconds: kernels, threads, memory, GPU, versions and the
    cache folder.

    It loads no model and needs no network. Each problem is followed by what to do. The exit status
    is 1 if a check failed: kernels that compute something else, a missing package, a cache folder
    that cannot be written. Add the output to a bug report.
    """
    from longdraft.doctor.examine import examine

    parts = {}
    for name, part in examine():
        parts[name] = part
        if not as_json:  # at once: should a kernel end the process, the lines before it are there
            for line in lines(
                name, part, min(max(shutil.get_terminal_size((80, 24)).columns, 60), 100)
            ):
                typer.echo(line)
    problems = [problem for part in parts.values() for problem in part.problems]
    failed = sum(problem.fails for problem in problems)
    if as_json:
        print(
            json.dumps(
                {"ok": not failed, "parts": {name: part.json() for name, part in parts.items()}}
            )
        )
    else:
        typer.echo(verdict(failed, len(problems) - failed))
    raise typer.Exit(1 if failed else 0)


def lines(name: str, part: Any, width: int) -> Iterator[str]:
    """A part as text: its name beside the first line; then its problems."""
    title = name
    for line in part.lines:
        indent = " " * (len(line) - len(line.lstrip()))
        yield from _wrapped(
            f"{title:<{MARGIN}}{indent}", " " * MARGIN + indent + "  ", line.lstrip(), width
        )
        title = ""
    for problem in part.problems:
        mark = "FAILED" if problem.fails else "note"
        for label, text in ((mark, problem.what), ("what to do", problem.do)):
            yield from _wrapped(f"{'':<{MARGIN}}{label}: ", " " * (MARGIN + 2), text, width)


def _wrapped(first: str, rest: str, text: str, width: int) -> list[str]:
    wrapper = textwrap.TextWrapper(
        width, first, rest, break_long_words=False, break_on_hyphens=False
    )
    made = wrapper.wrap(text)
    return made or [first.rstrip()]


def verdict(failed: int, notes: int) -> str:
    """The last line."""
    if not failed and not notes:
        return "All is well."
    counts = [
        f"{n} {noun}{'' if n == 1 else 's'}"
        for n, noun in ((failed, "failed check"), (notes, "note"))
        if n
    ]
    return f"{' and '.join(counts)}: see above."
