"""Training rows as a pure function of (seed, step), so that resuming needs no state."""

from __future__ import annotations

import numpy as np
import torch

from longdraft.errors import InputError
from longdraft.training.data import Corpus

IGNORE = -100


def batch(
    corpus: Corpus,
    rows: int,
    length: int,
    seed: int,
    step: int,
    *,
    code: float,
    copies: float,
    vocab: int,
    grid: bool = False,
):
    """A step's tokens, labels and sources, each [rows, length + 1] int64.

    A label is the token itself, or IGNORE where it is not scored. A source is the earlier position
    that a token repeats, or IGNORE. code: chance that a row is code. copies: chance that a row has
    repeated spans. grid: see `cut`.
    """
    rng = generator(seed, step)
    selected = [cut(corpus, length + 1, rng, code, grid) for _ in range(rows)]
    tokens = np.stack(selected).astype(np.int64)
    labels = tokens.copy()
    sources = np.full_like(tokens, IGNORE)
    for row, label, source in zip(tokens, labels, sources, strict=True):
        if rng.random() < copies:
            repeat_spans(row, label, source, rng, vocab)
    return torch.from_numpy(tokens), torch.from_numpy(labels), torch.from_numpy(sources)


def generator(seed: int, *more: int) -> np.random.Generator:
    """The random numbers of these numbers.

    A seed is taken modulo 2^64, since numpy takes no negative ones.
    """
    return np.random.default_rng([seed % (1 << 64), *more])


def cut(
    corpus: Corpus, size: int, rng: np.random.Generator, code: float, grid: bool = False
) -> np.ndarray:
    """`size` consecutive tokens of one group, uniform over all places in the drawn kind of text.

    Raises InputError.
    grid: they begin at a multiple of size - 1 in their group, so that cached states are reused.
    """
    room = np.diff(corpus.groups) - size + 1
    room[room < 0] = 0
    wanted = "code" if rng.random() < code else "book"
    of_kind = np.where(np.asarray(corpus.kinds) == wanted, room, 0)
    places = np.cumsum(of_kind if of_kind.sum() else room)
    if not len(places) or not places[-1]:
        raise InputError(
            f"no document group has {size} tokens: give longer text or a shorter --stage"
        )
    place = int(rng.integers(places[-1]))
    group = int(np.searchsorted(places, place, side="right"))
    offset = place - (int(places[group - 1]) if group else 0)
    if grid:
        offset -= offset % (size - 1)
    begin = int(corpus.groups[group]) + offset
    return corpus.tokens[begin : begin + size]


def repeat_spans(
    row: np.ndarray, label: np.ndarray, source: np.ndarray, rng: np.random.Generator, vocab: int
) -> None:
    """Overwrite later spans of the row with earlier ones, in place.

    Distances are log-uniform up to the row's length. Half of the spans are the row's text and half
    are random tokens. The first occurrence of random tokens is not scored, nor are the tokens at
    the ends of a copy, which cannot be predicted. No position is written twice.
    """
    size = len(row)
    taken = np.zeros(len(row), bool)
    for _ in range(max(1, size // 256)):
        span = min(int(rng.integers(32, 257)), size // 2 - 2)
        distance = span + int(np.exp(rng.uniform(0, np.log(size - 2 * span))))
        start = int(rng.integers(1, size - distance - span + 1))
        old = slice(start, start + span)
        new = slice(start + distance, start + distance + span)
        made_up = rng.random() < 0.5
        if taken[old].any() or taken[new].any():
            continue
        taken[old] = True
        taken[new] = True
        if made_up:
            row[old] = rng.integers(1, vocab, span)
            label[start : old.stop + 1] = IGNORE
        row[new] = row[old]
        label[new] = row[old]
        source[new.start + 1 : new.stop] = np.arange(start + 1, start + span)
        label[[new.start, min(new.stop, size - 1)]] = IGNORE
