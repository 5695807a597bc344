"""`longdraft import`: a drafter that others released, in longdraft's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def import_drafter(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What was released: weights and config.json.")],
    out: Annotated[Path, typer.Option(help="The drafter goes here; give it to --drafter.")],
    model: Annotated[str, typer.Option("-m", "--model", help="Its target: a folder, or a Hub id.")] = "bundled",
    any_target: Annotated[
        bool, typer.Option("--any-target", help="Also if the tables it brings are not this target's.")
    ] = False,
) -> None:
    """Import a GLIDE block of LongSpec, heads of TokenSwift or Medusa, or a layer of EAGLE-2 or EAGLE-3.

    What it is shows in the names and shapes of its weights, which must all be known and fit the target. Nothing of the
    folder is run.
    """
    from longdraft.drafters import importing as importers
    from longdraft.models.loading import load_lm

    made = importers.convert(folder.expanduser(), out.expanduser(), load_lm(model), any_target)
    typer.echo(f"{made['kind']}, {made['parameters']} parameters in {made['dtype']} -> {out}")
