"""The first difference of an answer from plain decoding's, and what it is: a tie or a fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from longdraft.audit.remote.endpoint import EndpointReply

FLOOR = 0.01  # nats: the smallest tolerance, since few positions are close to a tie
RESPELLED = 4  # tokens before a difference that may have been spelled otherwise


@dataclass(frozen=True)
class Difference:
    """A place where an answer leaves plain decoding's.

    `gap` is the plain log-probability of plain decoding's token minus that of the answer's token;
    a lower bound of it if `bound`, None if it is not known.
    """

    offset: int
    token: int | None
    plain: str
    answer: str
    gap: float | None
    bound: bool = False

    def verdict(self, tolerance: float) -> str:
        """tie, fault or unjudged."""
        if self.gap is None:
            return "unjudged"
        if self.gap > tolerance:
            return "fault"
        return "unjudged" if self.bound else "tie"


def first_difference(plain: EndpointReply, answer: EndpointReply) -> Difference | None:
    """The first difference of an answer from the plain one; None if they are equal.

    The answer has no log-probabilities. Its token is therefore one of plain decoding's
    alternatives that its text allows: the most probable of them.
    """
    ours = plain.text
    theirs = answer.text
    if ours == theirs:
        return None
    offset = _shared(ours, theirs)
    shown = (_shown(ours[offset:]), _shown(theirs[offset:]))
    tokens = plain.tokens
    # an end token has no text, and many servers leave it out
    if tokens is None or not tokens or (offset == len(ours) and not _ends(plain, offset)):
        return Difference(offset, None, *shown, None)
    at = max(i for i, start in enumerate(plain.starts) if start <= offset)
    gaps = list[float]()
    for i in range(max(0, at - RESPELLED), at + 1):
        rest = theirs[plain.starts[i] :]
        allowed = [
            lp for text, lp in tokens[i].top if text != tokens[i].text and _allows(rest, text)
        ]
        gaps += [tokens[i].logprob - logprob for logprob in allowed]
    rest = theirs[plain.starts[at] :]
    if any(text != tokens[at].text and _allows(rest, text) for text, _ in tokens[at].top):
        return Difference(offset, at, *shown, max(0.0, min(gaps)))
    # the answer's token is not listed: its gap is no less than the last one's that is
    unclear = b"\xef\xbf\xbd"  # a part of a character, which several tokens are shown as
    parts = any(unclear in text for text, _ in tokens[at].top)
    if not tokens[at].top or not rest or (parts and rest[0] >= 128):
        return Difference(offset, at, *shown, None)
    gaps.append(tokens[at].logprob - tokens[at].top[-1][1])
    return Difference(offset, at, *shown, max(0.0, min(gaps)), True)


def _shared(one: bytes, two: bytes) -> int:
    """The number of bytes that both begin with."""
    for i, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return i
    return min(len(one), len(two))


def _ends(plain: EndpointReply, offset: int) -> bool:
    """Whether the plain answer has an entry for its end token."""
    return bool(plain.starts) and plain.starts[-1] >= offset and plain.finish == "stop"


def _allows(rest: bytes, text: bytes) -> bool:
    """Whether a token can be the next of an answer that goes on with `rest`."""
    ending = not text or (text.startswith(b"<") and text.endswith(b">"))
    return ending if not rest else bool(text) and rest.startswith(text)


def _shown(text: bytes) -> str:
    return text[:24].decode(errors="replace") or "the end"


def movement(plain: EndpointReply, other: EndpointReply) -> float:
    """The largest change of the gap between the best two tokens, over the tokens that two plain
    answers share: what another order of summation gives.
    """
    largest = 0.0
    for one, two in zip(plain.tokens or [], other.tokens or [], strict=False):
        if len(one.top) > 1 and len(two.top) > 1:
            scores = dict(two.top)
            (best, high), (second, low) = one.top[:2]
            if best in scores and second in scores:
                largest = max(largest, abs((high - low) - (scores[best] - scores[second])))
        if one.text != two.text:
            break
    return largest


def tolerance_of(moved: Iterable[float], gaps: Iterable[float]) -> float:
    """The largest gap that rounding explains: twice the largest change between plain answers, or
    the largest gap at which plain decoding differed from itself, and no less than the floor.
    """
    return max([FLOOR, *(2 * m for m in moved), *gaps])
