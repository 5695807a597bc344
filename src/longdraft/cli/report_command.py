"""`longdraft report` makes tables and plots from the records of `longdraft bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    files: Annotated[list[Path], typer.Argument(help="Records that `longdraft bench` wrote.")],
    out: Annotated[Path, typer.Option(help="The folder for report.md, report.html and plots.")],
) -> None:
    """Make all tables and plots from records alone: Markdown, one self-contained HTML page, and SVG
    files.
    """
    from longdraft.bench.plots import MISSING, available
    from longdraft.bench.records import load
    from longdraft.bench.report_files import write

    markdown, page, *drawn = write(load(files), out)
    typer.echo(f"{markdown}\n{page}")
    if drawn:
        typer.echo(f"{len(drawn)} plots in {drawn[0].parent}")
    if not available():
        typer.echo(MISSING, err=True)
