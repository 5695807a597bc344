"""`longdraft plan` predicts what each method would gain on a model, a machine and a context,
without running it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from longdraft.cli import common
from longdraft.cli.option_groups import TargetOptions, expand
from longdraft.errors import InputError

CONTEXTS = [1 << n for n in range(10, 21)]
MAX_PLANNED_CONTEXT = 1 << 30  # tokens of a context


@expand
def plan(
    model: common.Model = "bundled",
    context: Annotated[
        str,
        typer.Option(
            help="Tokens in the cache; several with commas (default: a table over 1K to 1M)."
        ),
    ] = "",
    rows: Annotated[
        int, typer.Option(min=1, max=1024, help="Number of rows decoded side by side.")
    ] = 1,
    device: Annotated[
        str,
        typer.Option(
            help="A100, H100, H200, B200, RTX4090 or CPU, wherever this runs (default: this "
            "machine)."
        ),
    ] = "",
    methods: Annotated[
        str,
        typer.Option(
            help="Methods with commas; vegas@keep_ratio=0.1 sets an option (default: all methods)."
        ),
    ] = "",
    acceptance: Annotated[
        list[str],
        typer.Option(
            metavar="METHOD=TOKENS", help="Expected tokens per step at full depth; may be repeated."
        ),
    ] = [],  # noqa: B006
    records: Annotated[
        Path | None,
        typer.Option(
            help="Records of `longdraft bench` with this model's acceptance: a folder or a file."
        ),
    ] = None,
    drafter: Annotated[
        str,
        typer.Option(
            help="The small model of sd, specextend and others: a folder with its config, or a "
            "Hub id."
        ),
    ] = "",
    target_options: TargetOptions = TargetOptions(),
    as_json: common.Json = False,
) -> None:
    """Predict step times, break-even and speedup of every method from a model's config.json;
    nothing is decoded.
    """
    from longdraft.bench.plan import planner
    from longdraft.bench.plan.acceptance import stated
    from longdraft.bench.plan.table import at_one_context, over_contexts
    from longdraft.models.loading import quiet

    quiet(None)
    contexts = _contexts(context) if context else CONTEXTS
    made = planner.Planner(
        model,
        planner.LoadOptions(**asdict(target_options)),
        device,
        methods=methods,
        stated=stated(acceptance),
        records=records,
        drafter=drafter,
    )
    found = {n: made.ranking(rows, n) for n in contexts}
    if as_json:
        by_context = {str(n): [p.as_json() for p in ranking] for n, ranking in found.items()}
        facts = {
            "model": model,
            "machine": made.target.machine,
            "measured": made.target.measured,
            "rows": rows,
        }
        print(json.dumps({**facts, "predictions": by_context, "notes": made.notes}))
        return
    if len(contexts) == 1:
        tables = [at_one_context(made.target, model, rows, contexts[0], found[contexts[0]])]
    else:
        tables = over_contexts(made.target, model, rows, found)
    _print(tables)
    for note in made.notes:
        common.say(note)


def _print(tables: list[Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for t in tables:
        console.print(t.title, markup=False)
        drawn = Table(box=box.SIMPLE_HEAD)
        for i, name in enumerate(t.header):
            drawn.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
        for row in t.rows:
            drawn.add_row(*row)
        console.print(drawn, markup=False)
        for note in t.notes:
            console.print(note, markup=False)


def _contexts(text: str) -> list[int]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(
        p.isascii() and p.isdecimal() and len(p) < 12 and 1 <= int(p) <= MAX_PLANNED_CONTEXT
        for p in parts
    ):
        raise InputError(
            f"context is {text[:60]!r}: give token counts from 1 to {MAX_PLANNED_CONTEXT}, "
            "like 32768 or 4096,32768"
        )
    return sorted({int(p) for p in parts})
