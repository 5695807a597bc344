"""Text and figures for the terminal."""

from __future__ import annotations

from typing import Any


def verdict(difference: dict[str, Any] | None, exact: bool, damage: str | None = None) -> str:
    """Whether an output equals plain decoding's, in words. damage: what the method changed without
    permission.
    """
    if damage:
        return f"NO: the method changed {damage}"
    promise = "" if exact else " (not guaranteed on this backend)"
    if difference is None:
        return f"yes{promise}"
    gap = difference["top2_gap"]
    row = f"row {difference['row'] + 1}, " if difference["row"] else ""
    size = "unbounded" if gap is None else f"{gap:.2g}"
    return (
        f"no: {row}new token {difference['position'] + 1}, where the target's best two are "
        f"{size} apart{promise}"
    )


def by_source(accepted: dict[str, int]) -> str:
    """The shares of accepted drafts that each source proposed, if there are several sources."""
    if len(accepted) < 2:
        return ""
    total = sum(accepted.values())
    parts = sorted(accepted.items(), key=lambda entry: -entry[1])
    return f" (drafts from {', '.join(f'{name} {n / total:.0%}' for name, n in parts)})"


def summary(record: dict[str, Any]) -> str:
    """A record of `generate` in one line."""
    total, prompt = (
        sum(x) if isinstance(x, list) else x
        for x in (record["new_tokens"], record["prompt_tokens"])
    )
    seconds = record["start_s"] + record["decode_s"]
    words = [
        f"{record['method']}: {total} tokens in {seconds:.2f} s, "
        f"{record['tokens_per_s']:.1f} tokens/s"
    ]
    if record["start_s"] >= 0.005:
        words.append(f"of which the drafter's start took {record['start_s']:.2f} s")
    if record["method"] != "plain":
        length = f"mean acceptance length {record['mean_acceptance_length']:.2f}"
        words.append(length + by_source(record["accepted_by_source"]))
    share = record.get("bandwidth_share")
    if share is not None:
        words.append(f"{share:.0%} of this machine's {record['bandwidth_gb_s']:.0f} GB/s")
    known = (
        f", of which {record['known_prompt_tokens']} were kept"
        if "known_prompt_tokens" in record
        else ""
    )
    words.append(f"prefill of {prompt} tokens{known} {record['prefill_s']:.2f} s")
    if "oracle" in record:
        words.append(f"acceptance set to {record['oracle']:g} drafts per step by an oracle")
    if record.get("speedup") is not None:
        more = (
            f"{record['speedup_end_to_end']:.2f} with prefill, {record['speedup_steady']:.2f} "
            "steady"
        )
        if record.get("predicted_speedup") is not None:
            more += f", predicted {record['predicted_speedup']:.2f}"
        words.append(
            f"plain {record['plain']['tokens_per_s']:.1f} tokens/s, speedup "
            f"{record['speedup']:.2f} ({more})"
        )
    if "equal" in record:
        words.append(
            f"equal: {verdict(record['first_difference'], record['exact'], record.get('damage'))}"
        )
    return "; ".join(words)
