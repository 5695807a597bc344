"""On each commit every pair of parameters of a product is tested, in far fewer tests than the
product has.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from support.covering import CHOICES, covering, each_value, pairs, thin

FAULT = re.compile("fault|planted|caught|would_be_noticed|is_noticed")
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

    def __init__(self, params: dict[str, int], *marks: str, function: str = "test_x"):
        self.nodeid = f"test_x.py::{function}{[*params.values()]}"
        self.callspec = Params(params)
        self.marks = {*marks}

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks

    def iter_markers(self) -> list[pytest.Mark]:
        return [getattr(pytest.mark, name).mark for name in self.marks]

    add_marker = property(lambda self: self.marks.add)


@dataclass
class Params:
    params: dict[str, int]


def test_what_repeats_pairs_moves_to_the_next_tier():
    """Of 6 x 4 x 2 tests, those of the first two values of `a` may be in `make test`: each value
    once. With the next tier every pair occurs.
    """
    items = [
        Item({"a": a, "b": b, "c": c}, "product", *(["full"] if a > 1 else []))
        for a, b, c in product(range(6), range(4), range(2))
    ]
    thin(items)
    tiers = Counter(
        "weekly" if "weekly" in x.marks else "full" if "full" in x.marks else "daily" for x in items
    )
    assert tiers["daily"] == 4 and 20 <= tiers["full"] <= 24 and tiers.total() == 48
    values = [tuple(x.callspec.params.values()) for x in items]
    daily = [values[i] for i, x in enumerate(items) if "full" not in x.marks]
    assert [set(axis) for axis in zip(*daily, strict=True)] == [{0, 1}, {0, 1, 2, 3}, {0, 1}]
    assert not missing(values, [i for i, x in enumerate(items) if "weekly" not in x.marks])


@pytest.mark.parametrize("mark", CHOICES)
def test_each_build_has_every_value(mark):
    """Builds that do not run on a machine take no value away from the others."""
    items = [
        Item({"build": build, "a": a, "b": b}, mark)
        for build, a, b in product(range(5), range(4), range(2))
    ]
    thin(items)
    daily = [x.callspec.params for x in items if "full" not in x.marks]
    assert len(daily) == 5 * 4
    for build in range(5):
        of_build = [x for x in daily if x["build"] == build]
        assert {x["a"] for x in of_build} == set(range(4))
        assert {x["b"] for x in of_build} == set(range(2))


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
    assert len(kept) == 4 + 1  # a sixth of the six that have every value once more


def test_a_sixth_of_what_is_full_runs_on_each_commit():
    """Always the same tests, and other parameters in each function."""
    kept = {}
    for function in ("test_x", "test_y"):
        items = [Item({"a": a}, "full", function=function) for a in range(30)]
        items += [Item({"a": a}, function=function) for a in range(30, 40)]
        thin(items)
        kept[function] = [x.callspec.params["a"] for x in items if "weekly" not in x.marks]
        again = [Item({"a": a}, "full", function=function) for a in range(30)]
        thin(again)
        assert [x.marks for x in again] == [x.marks for x in items[:30]]
    assert {len(values) for values in kept.values()} == {5 + 10}
    assert kept["test_x"] != kept["test_y"]


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (2, 1), (6, 1), (7, 2)])
def test_each_function_keeps_a_test(count, kept):
    items = [Item({"a": a}, "full") for a in range(count)]
    thin(items)
    assert sum("weekly" not in x.marks for x in items) == kept


@pytest.mark.parametrize("marks", [["full", "whole"], ["full", "weekly"], []])
def test_other_tests_stay_where_they_are(marks):
    items = [Item({"a": a, "b": b}, *marks) for a, b in product(range(3), range(3))]
    thin(items)
    assert all(x.marks == {*marks} for x in items)


def thinned_faults(text: str) -> list[str]:
    """The tests of planted faults in a file that are marked to be thinned, or would be sampled."""
    if not FAULT.search("".join(re.findall(r"def \w+", text))):
        return []  # nothing to parse
    tree = ast.parse(text)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and FAULT.search(node.name):
            marks = [ast.unparse(d).removeprefix("pytest.mark.") for d in node.decorator_list]
            several = any(mark.startswith(("parametrize", "each_method")) for mark in marks)
            sampled = several and {"full", "pytestmark"} & {*marks, *assigned(tree)}
            if set(marks) & set(CHOICES) or (sampled and "whole" not in marks):
                found.append(node.name)
    return found


def assigned(tree: ast.Module) -> list[str]:
    """The names that a module assigns."""
    targets = [
        target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    ]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_no_planted_fault_is_thinned():
    files = Path(__file__).parents[1].glob("*/test_*.py")
    assert [name for p in files for name in thinned_faults(p.read_text(encoding="utf-8"))] == []
    planted = "@pytest.mark.full\n@pytest.mark.parametrize('x', [1, 2])\ndef test_a_fault(x): ...\n"
    assert thinned_faults(planted) == ["test_a_fault"]
    assert thinned_faults("@pytest.mark.whole\n" + planted) == []
    planted = "@pytest.mark.product\ndef test_planted_faults_are_caught(): ..."
    assert thinned_faults(planted) == ["test_planted_faults_are_caught"]
