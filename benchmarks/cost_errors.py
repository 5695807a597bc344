"""How well costs measured on some passes predict others, with the present kernels.

    python benchmarks/cost_errors.py -m smollm2 --contexts 1024,4096,16384,32000

Costs are measured twice: as at load (0.6 s), and as by `longdraft tune` on passes of other
contexts, rows and nodes. Then each held-out pass is a record, with what it took (of several turns
the shortest) and what each of the two predicts. All passes take turns, because a machine is faster
and slower. On a machine that is not idle the figures mean little: `calm` says whether a pass had
its processors. LONGDRAFT_NATIVE chooses a build.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from arguments import Arguments, at_least, status
from rich.console import Console
from rich.table import Table

from longdraft.costs.counts import counted
from longdraft.costs.passes import PassCosts
from longdraft.models.loading import load, quiet
from longdraft.ops.threads import pinned
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance
from longdraft.tuning.measure import (
    Held,
    bias,
    fitted,
    held_out,
    measured,
    measured_briefly,
    quantiles,
    thorough_shapes,
)

GB = 1 << 30


def measure(target: Any, given: Any) -> tuple[list[dict[str, Any]], dict[str, list[Held]]]:
    """A record for every held-out pass, and the errors of each kind of costs."""
    own, others = thorough_shapes(target, given.contexts, given.most_rows, int(given.room * GB))
    at_load = measured_briefly(target)
    timed = measured(target, [*own, *others], given.repeat, given.budget)
    chosen = set(own)
    costs: dict[str, PassCosts] = {"tune": fitted(target, [t for t in timed if t.shape in chosen])}
    if at_load is not None:
        costs["load"] = at_load
    costs["counted"] = counted(target)
    rest = [t for t in timed if t.shape not in chosen]
    held = {kind: held_out(target, c, rest) for kind, c in costs.items()}
    records = []
    for i, t in enumerate(rest):
        s = t.shape
        record = {
            "kind": s.name,
            "rows": s.rows,
            "context": s.context,
            "nodes": s.nodes,
            "share": s.share,
        }
        record |= {"scored": s.scored, "seconds": t.seconds, "calm": t.calm}
        records.append(
            record | {"predicted": {kind: own[i].predicted for kind, own in held.items()}}
        )
    return records, held


def table(held: dict[str, list[Held]], title: str) -> Table:
    """Errors of each kind of costs, by rows."""
    shown = Table(title=title, title_justify="left")
    for column in ("costs", "rows", "passes", "median error", "9 of 10", "bias"):
        shown.add_column(column, justify="left" if column == "costs" else "right")
    for kind, points in held.items():
        for rows in (None, *sorted({h.shape.rows for h in points})):
            own = [h for h in points if rows in (None, h.shape.rows)]
            who = "all" if rows is None else str(rows)
            errors = (f"{error:.1%}" for error in quantiles(own))
            shown.add_row(kind, who, str(len(own)), *errors, f"{bias(own):+.1%}")
    return shown


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("model", "rope", "weights", "dtype", "threads", "out")
    parser.change("contexts", [1024, 4096, 16384, 32000], "they are what methods are measured at")
    parser.change(
        "repeat", 10, "the shortest of a few turns is still too long beside other processes"
    )
    parser.add_argument(
        "--most-rows", type=at_least(1), default=8, metavar="N", help="rows of the largest batch"
    )
    parser.add_argument(
        "--room",
        type=at_least(0.0),
        default=3.0,
        metavar="GB",
        help="memory of keys, for each cache",
    )
    parser.add_argument(
        "--budget", type=at_least(1.0), default=120.0, help="seconds of all passes, about"
    )
    return parser


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    quiet(given.threads)
    before = os.getloadavg()[0]
    target, _ = load(given.model, given.dtype, rope=given.rope, weights=given.weights)
    log = RecordFile(given.out)
    with torch.inference_mode(), pinned():
        shared = provenance(target, 0) | {
            "task": "costs",
            "command": given.command,
            "load_before": before,
        }
        records, held = measure(target, given)
    for record in records:
        log.append(shared | record)
    calm = sum(r["calm"] for r in records) / len(records)
    about = (
        f"{target.name}, {given.dtype}, {target.backend.kernels}, {shared['device']}, "
        f"{calm:.0%} calm"
    )
    Console(width=None if sys.stdout.isatty() else 140).print(
        table(held, f"Errors of predicted passes, {about}")
    )
    return 0


if __name__ == "__main__":
    sys.exit(status(main))
