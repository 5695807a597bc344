"""Options that several commands share, and loading a target."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from longdraft.cli.loading_views import delayed
from longdraft.cli.option_groups import TargetOptions
from longdraft.errors import InputError

TIMEOUT = 600.0  # seconds that a process started by torchrun waits for the others
PATIENCE = 2.0  # seconds before a prompt that is being read shows its progress

Model = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        help="The target: 'bundled', a model that `longdraft fetch` lists, a folder, a .gguf "
        "file, hf:ORG/REPO:TYPE, ollama:NAME, or a Hub id.",
    ),
]
PromptFiles = Annotated[list[Path], typer.Option(help="A UTF-8 text file; may be repeated.")]
NewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of new tokens per row.")]
PromptCache = Annotated[
    Path | None,
    typer.Option(
        "--prompt-cache",
        metavar="DIR",
        help="Keep the keys and values of each prompt in this folder; cached prompts are not "
        "prefilled again.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Number of CPU threads (default: torch's choice)."),
]
ACCEPT = typer.Option(help="Force this many accepted drafts per step (measures cost only).")
Accept = Annotated[float | None, ACCEPT]
Accepted = Annotated[float, ACCEPT]  # where it must be given
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]


def load_target(model: str, options: TargetOptions, threads: int | None = None) -> tuple[Any, Any]:
    """The target and its tokenizer, with library logging silenced and threads pinned. Raises
    InputError.
    """
    from longdraft.core.processes import joined, share_interrupts
    from longdraft.models.loading import load, quiet

    quiet(threads)
    team = joined(TIMEOUT)
    loaded = load(model, team=team, **asdict(options))
    if team.size > 1:
        share_interrupts()
        return loaded  # a pin would give all processes of a machine the same processors
    for line in (loaded[0].note or "").splitlines():
        say(line)
    settle()
    return loaded


def settle() -> None:
    """Pin threads, and exempt everything loaded so far from garbage collection, which would cost
    0.2 s per pass.
    """
    import gc

    from longdraft.ops.threads import pin

    pin()
    gc.freeze()


def prompt_files(folder: Path | None, target: Any) -> Any:
    """The folder in which `bench` and `audit` keep prompts, if they do (--prompt-cache)."""
    from longdraft.prompts.prompt_file import PromptFiles

    return None if folder is None else PromptFiles(folder, target)


def check_prompt_cache(path: Path | None, folder: bool) -> Path | None:
    """The absolute path, before any work. Raises InputError where nothing can be written, and in
    several processes.
    """
    from longdraft.cli import processes
    from longdraft.core.places import new_file, new_folder
    from longdraft.prompts.prompt_file import NAMES

    if path is None:
        return None
    if processes.count() > 1:
        raise InputError("--prompt-cache is for one process: start it without torchrun")
    if not folder:
        return new_file(path, "--prompt-cache")
    there = Path(path).expanduser()
    ours = {p.name for p in there.iterdir() if NAMES.fullmatch(p.name)} if there.is_dir() else ()
    return new_folder(path, "--prompt-cache", ours)


def say(note: str) -> None:
    """A note on standard error; an empty one is left out."""
    if note:
        print(f"longdraft: note: {note}", file=sys.stderr)


@contextmanager
def reading(prompts: list[list[int]]) -> Iterator[Callable[[int], None]]:
    """A progress bar of prompts' tokens on standard error, shown once it has taken PATIENCE seconds
    -> what to call with tokens that have been read. Silent unless standard error is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [
        TextColumn("reading the prompt"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    ]
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=sum(len(p) - 1 for p in prompts))
    try:
        # it also shows when the first of the prompt's parts takes that long
        with delayed(PATIENCE, bar.start):
            yield lambda tokens: bar.advance(task, tokens)
    finally:
        if bar.live.is_started:
            bar.stop()


def announce(line: str) -> None:
    """Shows a download's progress on standard error."""
    print(line, file=sys.stderr)


@contextmanager
def fetching(name: str) -> Iterator[Callable[[int], None]]:
    """A progress bar of a download on standard error -> what to call with the bytes so far.

    Silent unless standard error is a terminal; also where the model is in the cache already.
    """
    from longdraft.models.fetch import SOURCES, is_there

    model = SOURCES.get(name)
    if model is None or is_there(name) or not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=model.size)
        yield lambda size: bar.update(task, completed=size)


@contextmanager
def progress(total: int, *columns: Any) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on standard error, silent unless that is a terminal -> what to call with
    (steps, description).
    """
    if not sys.stderr.isatty():
        yield lambda steps, description: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    shown = [TextColumn("{task.description}"), BarColumn(), *columns]
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda steps, description: bar.update(
            task, advance=steps, description=description or None
        )
