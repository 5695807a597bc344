"""On each commit every pair of parameters of a product is tested, in far fewer tests than the
product has.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product

import pytest
from support.covering import covering, each_value, pairs, thin

SIZES = {
    "methods x models x samplers x rows": (54, 8, 4, 2),
    "one axis": (5,),
    "two axes": (4, 3),
    "equal": (3, 3, 3, 3),
}


def missing(candidates, chosen, covered=()) -> set:
    """Pairs that some candidate has, and neither the chosen ones nor those that are covered."""
    has = set().union(*map(pairs, covered), *(pairs(candidates[i]) for i in chosen))
    return set().union(*map(pairs, candidates)) - has


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_every_pair_occurs(sizes):
    candidates = list(product(*map(range, sizes)))
    chosen = covering(candidates)
    assert not missing(candidates, chosen)
    two = sorted(sizes)[-2:]
    assert len(chosen) <= 1.7 * two[0] * two[-1] * (len(sizes) > 1)
    # planted: without one of them, the check fails
    assert not chosen or missing(candidates, chosen[1:])


def test_only_what_occurs_must_be_covered():
    """A product with holes, part of which other tests cover."""
    whole = list(product(range(6), range(5), range(3)))
    candidates = [x for x in whole if sum(x) % 4]
    covered = whole[:20]
    chosen = covering(candidates, covered)
    assert not missing(candidates, chosen, covered)
    assert covering(candidates, candidates) == []


def test_every_value_occurs_and_none_is_preferred():
    """54 methods on 5 models: 54 tests, 10 or 11 on each model, also with those of another tier."""
    candidates = list(product(range(54), range(5)))
    chosen = [candidates[i] for i in each_value(candidates)]
    assert sorted(method for method, _ in chosen) == list(range(54))
    assert set(Counter(model for _, model in chosen).values()) == {10, 11}
    covered = list(product(range(54), [0]))
    others = Counter(candidates[i][1] for i in each_value(candidates, covered))
    assert others.total() == 54 and others[0] == 1  # the covered model is used once more
    # planted: without one of them, a value is missing
    assert {method for method, _ in chosen[1:]} != set(range(54))


class Item:
    """A test of a product, as far as `thin` knows it."""

    def __init__(self, params: dict[str, int], *marks: str):
        self.nodeid = f"test_x.py::test_x{[*params.values()]}"
        self.callspec = Params(params)
        self.marks = {*marks}

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks

    add_marker = property(lambda self: self.marks.add)


@dataclass
class Params:
    params: dict[str, int]


def test_what_repeats_pairs_moves_to_the_next_tier():
    """Of 6 x 4 x 2 tests, those of the first two values of `a` are in `make test`."""
    items = [
        Item({"a": a, "b": b, "c": c}, "product", *(["full"] if a > 1 else []))
        for a, b, c in product(range(6), range(4), range(2))
    ]
    thin(items)
    tiers = Counter(
        "weekly" if "weekly" in x.marks else "full" if "full" in x.marks else "daily" for x in items
    )
    assert tiers["daily"] == 8 and 16 <= tiers["full"] <= 18 and tiers.total() == 48
    values = [tuple(x.callspec.params.values()) for x in items]
    assert not missing(values, [i for i, x in enumerate(items) if "weekly" not in x.marks])


def test_what_repeats_values_moves_to_the_next_tier():
    """Of 6 x 4 tests, those of the first two values of `a` are in `make test`."""
    items = [
        Item({"a": a, "b": b}, "each_value", *(["full"] if a > 1 else []))
        for a, b in product(range(6), range(4))
    ]
    thin(items)
    daily = [x.callspec.params for x in items if "full" not in x.marks]
    kept = [x.callspec.params for x in items if "weekly" not in x.marks]
    assert len(daily) == 4 and {x["b"] for x in daily} == {0, 1, 2, 3}
    assert len(kept) == 10 and {x["a"] for x in kept if x not in daily} == set(range(6))


def test_other_tests_stay_where_they_are():
    items = [Item({"a": a, "b": b}) for a, b in product(range(3), range(3))]
    thin(items)
    assert not any(x.marks for x in items)
