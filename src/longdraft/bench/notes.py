"""Notes under the tables of a report."""

from __future__ import annotations

from statistics import median
from typing import Any

Record = dict[str, Any]
LOOPS = 0.6  # with a smaller share of distinct 3-grams, an output counts as repetitive


def speed_notes(records: list[Record]) -> list[str]:
    """What the numbers of a table of speeds rest on."""
    notes = [*_exact_notes(records), *_stock_notes(records), *_bandwidth_notes(records), *_loop_notes(records)]
    return [*notes, *_distinct_notes(records), *origin(records)]


def _exact_notes(records: list[Record]) -> list[str]:
    """A note if equality is not guaranteed; for records without `exact`, `native` means the same."""
    if all(r.get("exact", r["native"]) for r in records):
        return []
    return ["This backend is not bit-exact: equality is not guaranteed, since ties can be decided differently."]


def _stock_notes(records: list[Record]) -> list[str]:
    """Plain decoding compared with the faster of Transformers' caches."""
    found = []
    for context in sorted({r["context"] for r in records}):
        speeds = {
            name: median(r["tokens_per_s"] for r in records if (r["context"], r["method"]) == (context, name))
            for name in {r["method"] for r in records if r["context"] == context}
        }
        stock = {k: v for k, v in speeds.items() if k.startswith("hf-")}
        if stock and "plain" in speeds:
            best = max(stock, key=lambda k: stock[k])
            found.append(f"At {context} plain decoding is {speeds['plain'] / stock[best]:.2f}x as fast as {best}.")
    return found


def _bandwidth_notes(records: list[Record]) -> list[str]:
    found = []
    for context in sorted({r["context"] for r in records}):
        shares = [r for r in records if r["context"] == context and "bandwidth_share" in r]
        if shares:
            share = median(r["bandwidth_share"] for r in shares)
            read = median(r["bandwidth_gb_s"] for r in shares)
            size = f"{shares[0]['bytes_per_step'] / 1e6:.0f} MB"
            found.append(
                f"At {context} plain decoding reads {size} per step at {share:.0%} of the measured {read:.1f} GB/s."
            )
    return found


def _loop_notes(records: list[Record]) -> list[str]:
    """Repetitive output is easy to draft, so acceptance measured on it proves nothing."""
    found = []
    for context in sorted({r["context"] for r in records}):
        shares = [r["distinct_3"] for r in records if (r["context"], r["method"]) == (context, "plain")]
        if shares and median(shares) < LOOPS and "oracle" not in records[0]:
            found.append(
                f"At {context} only {median(shares):.0%} of the output's 3-grams are distinct: it is repetitive."
            )
    return found


def _distinct_notes(records: list[Record]) -> list[str]:
    """Distinct-1 to Distinct-4 of plain decoding's output, TokenSwift's measure of repetition."""
    found = []
    for context in sorted({r["context"] for r in records}):
        plain = [r for r in records if (r["context"], r["method"]) == (context, "plain") and "distinct_1" in r]
        if plain:
            shares = " ".join(f"{median(r[f'distinct_{n}'] for r in plain):.2f}" for n in range(1, 5))
            found.append(f"At {context} Distinct-1 to Distinct-4 of the output: {shares}.")
    return found


def origin(records: list[Record]) -> list[str]:
    """Machine, versions and command of each run in the table."""
    found = []
    for r in {r["run"]: r for r in records}.values():
        code = (r["git_sha"] or "no checkout")[:12] + (" with changes" if r["git_dirty"] else "")
        build = f" ({r['kernels']})" if r.get("kernels") else ""
        step = f"native step{build}" if r["native"] else "Transformers forward"
        parts = [r["time"], code, f"{r['device']}, {r['threads']} threads, {step}", f"seed {r['seed']}"]
        parts += [f"{k}={v}" for k, v in r["environment"].items()]
        parts += [f"{k} {v}" for k, v in r["versions"].items()]
        found.append(f"{'; '.join(parts)}: `{r['command']}`")
    return found
