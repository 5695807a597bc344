"""Tests of sampled tokens: against reported probabilities, and against plain decoding's samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp

import torch

from longdraft.audit.remote.endpoint import EndpointReply, ScoredToken

RANKS = (0, 1, 2, 4)  # first rank of each class; the last class ends with the list
EXPECTED = 10.0  # expected counts below this are merged with the next class
SAME = 1e-6  # nats: between two log-probabilities of one token
SHARED = 8  # samples that a text must begin alike to be a class


@dataclass(frozen=True)
class FrequencyTest:
    """A chi-square test: its statistic, degrees of freedom, and probability if nothing is wrong."""

    statistic: float
    degrees: int
    p: float
    count: int
    detail: str = ""


def p_value(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variable exceeds the statistic."""
    half = torch.tensor([degrees / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def by_rank(replies: Iterable[EndpointReply], top: int) -> FrequencyTest | None:
    """How often the sampled token is the most probable, the second, ... against the sum of the
    probabilities reported for these ranks.

    Counts minus expected counts are a martingale, so their covariance is the sum over the tokens,
    whatever the tokens before them were. Answers therefore need no common prefix.
    """
    size = len(RANKS) + 1
    counts = [0] * size
    sums = [0.0] * size
    products = [[0.0] * size for _ in range(size)]
    for reply in replies:
        for token in reply.tokens or []:
            if len(token.top) < 2:
                continue
            listed = token.top[:top]
            p = [0.0] * size
            for rank, (_, logprob) in enumerate(listed):
                p[_class(rank)] += exp(logprob)
            p[-1] = max(0.0, 1.0 - sum(p))
            counts[_class(_rank(token, listed))] += 1
            for i in range(size):
                sums[i] += p[i]
                for j in range(size):
                    products[i][j] += p[i] * p[j]
    seen = torch.tensor(counts, dtype=torch.float64)
    expected = torch.tensor(sums, dtype=torch.float64)
    covariance = torch.diag(expected) - torch.tensor(products, dtype=torch.float64)
    merged = _merged(expected)
    if merged is None:
        return None
    off = (merged @ (seen - expected))[:-1]
    spread = (merged @ covariance @ merged.T)[:-1, :-1]
    statistic = float(off @ torch.linalg.pinv(spread, hermitian=True) @ off)
    shares = f"best token {counts[0]} times, {sums[0]:.1f} expected"
    return FrequencyTest(statistic, len(off), p_value(statistic, len(off)), sum(counts), shares)


def unscored(replies: Iterable[EndpointReply]) -> int:
    """The number of tokens without alternatives, which `by_rank` cannot use."""
    return sum(len(token.top) < 2 for reply in replies for token in reply.tokens or [])


def _class(rank: int | None) -> int:
    if rank is None:
        return len(RANKS)
    return sum(rank >= first for first in RANKS) - 1


def _rank(token: ScoredToken, listed: list[tuple[bytes, float]]) -> int | None:
    """The sampled token's rank among those listed; None if it is not among them.

    A server may show the last token of a character as the whole character, in the token but not
    among the alternatives: such a token is the one with its ending and its log-probability.
    """
    same = [i for i, (text, _) in enumerate(listed) if text == token.text]
    if not same:
        same = [
            i
            for i, (text, lp) in enumerate(listed)
            if text and token.text.endswith(text) and abs(lp - token.logprob) < SAME
        ]
    return min(same, key=lambda i: abs(listed[i][1] - token.logprob)) if same else None


def _merged(expected: torch.Tensor) -> torch.Tensor | None:
    """A row of ones and zeros for each class that is left; None if fewer than two are."""
    rows = list[torch.Tensor]()
    row = torch.zeros_like(expected)
    for i in range(len(expected)):
        row[i] = 1
        if float(row @ expected) >= EXPECTED:
            rows.append(row)
            row = torch.zeros_like(expected)
    if rows:
        rows[-1] = rows[-1] + row
    return torch.stack(rows) if len(rows) > 1 else None


def by_text(plain: Sequence[bytes], other: Sequence[bytes]) -> FrequencyTest | None:
    """How often answers begin alike: samples with and without speculation, by the longest beginning
    that most samples share with several others.

    The length depends only on all samples together, so that the test stays a test.
    """
    both = [*plain, *other]
    for length in range(32, 0, -1):
        counts = Counter(text[:length] for text in both)
        kept = [start for start, n in counts.items() if n >= SHARED]
        rest = len(both) - sum(counts[start] for start in kept)
        if len(kept) > 1 and rest <= len(both) / 2:
            break
    else:
        return None
    left = Counter(text[:length] for text in plain)
    right = Counter(text[:length] for text in other)
    cells = [(left[start], right[start]) for start in kept]
    if rest >= SHARED:
        cells.append((len(plain) - sum(c[0] for c in cells), len(other) - sum(c[1] for c in cells)))
    a = sum(c[0] for c in cells)
    b = sum(c[1] for c in cells)
    if not a or not b:
        return None
    statistic = 0.0
    for one, two in cells:
        statistic += (one * b - two * a) ** 2 / (a * b * (one + two))
    return FrequencyTest(
        statistic,
        len(cells) - 1,
        p_value(statistic, len(cells) - 1),
        a + b,
        f"first {length} bytes",
    )
