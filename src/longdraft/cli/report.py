"""`longdraft report`: makes tables from benchmark records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="Files that `longdraft bench --out` wrote.")],
    out: Annotated[Path, typer.Option(help="The folder for report.md.")],
) -> None:
    """Make all tables from records alone."""
    from longdraft.bench.report import write
    from longdraft.engine.record_file import load

    typer.echo(f"{write(load(files), out)}")
