"""Covering arrays: of a product of test parameters, a few combinations in which every pair of
values, or every value, occurs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations

import pytest

Values = Sequence[Hashable]  # one for each axis
Pairs = set[tuple[tuple[int, Hashable], tuple[int, Hashable]]]  # of (axis, value)


def pairs(values: Values) -> Pairs:
    return set(combinations(enumerate(values), 2))


def covering(candidates: Sequence[Values], covered: Iterable[Values] = ()) -> list[int]:
    """Indices of candidates which, together with `covered`, have every pair of values that any
    candidate has.

    Greedy: of the candidates that agree on the two longest axes, the one with the most new pairs
    comes first.
    """
    seen = Pairs().union(*map(pairs, covered))
    chosen: list[int] = []

    def new(i: int) -> int:
        return len(pairs(candidates[i]) - seen)

    def choose(i: int) -> None:
        if new(i):
            chosen.append(i)
            seen.update(pairs(candidates[i]))

    for group in _agreeing(candidates):
        choose(max(group, key=new))
    for i in range(len(candidates)):
        choose(i)
    return sorted(chosen)


def _agreeing(candidates: Sequence[Values]) -> list[list[int]]:
    """The candidates by their values on the two axes with the most values."""
    sizes = [len(set(axis)) for axis in zip(*candidates, strict=True)]
    longest = sorted(range(len(sizes)), key=lambda axis: -sizes[axis])[:2]
    groups = defaultdict[Values, list[int]](list)
    for i, values in enumerate(candidates):
        groups[tuple(values[axis] for axis in longest)].append(i)
    return list(groups.values())


def each_value(candidates: Sequence[Values], covered: Iterable[Values] = ()) -> list[int]:
    """Indices of candidates in which every value of every axis occurs.

    Greedy: the candidate with the most new values; of these, the one whose values are used least,
    also by `covered`.
    """
    used = Counter(value for values in covered for value in enumerate(values))
    missing = {value for values in candidates for value in enumerate(values)}
    chosen: list[int] = []

    def gain(i: int) -> tuple[int, int]:
        values = set(enumerate(candidates[i]))
        return len(values & missing), -sum(used[value] for value in values)

    while missing:
        best = max(range(len(candidates)), key=gain)
        chosen.append(best)
        used.update(enumerate(candidates[best]))
        missing -= set(enumerate(candidates[best]))
    return sorted(chosen)


CHOICES = {"product": covering, "each_value": each_value}  # by mark


def thin(items: Iterable[pytest.Item]) -> None:
    """Move tests that repeat pairs of values (the mark `product`) or values (`each_value`) to the
    next tier: from `make test` to `full` to `weekly`.

    Every pair of a function's parameters is still tested in the first two tiers; or every value is,
    in both of them, in other combinations. What is marked `weekly` stays there.
    """
    functions = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for item in items:
        for mark in CHOICES:
            if item.get_closest_marker(mark):
                functions[mark, item.nodeid.split("[")[0]].append(item)
    for (mark, _), product in functions.items():
        daily = [item for item in product if not item.get_closest_marker("full")]
        first = _kept(CHOICES[mark], daily, [])
        first_ids = set(map(id, first))
        rest = [item for item in product if id(item) not in first_ids]
        often = [item for item in rest if not item.get_closest_marker("weekly")]
        second_ids = set(map(id, _kept(CHOICES[mark], often, first)))
        for item in rest:
            item.add_marker("full")
            if id(item) not in second_ids:
                item.add_marker("weekly")


def _kept(
    choice: Callable[[Sequence[Values], Iterable[Values]], list[int]],
    items: list[pytest.Item],
    covered: list[pytest.Item],
) -> list[pytest.Item]:
    return [items[i] for i in choice([_values(x) for x in items], [_values(x) for x in covered])]


def _values(item: pytest.Item) -> Values:
    """The parameters of one test, in the same order for each test of a function."""
    return [repr(value) for _, value in sorted(item.callspec.params.items())]  # type: ignore[attr-defined]
