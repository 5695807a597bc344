"""The output and the costs of one decoding, as records name them.

All costs that a method adds count against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from longdraft.engine.decode_session import DecodeSession
from longdraft.engine.generate import Stats, Step
from longdraft.ops.bandwidth import bandwidth
from longdraft.recording.record_origin import bytes_per_step

Record = dict[str, Any]
# Each speedup divides one rate by plain decoding's. The rates leave out, in this order: the
# target's prefill; nothing; the target's prefill and the drafter's start (a small model's own
# prefill, for example).
SPEEDUPS = {"speedup" + kind: "tokens_per_s" + kind for kind in ("", "_end_to_end", "_steady")}


@dataclass
class DecodedRows:
    """The new tokens of each row, as far as decoding came, and its statistics."""

    rows: list[list[int]]
    stats: Stats = field(default_factory=Stats)

    def take(self, step: Step) -> None:
        for row, tokens in zip(self.rows, step.tokens, strict=True):
            row += tokens

    def describe(
        self, prompts: list[list[int]], text_of: Callable[[list[int]], str], depth: int
    ) -> dict[str, Any]:
        """The fields of a record: its figures, and facts about each row.

        These are lists if there are several rows.
        """
        each: dict[str, Any] = {
            "text": [text_of(row) for row in self.rows],
            "token_ids": self.rows,
            "prompt_tokens": [len(p) for p in prompts],
            "new_tokens": [len(row) for row in self.rows],
        }
        if len(self.rows) == 1:
            each = {name: values[0] for name, values in each.items()}
        return each | figures(self.stats, depth) | diversity(self.rows)


def figures(stats: Stats, depth: int = 0) -> dict[str, Any]:
    """The figures of one decoding.

    acceptance_per_position has at least `depth` values: 0 where no draft was accepted.
    """
    by_position = stats.acceptance_per_position
    forecast = {}
    if stats.predicted_speedup is not None:
        forecast["predicted_speedup"] = stats.predicted_speedup
    return {
        **timings(stats),
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_per_position": by_position + [0.0] * (depth - len(by_position)),
        "accepted_by_source": dict(stats.sources),
        "verify_steps": stats.steps,
        "draft_s": stats.draft_s,
        "verify_s": stats.verify_s,
        **forecast,
    }


def distinct(rows: list[list[int]], n: int = 3) -> float:
    """The share of distinct n-grams among all of each row: low where an output repeats itself."""
    grams = [[tuple(row[i : i + n]) for i in range(len(row) - n + 1)] for row in rows]
    total = sum(map(len, grams))
    return sum(len(set(g)) for g in grams) / total if total else 1.0


def diversity(rows: list[list[int]]) -> dict[str, float]:
    """Distinct-1 to Distinct-4, TokenSwift's measure of repetition."""
    return {f"distinct_{n}": distinct(rows, n) for n in range(1, 5)}


def traffic(session: DecodeSession, plain: DecodedRows) -> dict[str, Any]:
    """The share of this machine's memory bandwidth with which plain decoding reads its data.

    The data are the weights and the cache.
    """
    passes = max(map(len, plain.rows))
    if not passes:
        return {}
    target = session.target
    lengths = [len(p) + len(r) / 2 for p, r in zip(session.prompts, plain.rows, strict=True)]
    moved = bytes_per_step(target, session.cache, sum(lengths) / len(lengths), len(lengths))
    measured_gb_s = bandwidth(target.device, moved)
    share = moved / (plain.stats.decode_s / passes) / (measured_gb_s * 1e9)
    return {"bytes_per_step": moved, "bandwidth_gb_s": measured_gb_s, "bandwidth_share": share}


def timings(stats: Stats) -> dict[str, float]:
    """Seconds of the target's prefill, the drafter's start and all steps, and the rates they give.

    Rates are new tokens per second: after the target's prefill, in total, and in steps alone; 0 for
    0 seconds.
    """
    seconds = {"prefill_s": stats.prefill_s, "start_s": stats.start_s, "decode_s": stats.decode_s}
    new = stats.start_s + stats.decode_s
    spans = zip(SPEEDUPS.values(), (new, stats.prefill_s + new, stats.decode_s), strict=True)
    return seconds | {rate: stats.emitted / s if s else 0.0 for rate, s in spans}


def speedups(record: Record, plains: list[Record]) -> dict[str, float | None]:
    """A record's rates divided by the medians of plain decoding's; None: a rate is not known."""
    gains: dict[str, float | None] = {}
    for name, rate in SPEEDUPS.items():
        known = [plain[rate] for plain in plains if plain.get(rate)]
        gains[name] = None
        if known and record.get(rate) is not None:
            gains[name] = record[rate] / median(known)
    return gains


def completed(records: list[Record]) -> list[Record]:
    """The records with the rates above.

    Older ones count the drafter's start as prefill: the time by which it exceeds plain decoding's.
    """

    def place(r: Record) -> tuple:
        return str(r.get("run")), str(r.get("text_name")), r["context"], str(r.get("temperature"))

    prefills = {
        place(r): r["prefill_s"] for r in records if r["task"] == "speed" and r["method"] == "plain"
    }
    complete = []
    for r in records:
        prefill_s = prefills.get(place(r))
        if r["task"] == "speed" and "start_s" not in r and prefill_s is not None:
            start_s = max(r["prefill_s"] - prefill_s, 0.0)
            new = r["new_tokens"]
            emitted = sum(new) if isinstance(new, list) else new
            whole = Stats(
                prefill_s=prefill_s, start_s=start_s, decode_s=r["decode_s"], emitted=emitted
            )
            is_peer = r["method"].startswith("hf-")
            r = r | ({"start_s": 0.0} if is_peer else timings(whole))
        complete.append(r)
    return complete
