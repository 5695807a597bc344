"""Covering arrays: of a product of test parameters, a few combinations in which every pair of
values occurs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
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


def thin(items: Iterable[pytest.Item]) -> None:
    """Move tests of products that repeat pairs of values to the next tier: from `make test` to
    `full` to `weekly`.

    Only functions with the mark `product` are thinned. Every pair of their parameters is still
    tested on each commit.
    """
    functions = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("product"):
            functions[item.nodeid.split("[")[0]].append(item)
    for product in functions.values():
        daily = [item for item in product if not item.get_closest_marker("full")]
        kept = _kept(daily, [])
        rest = [item for item in product if id(item) not in set(map(id, kept))]
        kept += _kept(rest, kept)
        daily_ids = set(map(id, daily))
        kept_ids = set(map(id, kept))
        for item in product:
            if id(item) not in kept_ids:
                item.add_marker("full")
                item.add_marker("weekly")
            elif id(item) not in daily_ids:
                item.add_marker("full")


def _kept(items: list[pytest.Item], covered: list[pytest.Item]) -> list[pytest.Item]:
    return [items[i] for i in covering([_values(x) for x in items], [_values(x) for x in covered])]


def _values(item: pytest.Item) -> Values:
    """The parameters of one test, in the same order for each test of a function."""
    return [repr(value) for _, value in sorted(item.callspec.params.items())]  # type: ignore[attr-defined]
