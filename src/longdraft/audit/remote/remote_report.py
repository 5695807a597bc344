"""The result of an audit of a server: one table, sentences, or a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longdraft.audit.remote.remote_audit import ComparedText, RemoteAudit
from longdraft.audit.remote.reported_drafts import sentence

FIRST = 10  # faults that are told in words


def record(audit: RemoteAudit) -> dict[str, Any]:
    """Every result, for --json."""
    limit = audit.tolerance
    found = {
        "task": "audit of a server",
        "url": audit.audited.url,
        "baseline": audit.plain.url,
        "off": audit.plain.fields,
        "model": audit.audited.model,
        "tolerance": limit,
        "error_rate": audit.plan.error_rate,
        "log_probabilities": audit.scored,
        "prompt_tokens": audit.prompt_tokens,
        "skipped": [{"text": name, "why": why} for name, why in audit.skipped],
        "greedy": [_row(c, limit) for c in audit.compared],
        "control": [_row(c, limit) for c in audit.controls],
        "sampled": [
            {
                "test": t.name,
                "control": t.control,
                "statistic": t.result.statistic,
                "degrees": t.result.degrees,
                "p": t.result.p,
                "count": t.result.count,
                "detail": t.result.detail,
                "verdict": audit.verdict(t),
            }
            for t in audit.tests
        ],
        "drafts": audit.seen.record(),
        "notes": [*audit.notes, *audit.seen.problems, *audit.seen.limits],
    }
    verdicts = [r["verdict"] for r in found["greedy"]]
    verdicts += [r["verdict"] for r in found["sampled"]]
    for verdict in ("fault", "tie", "unjudged"):
        found[f"{verdict}s" if verdict != "unjudged" else verdict] = verdicts.count(verdict)
    return found


def _row(compared: ComparedText, limit: float) -> dict[str, Any]:
    difference = compared.difference
    row: dict[str, Any] = {"text": compared.passage.name, "at_once": compared.level}
    row["bytes"] = compared.size
    if difference is None:
        return row | {"verdict": "equal"}
    return row | {
        "verdict": difference.verdict(limit),
        "byte": difference.offset,
        "token": difference.token,
        "plain": difference.plain,
        "answer": difference.answer,
        "gap": difference.gap,
        "gap_is_lower_bound": difference.bound,
    }


def exit_status(found: dict[str, Any]) -> int:
    """1 for a fault, 2 if something could not be judged, otherwise 0."""
    if found["faults"]:
        return 1
    doubts = found["unjudged"] or found["drafts"]["problems"] or not found["log_probabilities"]
    return 2 if doubts else 0


def table(found: dict[str, Any]) -> Any:
    """A rich table: a row for each kind of request, and for each test of samples."""
    from rich.table import Table

    shown = Table("requests")
    for column in ("answers", "equal", "ties", "faults", "unjudged", "largest tie", "p"):
        shown.add_column(column, justify="right")
    for label, rows in (("plain, again", found["control"]), ("greedy", found["greedy"])):
        for level in dict.fromkeys(r["at_once"] for r in rows):
            _add_greedy(shown, f"{label}, {level} at once", rows, level)
    for test in found["sampled"]:
        label = f"plain, sampled; {test['test']}" if test["control"] else f"sampled; {test['test']}"
        judged = {"ok": "", "fault": "1"}
        fault = judged.get(test["verdict"], "")
        unjudged = "1" if test["verdict"] == "unjudged" else ""
        row = [label, str(test["count"]), "", "", fault, unjudged, "", f"{test['p']:.2g}"]
        shown.add_row(*row)
    return shown


def _add_greedy(shown: Any, label: str, rows: Sequence[dict[str, Any]], level: int) -> None:
    same = [r for r in rows if r["at_once"] == level]
    verdicts = [r["verdict"] for r in same]
    counts = [str(verdicts.count(v)) for v in ("equal", "tie", "fault", "unjudged")]
    ties = [r["gap"] for r in same if r["verdict"] == "tie"]
    shown.add_row(label, str(len(same)), *counts, f"{max(ties):.2g}" if ties else "", "")


def sentences(found: dict[str, Any]) -> list[str]:
    """Faults, what was skipped, what could not be judged, and the result, in words."""
    lines = [f"skipped: {s['text']}: {s['why']}" for s in found["skipped"]]
    lines += found["notes"]
    wrong = [r for r in found["greedy"] if r["verdict"] in ("fault", "unjudged")]
    for r in wrong[:FIRST]:
        gap = "gap unknown"
        if r["gap"] is not None:
            gap = f"gap {'at least ' if r['gap_is_lower_bound'] else ''}{r['gap']:.3g}"
        lines.append(
            f"{r['verdict']}: {r['text']}, {r['at_once']} at once: byte {r['byte']} (token "
            f"{r['token']}) goes on with {r['answer']!r}, not {r['plain']!r}, {gap}"
        )
    if len(wrong) > FIRST:
        lines.append(f"... and {len(wrong) - FIRST} more")
    for t in found["sampled"]:
        if t["verdict"] != "ok":
            whose = "plain decoding's samples: " if t["control"] else ""
            lines.append(
                f"{t['verdict']}: {whose}{t['test']}: p = {t['p']:.2g}, chi-square "
                f"{t['statistic']:.1f} with {t['degrees']} degrees of freedom; {t['detail']}"
            )
    if any(t["control"] and t["verdict"] == "unjudged" for t in found["sampled"]):
        lines.append(
            "Plain samples do not follow the reported probabilities: tests by rank are not judged."
        )
    reported = sentence(found["drafts"])
    if reported:
        lines.append(reported)
    lines.append(
        f"Gaps up to {found['tolerance']:.3g} count as ties; an error rate of "
        f"{found['error_rate']:g} is shared by the tests of samples."
    )
    lines.append(
        f"{len(found['greedy'])} greedy answers and {len(found['sampled'])} tests of samples: "
        f"{found['faults']} faults, {found['ties']} ties, {found['unjudged']} not judged."
    )
    return lines
