"""Which combinations of test parameters each commit runs: covering arrays, in which every pair of
values or every value occurs, and samples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from zlib import crc32

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
    values_of = [list(enumerate(values)) for values in candidates]

    def gain(i: int) -> tuple[int, int]:
        values = values_of[i]
        return sum(value in missing for value in values), -sum(used[value] for value in values)

    while missing:
        best = max(range(len(candidates)), key=gain)
        chosen.append(best)
        used.update(enumerate(candidates[best]))
        missing -= set(enumerate(candidates[best]))
    return sorted(chosen)


def a_sixth(names: Sequence[str]) -> list[int]:
    """Indices of a sixth of the names, rounded up: always the same ones of the same names."""
    mixed = sorted(range(len(names)), key=lambda i: crc32(names[i].encode()))
    return sorted(mixed[: (len(names) + 5) // 6])


# by mark: what `make test` runs, and what `full` adds
CHOICES = {"product": (each_value, covering), "each_value": (each_value, each_value)}


def thin(items: Sequence[pytest.Item]) -> None:
    """Move tests to the next tier: from `make test` to `full` to `weekly`.

    The marks `product` and `each_value` leave in `make test` tests that have every value of each
    parameter. With `product`, the first two tiers test every pair of a function's parameters; with
    `each_value`, values repeat in the second. Each build of the kernels counts as a function of its
    own, because some builds do not run on this machine. Then five sixths of each function's tests
    in `full` move to `weekly`, other parameters in each function, but none of a function marked
    `product` or `whole`. What is marked `weekly` stays there.
    """
    _cover(items)
    _sample(items)


def _cover(items: Iterable[pytest.Item]) -> None:
    functions = defaultdict[tuple[str, str, object], list[pytest.Item]](list)
    for item in items:
        for mark in CHOICES.keys() & _marks(item):
            build = item.callspec.params.get("build")  # type: ignore[attr-defined]
            functions[mark, item.nodeid.split("[")[0], build].append(item)
    for (mark, *_), product in functions.items():
        choose_first, choose_second = CHOICES[mark]
        daily = [item for item in product if not item.get_closest_marker("full")]
        first = _kept(choose_first, daily, [])
        first_ids = set(map(id, first))
        rest = [item for item in product if id(item) not in first_ids]
        often = [item for item in rest if not item.get_closest_marker("weekly")]
        second_ids = set(map(id, _kept(choose_second, often, first)))
        for item in rest:
            item.add_marker("full")
            if id(item) not in second_ids:
                item.add_marker("weekly")


def _sample(items: Iterable[pytest.Item]) -> None:
    functions = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        marks = _marks(item)
        if "full" in marks and not marks & {"weekly", "product", "whole"}:
            functions[item.nodeid.split("[")[0]].append(item)
    for tests in functions.values():
        kept = a_sixth([item.nodeid for item in tests])
        for i, item in enumerate(tests):
            if i not in kept:
                item.add_marker("weekly")


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def _kept(
    choice: Callable[[Sequence[Values], Iterable[Values]], list[int]],
    items: list[pytest.Item],
    covered: list[pytest.Item],
) -> list[pytest.Item]:
    return [items[i] for i in choice([_values(x) for x in items], [_values(x) for x in covered])]


def _values(item: pytest.Item) -> Values:
    """The parameters of one test, in the same order for each test of a function."""
    return [repr(value) for _, value in sorted(item.callspec.params.items())]  # type: ignore[attr-defined]
