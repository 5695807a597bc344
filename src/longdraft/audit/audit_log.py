"""The results of an audit: a JSON file, complete after every comparison, totals, and a table."""

from __future__ import annotations

import json
import os
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from longdraft.audit.ties import most_ties
from longdraft.core.files import parse, read_bytes
from longdraft.errors import InputError

FIRST = 5  # number of failures that are shown


class AuditLog:
    """Holds the comparisons made so far; the file, if there is one, always contains `record()`.

    settings: must be equal to resume. Raises InputError for a file of another, or of an unfinished,
    audit.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], expected: int, resume: bool):
        self.path = path
        self.settings = settings
        self.expected = expected
        self.shared: dict[str, Any] = {}
        self.runs: list[dict[str, Any]] = []
        if resume and path is None:
            raise InputError("--resume continues the audit in a file: give --out FILE too")
        old = _read(path) if path is not None and path.exists() else None
        if old is None:
            return
        if resume:
            before = old.get("settings", {})
            odd = next((k for k, v in settings.items() if before.get(k) != v), None)
            if odd:
                raise InputError(
                    f"{path} is an audit with another {odd}: resume it with the same "
                    "options, or give another --out"
                )
            self.runs = [r for r in old["runs"] if not r.get("interrupted")]
        elif not old.get("complete", True):
            raise InputError(
                f"{path} holds an unfinished audit: add --resume, or give another --out"
            )

    def known(self, index: int, way: str) -> bool:
        return any(r["index"] == index and r["way"] == way for r in self.runs)

    def add(self, run: dict[str, Any]) -> None:
        self.runs.append(run)
        self.write()

    def record(self) -> dict[str, Any]:
        totals = _totals(self.runs)
        interrupted = any(run.get("interrupted") for run in self.runs)
        return {
            "task": "audit",
            **totals,
            **_rates(totals),
            "complete": len(self.runs) == self.expected and not interrupted,
            "settings": self.settings,
            **self.shared,
            "runs": self.runs,
        }

    def write(self) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(self.path.name + ".part")
            part.write_text(json.dumps(self.record(), indent=1) + "\n", encoding="utf-8")
            os.replace(part, self.path)
        except OSError as error:
            raise InputError(
                f"cannot write {self.path} ({error.strerror}): give another --out"
            ) from None


def _totals(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums over some runs, the largest gap of their ties, and their mean acceptance length."""
    counted = ("tokens", "differences", "ties", "failures", "verify_steps")
    counted += ("control_tokens", "control_ties", "control_failures")
    totals: dict[str, Any] = {k: sum(r[k] for r in runs) for k in counted}
    differences = chain.from_iterable(run["found"] for run in runs)
    gaps = (difference["gap"] for difference in differences if difference["kind"] == "tie")
    totals["largest_tie"] = max(gaps, default=None)
    length = 1 + sum(r["accepted"] for r in runs) / max(totals["verify_steps"], 1)
    return totals | {"mean_acceptance_length": length}


def _rates(totals: dict[str, Any]) -> dict[str, Any]:
    """The tie rates of the method and of the control, and the method's highest accepted rate."""
    tokens = totals["tokens"]
    ties = totals["ties"]
    control = totals["control_tokens"]
    most = most_ties(tokens, totals["control_ties"], control) if control else 0
    return {
        "tie_rate": ties / tokens if tokens else 0.0,
        "control_rate": totals["control_ties"] / control if control else None,
        "tie_bound": most / tokens if tokens else 0.0,
        "too_many_ties": ties > most,
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        record = parse(read_bytes(path).decode("utf-8"))
    except (OSError, ValueError):
        record = None
    runs = record.get("runs") if isinstance(record, dict) else None
    whole = isinstance(runs, list) and all(
        isinstance(r, dict) and {"index", "way", "found"} <= r.keys() for r in runs
    )
    if not isinstance(record, dict) or record.get("task") != "audit" or not whole:
        raise InputError(f"{path} exists and is no audit: give another --out")
    return record


def table(runs: list[dict[str, Any]]) -> Any:
    """A rich table with a row per text and way."""
    from rich.table import Table

    shown = Table("text", "way")
    for column in (
        "tokens",
        "ties",
        "largest gap",
        "failures",
        "mean acceptance length",
        "distinct-3",
    ):
        shown.add_column(column, justify="right")
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in runs:
        cells.setdefault((r["prompt"].rpartition(":")[0] or r["prompt"], r["way"]), []).append(r)
    for (text, way), same in cells.items():
        total = _totals(same)
        gap = "" if total["largest_tie"] is None else f"{total['largest_tie']:.2g}"
        rest = [
            f"{total['mean_acceptance_length']:.2f}",
            f"{fmean(r['distinct_3'] for r in same):.2f}",
        ]
        shown.add_row(
            text, way, *map(str, [total["tokens"], total["ties"], gap, total["failures"], *rest])
        )
    return shown


def sentences(record: dict[str, Any], tolerance: float) -> list[str]:
    """The first failures and the result of an audit, in words."""
    failures = list[tuple[dict[str, Any], dict[str, Any]]]()
    for r in record["runs"]:
        failures += [(r, d) for d in r["found"] if d["kind"] == "failure"]
    lines = []
    for r, d in failures[:FIRST]:
        gap = "unknown: not among the best scores" if d.get("gap") is None else f"{d['gap']:.3g}"
        difference = (
            d.get("why")
            or f"new token {d['position'] + 1} is {d['method']}, not {d['plain']} (gap {gap})"
        )
        lines.append(f"failure: {r['prompt']}, {r['way']}: {difference}")
    if len(failures) > FIRST:
        lines.append(f"... and {len(failures) - FIRST} more")
    if record["verify_steps"] and record["mean_acceptance_length"] == 1:
        lines.append(
            "No draft was accepted, so only tokens that plain decoding would compute too "
            "were compared."
        )
    if record["control_failures"]:
        lines.append(
            f"Plain decoding differs from itself by more than {tolerance:g} when a pass "
            "computes several tokens:"
            f" {record['control_failures']} times."
        )
    if record["ties"]:
        lines.append(_about_ties(record))
    ties = f"{record['ties']} ties (gap up to {tolerance:g})" if record["ties"] else "no tie"
    wrong = f"{record['failures']} FAILURES" if record["failures"] else "no failure"
    if record.get("exact") is False:
        lines.append(
            "This backend is not bit-exact: rounding depends on the drafts, so ties can be "
            "decided differently."
        )
    lines.append(f"{record['tokens']} tokens compared: {ties}, {wrong}.")
    return lines


def _about_ties(record: dict[str, Any]) -> str:
    """The tie rates; tells whether the method's is too high."""
    rates = f"Ties: {record['tie_rate']:.2%} of the method's tokens"
    if record["control_rate"] is not None:
        rates += (
            f"; {record['control_rate']:.2%} of plain decoding's tokens when a pass computes "
            "several"
        )
    if record["too_many_ties"]:
        return f"{rates}. TOO MANY: rounding explains up to {record['tie_bound']:.2%}."
    return f"{rates}; more than {record['tie_bound']:.2%} would be too many."
