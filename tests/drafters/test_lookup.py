"""Prompt lookup copies what followed the longest match, whatever its memory looks like."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longdraft import Sampler
from longdraft.core.cache import KVCache
from longdraft.core.sequences import Sequences
from longdraft.core.tree import DraftLimits, Tree
from longdraft.drafters.ngram import lookup as ngram
from longdraft.drafters.ngram.reuse import Reuse

TEXTS = st.integers(1, 4).flatmap(lambda vocab: st.lists(st.integers(0, vocab - 1), max_size=60))


def continuation(text: list[int], n: int, count: int) -> list[int]:
    """The specification: the longest suffix of up to n tokens that also ends before the end, and
    there the latest.
    """
    for size in range(min(n, len(text) - 1), 0, -1):
        ends = [
            at for at in range(size, len(text)) if text[at - size : at] == text[len(text) - size :]
        ]
        if ends:
            return text[ends[-1] : ends[-1] + count]
    return []


@given(
    TEXTS, st.sampled_from([1, 2, 3, 4, 5, 6, 9, 20, 512]), st.integers(1, 7), st.integers(0, 60)
)
def test_the_draft_is_what_followed_the_longest_match(text, n, count, cut):
    """Whether the text came at once or bit by bit."""
    whole = ngram._Index(n)
    grown = ngram._Index(n)
    whole.extend(text)
    grown.extend(text[:cut])
    for token in text[cut:]:
        grown.extend([token])
    assert whole.continuation(count) == grown.continuation(count) == continuation(text, n, count)


@pytest.mark.parametrize(("places", "says"), [(3, 5), (1000, 8)])
def test_of_too_many_places_the_latest_are_looked_at(places, says):
    """The longest match is the oldest; behind too many shorter ones the latest of these counts."""
    part = [1, 2, 3, 4]
    index = ngram._Index(9)
    index.extend([7, *part, 5] + [9, *part, 8] * places + [7, *part])
    assert index.continuation(1) == [says]


def peak(work) -> int:
    """Bytes that it had at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def distinct(tokens: int) -> list[int]:
    return [(i * i * 31 + i * 7) % 4093 for i in range(tokens)]


def test_memory_does_not_grow_with_the_length_of_a_match():
    """1,500 tokens took 1.1 GB at n=512."""
    found = {n: peak(lambda n=n: ngram._Index(n).extend(distinct(1500))) for n in (3, 4, 512)}
    assert found[512] < 2 << 20
    assert found[512] < 1.1 * found[4]


def test_a_text_of_one_token_costs_little():
    index = ngram._Index(512)
    calls = 3000
    index.extend([5] * calls)
    # what followed its latest earlier occurrence: one token, then the end
    assert index.continuation(9) == [5]
    assert peak(lambda: ngram._Index(512).extend([5] * calls)) < 2 << 20


def test_reuse_keeps_fewer_n_grams_where_they_are_long():
    assert Reuse(4).capacity == 1 << 17
    assert Reuse(512).capacity * 512 <= 1 << 22
    assert Reuse(4, capacity=9).capacity == 9


@given(TEXTS.filter(len), st.integers(1, 7))
def test_the_best_continuation_is_the_draft(text, count):
    """For adapters that draft for one row without a tree."""
    seqs = Sequences.of([text], 20, KVCache(1, 1), Sampler())
    drafter = ngram.Lookup(3, count)
    drafter.start(seqs)
    tree = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits())
    assert drafter.best(0, count) == tree.tokens[0, 1:].tolist()
