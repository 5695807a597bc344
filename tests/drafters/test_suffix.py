"""The places of a string against a plain search, and the trees drafted from them."""

from __future__ import annotations

from collections import Counter
from time import process_time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longdraft import Sampler
from longdraft.core.cache import KVCache
from longdraft.core.sequences import Sequences
from longdraft.core.tree import PAD, DraftLimits, Tree
from longdraft.drafters import Suffix
from longdraft.drafters.ngram import recent_text
from longdraft.drafters.ngram.recent_text import NO_MATCH, RecentText
from longdraft.drafters.ngram.suffix import likely

texts = st.lists(st.integers(0, 2), max_size=50)


def recent(text: list[int], parts: int = 1) -> RecentText:
    """A text that came in parts of this many tokens."""
    found = RecentText(1 << 16)
    for i in range(0, len(text), parts):
        found.extend(text[i : i + parts])
    return found


def followers(text: list[int], string: list[int]) -> Counter:
    """How often each token came after a string."""
    n = len(string)
    return Counter(text[i + n] for i in range(len(text) - n) if text[i : i + n] == string)


def longest(text: list[int], within: list[int]) -> list[int]:
    """The longest suffix of a text that is somewhere within another."""
    places = [text[i:] for i in range(len(text))]
    return next(
        (s for s in places if any(within[i : i + len(s)] == s for i in range(len(within)))), []
    )


def continuations(
    text: list[int], string: list[int], depth: int, min_budget: float
) -> dict[tuple[int, ...], float]:
    """Every continuation of a string that is likely enough, with its probability."""
    found: dict[tuple[int, ...], float] = {}
    level = {(): 1.0}
    for _ in range(depth):
        below = {}
        for path, p in level.items():
            counts = followers(text, [*string, *path])
            below |= {(*path, t): p * n / sum(counts.values()) for t, n in counts.items()}
        level = {path: p for path, p in below.items() if p >= min_budget}
        found |= level
    return found


def spelled(pairs: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    paths = [()]
    for parent, token in pairs:
        paths.append((*paths[parent], token))
    return paths[1:]


@pytest.fixture(params=[2, 64])
def few(request, monkeypatch):
    """Few places are compared at once, and many."""
    monkeypatch.setattr(recent_text, "FEW", request.param)


def repeated_length(text: list[int]) -> int:
    return next(
        (n for n in range(len(text) - 1, 0, -1) if longest(text, text[:-1])[-n:] == text[-n:]), 0
    )


def check_repeated(text: list[int], found: RecentText) -> None:
    ends, length = found.repeated()
    assert length == repeated_length(text)
    string = text[len(text) - length :]
    places = [i for i in range(length - 1, len(text) - 1) if text[i + 1 - length : i + 1] == string]
    assert [e - recent_text.LONGEST for e in ends] == (places if length else [])


UNMARKED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@UNMARKED
@given(texts, st.integers(1, 12))
def test_the_longest_repeated_suffix(few, text, parts):
    """Followed token by token, and looked for anew."""
    check_repeated(text, recent(text, parts))
    found = recent([])
    for n, token in enumerate(text, 1):
        found.extend([token])
        if n % parts == 0:
            check_repeated(text[:n], found)


def test_a_repeat_that_is_never_looked_for_again_is_caught():
    class Forgets(RecentText):
        def repeated(self):
            return self._repeated or NO_MATCH

    found = Forgets(1 << 16)
    found.extend([1, 2, 3, 1, 2])
    with pytest.raises(AssertionError):
        check_repeated([1, 2, 3, 1, 2], found)


@UNMARKED
@given(texts, st.integers(1, 6), st.sampled_from([0.05, 0.3, 1.0]), st.integers(1, 30))
def test_drafts_are_the_likeliest_continuations(few, text, depth, min_budget, nodes):
    found = recent(text)
    match = found.repeated()
    if not match.length:
        return
    want = continuations(text, text[len(text) - match.length :], depth, min_budget)
    everything = spelled(likely(found, match, 10**6, depth, min_budget))
    assert len(everything) == len(set(everything)) and set(everything) == set(want)
    some = spelled(likely(found, match, nodes, depth, min_budget))
    best = sorted(want.values(), reverse=True)[:nodes]
    assert [want[path] for path in some] == pytest.approx(best)


@UNMARKED
@given(texts, texts)
def test_following_another_text(few, text, within):
    found = recent(within)
    at = NO_MATCH
    for n, token in enumerate(text, 1):
        at = found.follow(at, token)
        want = longest(text[:n], within)
        assert at.length == len(want)
        if want:
            after = {t: len(longer.ends) for t, longer in found.followers(at)}
            assert after == followers(within, want)
            counts = list(after.values())
            assert counts == sorted(counts, reverse=True)
            shorter = next(s for i in range(n + 1) if followers(within, s := want[i:]) or not s)
            assert found.followed(at).length == len(shorter)


@pytest.mark.full
@pytest.mark.timing
def test_a_text_of_one_token_takes_linear_time():
    least = []  # of three: the collection of other tests' garbage takes time too
    for n in (4000, 32000):
        times = []
        for _ in range(3):
            begin = process_time()
            text = recent([7] * n)
            match = text.repeated()
            times.append(process_time() - begin)
        least.append(min(times))
        assert match.length == recent_text.LONGEST
        text.extend([7])
        assert text.repeated().length == recent_text.LONGEST + 1
    assert least[1] < 40 * least[0]


@given(st.integers(1, 12), st.lists(st.lists(st.integers(0, 2), max_size=30), max_size=8))
def test_what_is_kept_is_bounded(most, parts):
    found = RecentText(most)
    text = []
    for part in parts:
        found.extend(part)
        text += part
        assert found.seen == len(text)
        assert min(most, len(text)) <= len(found.tokens) < 2 * most
        assert found.tokens == text[len(text) - len(found.tokens) :]
        check_repeated(found.tokens, found)


def sequences(*prompts: list[int], limit: int = 20) -> Sequences:
    return Sequences.of(list(prompts), limit, KVCache(len(prompts), 1), Sampler())


def drafted(drafter: Suffix, seqs: Sequences) -> list[set[tuple[int, ...]]]:
    """The paths of each row's tree."""
    tree = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
    rows = []
    for parents, tokens in zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True):
        paths: dict[int, tuple[int, ...]] = {0: ()}
        for n in range(1, tree.size):
            if parents[n] != PAD:
                paths[n] = (*paths[parents[n]], tokens[n])
        rows.append(set(paths.values()) - {()})
    return rows


