"""Notes under the tables of a report."""

from __future__ import annotations

from statistics import median
from typing import Any

Record = dict[str, Any]
LOOPS = 0.6  # with a smaller share of distinct 3-grams, an output counts as repetitive


def speed_notes(records: list[Record]) -> list[str]:
    """The conditions under which a table's speeds were measured."""
    notes = inexact(records)
    contexts = {
        c: [r for r in records if r["context"] == c]
        for c in sorted({r["context"] for r in records})
    }
    for about in (_stock, _peers, _bandwidth, _loops, _distinct):
        by_context = {
            context: about(same, [r for r in same if r["method"] == "plain"])
            for context, same in contexts.items()
        }
        notes += [f"At {context} {note}" for context, note in by_context.items() if note]
    return [*notes, *origin(records)]


def inexact(records: list[Record]) -> list[str]:
    """A note on equality where it is not promised."""
    if all(
        r.get("exact", r["native"]) for r in records
    ):  # older records say only `native`, which means the same
        return []
    return [
        "This backend is not bit-exact: equality is not guaranteed, since ties can be "
        "decided differently."
    ]


# Each of these makes a note on the records of one context, of which `plain` are plain decoding's;
# "" if there is none.


def _stock(records: list[Record], plain: list[Record]) -> str:
    """Plain decoding compared with the faster of Transformers' caches."""
    stock: dict[str, list[float]] = {}
    for r in records:
        if r["method"].startswith("hf-"):
            stock.setdefault(r["method"], []).append(r["tokens_per_s"])
    if not stock or not plain:
        return ""
    speed, best = max((median(speeds), name) for name, speeds in stock.items())
    if not speed:
        return ""
    return (
        f"plain decoding is {median(r['tokens_per_s'] for r in plain) / speed:.2f}x as fast as "
        f"{best}."
    )


def _peers(records: list[Record], plain: list[Record]) -> str:
    """For each other engine, how the best of ours, plain decoding and the prefill compare with
    it.
    """
    parts = []
    ours = [r for r in records if "peer" not in r and not r["method"].startswith("hf-")]
    for name in dict.fromkeys(r["peer"] for r in records if r["method"] == r.get("peer")):
        theirs = [r for r in records if r["method"] == name]
        speed, best = _fastest(theirs)
        alone, _ = _fastest(
            [r for r in theirs if r.get("options", {}).get("speculation") == "none"]
        )
        prefill = min(r["prefill_s"] for r in theirs)
        if not ours or not plain or not speed:
            continue
        top, label = _fastest(ours)
        part = (
            f"the fastest of ours ({label}) is {top / speed:.2f}x as fast as {best} "
            f"({theirs[0]['peer_version']})"
        )
        part += (
            f"; plain decoding {_fastest(plain)[0] / alone:.2f}x as fast as its plain decoding"
            if alone
            else ""
        )
        own = median(r["prefill_s"] for r in plain)
        parts.append(
            f"{part}; the prefill {prefill / own:.2f}x as fast as its own" if own else part
        )
    return "; and ".join(parts) + "." if parts else ""


def _fastest(records: list[Record]) -> tuple[float, str]:
    """The largest median of the tokens per second of a label, and the label."""
    speeds: dict[str, list[float]] = {}
    for r in records:
        speeds.setdefault(r["label"], []).append(r["tokens_per_s"])
    return max(((median(rates), label) for label, rates in speeds.items()), default=(0.0, ""))


def _bandwidth(records: list[Record], plain: list[Record]) -> str:
    known = [r for r in plain if "bandwidth_share" in r]
    if not known:
        return ""
    share, read = (median(r[name] for r in known) for name in ("bandwidth_share", "bandwidth_gb_s"))
    size = f"{known[0]['bytes_per_step'] / 1e6:.0f} MB"
    return f"plain decoding reads {size} per step at {share:.0%} of the measured {read:.1f} GB/s."


def _loops(records: list[Record], plain: list[Record]) -> str:
    """Repetitive output is easy to draft, so acceptance measured on it proves nothing."""
    share = median(r["distinct_3"] for r in plain) if plain and "oracle" not in records[0] else 1.0
    return (
        f"only {share:.0%} of the output's 3-grams are distinct: it is repetitive."
        if share < LOOPS
        else ""
    )


def _distinct(records: list[Record], plain: list[Record]) -> str:
    """Distinct-1 to Distinct-4 of plain decoding's output, TokenSwift's measure of repetition."""
    known = [r for r in plain if "distinct_1" in r]
    shares = (
        " ".join(f"{median(r[f'distinct_{n}'] for r in known):.2f}" for n in range(1, 5))
        if known
        else ""
    )
    return f"Distinct-1 to Distinct-4 of the output: {shares}." if known else ""


def origin(records: list[Record]) -> list[str]:
    """Machine, versions and command of each run in the table."""
    lines = []
    for r in {r["run"]: r for r in records}.values():
        code = (r["git_sha"] or "no checkout")[:12] + (" with changes" if r["git_dirty"] else "")
        build = f" ({r['kernels']})" if r.get("kernels") else ""
        step = f"native step{build}" if r["native"] else "Transformers forward"
        parts = [
            r["time"],
            code,
            f"{r['device']}, {r['threads']} threads, {step}",
            f"seed {r['seed']}",
        ]
        parts += [f"{k}={v}" for k, v in r["environment"].items()]
        parts += [f"{k} {v}" for k, v in r["versions"].items()]
        lines.append(f"{'; '.join(parts)}: `{r['command']}`")
    return lines
