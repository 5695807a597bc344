"""Decoding rates and speedups. Everything that a method adds to plain decoding counts against it."""

from __future__ import annotations

from statistics import median
from typing import Any

from longdraft.engine.generate import Stats

Record = dict[str, Any]
# Each speedup divides one rate by plain decoding's. The rates leave out, in this order: the target's prefill; nothing;
# the target's prefill and the drafter's start (a small model's own prefill, for example).
SPEEDUPS = {
    "speedup": "tokens_per_s",
    "speedup_end_to_end": "tokens_per_s_end_to_end",
    "speedup_steady": "tokens_per_s_steady",
}


def timings(stats: Stats) -> dict[str, float]:
    """Seconds of the target's prefill, of the drafter's start and of all decoding steps, and the rates they give."""
    seconds = {"prefill_s": stats.prefill_s, "start_s": stats.start_s, "decode_s": stats.decode_s}
    return seconds | rates(stats.emitted, **seconds)


def rates(tokens: int, prefill_s: float, start_s: float, decode_s: float) -> dict[str, float]:
    """New tokens per second: after the target's prefill, in total, and in decoding steps alone. 0 for 0 seconds."""
    seconds = {
        "tokens_per_s": start_s + decode_s,
        "tokens_per_s_end_to_end": prefill_s + start_s + decode_s,
        "tokens_per_s_steady": decode_s,
    }
    return {name: tokens / s if s else 0.0 for name, s in seconds.items()}


def speedups(record: Record, plains: list[Record]) -> dict[str, float | None]:
    """A record's rates divided by the medians of plain decoding's; None where a rate is not known."""
    found: dict[str, float | None] = {}
    for name, rate in SPEEDUPS.items():
        known = [p[rate] for p in plains if p.get(rate)]
        found[name] = record[rate] / median(known) if known and record.get(rate) is not None else None
    return found


def completed(records: list[Record]) -> list[Record]:
    """Records of task `speed` with the rates above. Older records, which count the drafter's start as prefill, get
    them too: what exceeds plain decoding's prefill in the same run, text and context is the drafter's start.
    """

    def place(r: Record) -> tuple:
        return r.get("run"), r.get("text_name"), r["context"], r.get("temperature")

    prefills = {place(r): r["prefill_s"] for r in records if r["task"] == "speed" and r["method"] == "plain"}
    found = []
    for r in records:
        prefill_s, new = prefills.get(place(r)), r.get("new_tokens")
        if r["task"] == "speed" and "start_s" not in r and prefill_s is not None:
            whole = {"start_s": 0.0}
            if not r["method"].startswith("hf-"):
                start_s = max(r["prefill_s"] - prefill_s, 0.0)
                whole = {"prefill_s": prefill_s, "start_s": start_s, "decode_s": r["decode_s"]}
                whole |= rates(sum(new) if isinstance(new, list) else new, **whole)
            r = r | whole
        found.append(r)
    return found
