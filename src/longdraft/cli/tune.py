"""`longdraft tune`: measures what a model's passes cost on this machine, and keeps it for later
runs.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from longdraft.cli import common
from longdraft.cli.option_groups import TargetOptions, expand

SECONDS = 60  # about as long as the measurement may take
CONTEXTS = (1024, 8192, 32768)
BUSY = 0.5  # share of disturbed passes from which on costs are not kept
MAX_TUNED_CONTEXT = 1 << 20  # tokens of a context


@expand
def tune(
    model: common.Model = "bundled",
    target_options: TargetOptions = TargetOptions(),
    context: Annotated[
        list[int] | None,
        typer.Option(
            min=64,
            max=MAX_TUNED_CONTEXT,
            help="Tokens of a context; may be repeated (default: 1,024, 8,192 and 32,768).",
        ),
    ] = None,
    most_rows: Annotated[
        int, typer.Option(min=1, max=64, help="Rows of the largest batch that is measured.")
    ] = 8,
    repeat: Annotated[int, typer.Option(min=1, max=1000, help="Measurements of each pass.")] = 8,
    as_json: common.Json = False,
    threads: common.Threads = None,
) -> None:
    """Measure what forward passes cost on this machine, in about a minute, and keep it in the
    user's cache folder.

    Adaptive drafting then decides by these costs from the first token; without them it measures
    briefly when the model is loaded. Costs are fitted to one half of the passes; the errors are
    those of the other half. Run it on an idle machine, again after a change of the machine, its
    threads or the version. The exit status is 1, and nothing is kept, if other processes disturbed
    most of the passes.
    """
    import torch

    from longdraft.tuning.measure import fitted, held_out, measured, quantiles, thorough_shapes
    from longdraft.tuning.stored import store

    target, _ = common.load_target(model, target_options, threads)
    own, others = thorough_shapes(target, context or CONTEXTS, most_rows)
    turns = (len(own) + len(others)) * repeat
    with torch.inference_mode(), common.progress(turns) as tick:
        timed = measured(target, [*own, *others], repeat, SECONDS, lambda name: tick(1, name))
        costs = fitted(target, [t for t in timed if t.shape in own])
    held = held_out(target, costs, [t for t in timed if t.shape in others])
    errors: dict[str, float] = (
        dict(zip(("median", "nine_of_ten"), quantiles(held), strict=True)) if held else {}
    )
    busy = sum(not t.calm for t in timed) / len(timed)
    place = store(target, costs, errors) if busy < BUSY else None
    if as_json:
        print(json.dumps(record(target, costs, timed, held, errors, busy)))
        raise typer.Exit(0 if place else 1)
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(terms(costs))
    if held:
        console.print(predictions(held))
        console.print(
            f"Of {len(held)} passes that the costs were not fitted to, half are predicted within"
            f" {errors['median']:.0%} and nine of ten within {errors['nine_of_ten']:.0%}."
        )
    if busy > BUSY / 2:
        console.print(
            f"Other processes disturbed {busy:.0%} of the passes: run it again on an idle machine."
        )
    console.print(f"Kept in {place}." if place else "Not kept.", soft_wrap=True, markup=False)
    raise typer.Exit(0 if place else 1)


def record(
    target: Any,
    costs: Any,
    timed: list[Any],
    held: list[Any],
    errors: dict[str, float],
    busy: float,
) -> Any:
    """The object that --json prints."""
    from dataclasses import asdict

    from longdraft.tuning.stored import fingerprint

    points = [
        asdict(h.shape) | {"measured_s": h.measured, "predicted_s": h.predicted} for h in held
    ]
    shared = {"fingerprint": fingerprint(target), "terms": asdict(costs), "errors": errors}
    return shared | {"disturbed": busy, "passes": len(timed), "held_out": points}


def terms(costs: Any) -> Any:
    """A table of what each term costs, in a unit that can be read."""
    from rich.table import Table

    units = {
        "call": ("a pass", 1e-6, "µs"),
        "chained": ("a later pass of a drafted chain", 1e-6, "µs"),
        "read": ("reading weights", 0, "GB/s"),
        "multiply": ("linear layers", 0, "billion multiply-adds/s"),
        "key": ("reading keys and values", 0, "GB/s"),
        "attend": ("attention", 0, "billion multiply-adds/s"),
        "row": ("a row", 1e-6, "µs"),
        "node": ("a node", 1e-6, "µs"),
        "score": ("keeping scores, per slot and layer", 1e-9, "ns"),
        "choice": ("choosing a view", 1e-6, "µs"),
        "choose": ("and per slot and layer", 1e-9, "ns"),
        "draw": ("drawing a token, per entry of the vocabulary", 1e-9, "ns"),
        "step": ("a decoding step beside its passes", 1e-6, "µs"),
        "tree": ("a node of a draft", 1e-6, "µs"),
        "block": ("a call of a drafter's own block", 1e-6, "µs"),
        "module": ("reading weights in it", 0, "GB/s"),
    }
    table = Table("term", "what it is", title="Costs of a pass", title_justify="left")
    table.add_column("cost", justify="right")
    table.add_column("unit")
    for name, (about, unit, shown) in units.items():
        cost = getattr(costs, name)
        if unit:
            value = cost / unit
        else:
            value = 1e-9 / cost if cost else float("inf")
        table.add_row(name, about, f"{value:.3g}", shown)
    return table


def predictions(held: list[Any]) -> Any:
    """A table of passes that were not fitted, by context and rows: the errors of each."""
    from rich.table import Table

    from longdraft.tuning.measure import quantiles

    table = Table(title="Passes that costs were not fitted to", title_justify="left")
    for column in ("context", "rows", "passes", "plain ms", "predicted", "median error", "9 of 10"):
        table.add_column(column, justify="right")
    for context, rows in sorted({(h.shape.context, h.shape.rows) for h in held}):
        own = [h for h in held if (h.shape.context, h.shape.rows) == (context, rows)]
        plain = next((h for h in own if h.shape.name == "plain"), own[0])
        median, most = quantiles(own)
        times = (f"{1e3 * x:.2f}" for x in (plain.measured, plain.predicted))
        table.add_row(
            str(context), str(rows), str(len(own)), *times, f"{median:.0%}", f"{most:.0%}"
        )
    return table