@given(texts.filter(len), st.integers(1, 7))
def test_the_best_path_is_the_tree_of_width_one(text, depth):
    """For adapters that draft a chain for one row."""
    seqs = sequences(text)
    drafter = Suffix()
    drafter.start(seqs)
    tree = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(depth, width=1))
    assert drafter.best(0, depth) == tree.tokens[0, 1:].tolist()


def test_a_longer_match_is_trusted_for_more_tokens():
    text = list(range(10, 30))
    seqs = sequences([*text, 12], [*text, 12, 13, 14], [*text, 5])
    drafter = Suffix(nodes=6, factor=1.0)
    drafter.start(seqs)
    assert drafted(drafter, seqs) == [{(13,)}, {(15,), (15, 16), (15, 16, 17)}, set()]
    for factor in (99, 1e308):
        drafter = Suffix(nodes=6, factor=factor)
        drafter.start(seqs)
        assert [len(row) for row in drafted(drafter, seqs)] == [6, 6, 0]


def test_branches_by_frequency():
    seqs = sequences([1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 8, 1, 2])
    drafter = Suffix(nodes=3, factor=9, min_probability=0.3)
    drafter.start(seqs)
    # of what is equally likely, the shallow first
    assert drafted(drafter, seqs) == [{(4,), (3,), (4, 8)}]


def test_drafts_end_where_the_limit_is():
    for limit in (1, 2, 4):
        seqs = sequences([*range(10, 30), *range(10, 20)], limit=limit)
        drafter = Suffix()
        drafter.start(seqs)
        assert max((len(p) for p in drafted(drafter, seqs)[0]), default=0) == limit - 1


def test_earlier_outputs_are_remembered_and_earlier_prompts_are_not():
    drafter = Suffix(factor=9, earlier=50)
    first = sequences([1, 2, 3])
    drafter.start(first)
    first.tokens[0, 3:7] = torch.tensor([4, 5, 6, 7])
    first.length += 4
    drafter.update(first, None, None, None)  # type: ignore[arg-type]
    second = sequences([9, 4, 5], [9, 1, 2], [8, 6, 7])
    drafter.start(second)
    # and nothing across the end of a text
    assert drafted(drafter, second) == [
        {(6,), (6, 7)},
        set(),
        set(),
    ]
    drafter.start(sequences([9]))
    assert drafter.memory is not None and len([t for t in drafter.memory.tokens if t < 0]) == 4


def test_memory_is_off_by_default():
    drafter = Suffix(factor=9)
    for prompt in ([1, 2, 3, 1, 2], [1, 2]):
        seqs = sequences(prompt)
        drafter.start(seqs)
    assert drafted(drafter, seqs) == [set()]
