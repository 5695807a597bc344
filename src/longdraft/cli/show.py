"""What a person sees: text as it comes, and the figures under it."""

from __future__ import annotations

from typing import Any


class Detokenizer:
    """Tokens in, text out, piece by piece: what may still be half a character is held back until it is whole."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.start = self.shown = 0  # ids[start:shown] is text already given; it sets the spacing of what follows

    def push(self, tokens: list[int]) -> str:
        self.ids += tokens
        before, after = self._text(self.start, self.shown), self._text(self.start, len(self.ids))
        if after.endswith("\ufffd") or len(after) < len(before):
            return ""
        self.start, self.shown = self.shown, len(self.ids)
        return after[len(before) :]

    def flush(self) -> str:
        """What is left at the end, whole or not."""
        rest = self._text(self.start, len(self.ids))[len(self._text(self.start, self.shown)) :]
        self.start = self.shown = len(self.ids)
        return rest

    def _text(self, first: int, last: int) -> str:
        return text_of(self.tokenizer, self.ids[first:last])


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def verdict(difference: dict[str, Any] | None, exact: bool, damage: str | None = None) -> str:
    """Whether an output equals plain decoding's, in words; exact: whether it must (LM.exact).

    damage: what the method changed that is not its own.
    """
    if damage:
        return f"NO: the method changed {damage}"
    promise = "" if exact else " (not guaranteed on this backend)"
    if difference is None:
        return f"yes{promise}"
    gap = difference["top2_gap"]
    row = f"row {difference['row'] + 1}, " if difference["row"] else ""
    size = "unbounded" if gap is None else f"{gap:.2g}"
    return f"no: {row}new token {difference['position'] + 1}, where the target's best two are {size} apart{promise}"


def figures(record: dict[str, Any]) -> str:
    """A record of `generate` in a line."""
    total, prompt = (sum(x) if isinstance(x, list) else x for x in (record["new_tokens"], record["prompt_tokens"]))
    seconds = record["start_s"] + record["decode_s"]
    words = [f"{record['method']}: {total} tokens in {seconds:.2f} s, {record['tokens_per_s']:.1f} tokens/s"]
    if record["start_s"] >= 0.005:
        words.append(f"of which the drafter's start took {record['start_s']:.2f} s")
    if record["method"] != "plain":
        words.append(f"mean acceptance length {record['mean_acceptance_length']:.2f}")
    share = record.get("bandwidth_share")
    if share is not None:
        words.append(f"{share:.0%} of this machine's {record['bandwidth_gb_s']:.0f} GB/s")
    words.append(f"prefill of {prompt} tokens {record['prefill_s']:.2f} s")
    if "oracle" in record:
        words.append(f"acceptance set to {record['oracle']:g} a step by an oracle")
    if record.get("speedup") is not None:
        more = f"{record['speedup_end_to_end']:.2f} with prefill, {record['speedup_steady']:.2f} steady"
        words.append(f"plain {record['plain']['tokens_per_s']:.1f} tokens/s, speedup {record['speedup']:.2f} ({more})")
    if "equal" in record:
        words.append(f"equal: {verdict(record['first_difference'], record['exact'], record.get('damage'))}")
    return "; ".join(words)
