"""A measurement's work with a progress bar, and its tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from longdraft.cli import common


def measure(job: Any, out: Path | None) -> None:
    """Do the work of a measurement and append its records to `out`; then print tables.

    After an interrupt the tables show the records so far. Of several processes the first one
    writes.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn

    from longdraft.bench.report import rich_table, sections
    from longdraft.recording.record_file import RecordFile

    out = out if job.target.team.first else None
    job.check()
    log = RecordFile(out)
    records = []
    stopped = False
    with common.progress(job.steps, MofNCompleteColumn(), TimeElapsedColumn()) as tick:
        try:
            for record in job.run(log, lambda label: tick(1, label)):
                records.append(record)
        except KeyboardInterrupt:
            stopped = True
    console = Console(width=None if sys.stdout.isatty() else 160)
    # why peers are left out is said below
    for section in sections([r for r in records if r["task"] != "left out"]):
        console.print(rich_table(section))
        for note in section.notes[:-1]:
            console.print(note, highlight=False)
    common.say("" if job.kept is None else job.kept.note)
    for line in getattr(job, "left_out", ()):
        typer.echo(line, err=True)
    if stopped:
        place = f"in {out}" if out else "shown above"
        typer.echo(f"interrupted; the records so far are {place}", err=True)
        raise typer.Exit(130)
    if any("damage" in r for r in records):
        raise typer.Exit(1)
