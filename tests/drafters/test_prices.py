"""A drafter has one price: by the same number a run decides, and `longdraft plan` recommends."""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from support import tiny
from support.listed import BUILD, OPTIONS, make

import longdraft.bench.plan
import longdraft.drafters
from longdraft.bench.plan import prediction
from longdraft.bench.plan.candidates import Candidate, candidates
from longdraft.bench.plan.glide import GlideOutline
from longdraft.bench.plan.outlines import target_here, target_on
from longdraft.core import UNBOUNDED
from longdraft.costs.counts import counted, counts_of
from longdraft.costs.passes import Pass, PassCosts
from longdraft.drafters import SelfDrafter
from longdraft.drafters.adaptive.prices import Predicted
from longdraft.drafters.combined import Combined
from longdraft.drafters.kinds import KINDS
from longdraft.drafters.price import (
    DraftPrice,
    InTurnPrice,
    Lengths,
    PlannedMachine,
    SumOfPrices,
)
from longdraft.methods import find
from longdraft.methods.spec import MethodSpec
from longdraft.models.outline import outline_of

LENGTHS = (Lengths([70]), Lengths([300, 41]), Lengths([4000]))
LIMITS = [(depth, width) for depth in (1, 2, 3, 6) for width in (1, 3, UNBOUNDED)]
MODELS = ("llama", "llama-torch")
# these choose the limits of their drafters themselves
FILLS = {name for name in BUILD if name == "auto" or name.startswith("fill")}
DRAFTERS = sorted(BUILD.keys() - FILLS)


def compare(lm, drafter, planned=None, target=None) -> None:
    """By the same costs of passes, a plan and a run predict the same drafts."""
    costs = counted(lm)
    target = target or target_here(lm, costs, False)
    copy = counts_of(drafter.model) if isinstance(drafter, SelfDrafter) else target.counts
    candidate = Candidate(MethodSpec("vegas", "vegas"), planned or drafter, copy, None)
    price = prediction.price_on(target, candidate)
    run = Predicted(lm, costs)
    for depth, width in LIMITS:
        assert price.levels(depth, width) == drafter.price().levels(depth, width)
        for lengths in LENGTHS:
            seconds = price.seconds(costs, lengths, depth, width)
            assert seconds == run.draft(drafter, lengths, depth, width) > 0


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_plan_and_a_run_have_one_price(name, model):
    lm = tiny.target(model)
    drafter = BUILD[name](lm)
    compare(lm, drafter)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_drafter_without_weights_has_the_price_of_one_with_weights(name):
    lm = tiny.target("llama")
    words = {
        k: ",".join(map(str, v)) if isinstance(v, list) else str(v)
        for k, v in OPTIONS[name].items()
    }
    needs = find(name).needs
    weights = KINDS[needs].random(lm, 1) if needs in KINDS else None
    spec = MethodSpec(
        name, name, words | ({"draft_weights": "same"} if name == "quantspec" else {})
    )
    drafter = make(name, lm, weights, **spec.options)
    target = target_on(outline_of(tiny.CONFIGS["llama"], torch.float32), "CPU")
    [found], _ = candidates(target, [spec], None)
    compare(lm, drafter, found.drafter, target)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("eagle3", {"slot": 0}),  # a layer without its keys
        ("triforce", {"inner": DraftPrice(max_depth=2, usual=(0.9, 0.9))}),
        ("vegas", {"widths": [1] * 3}),
        ("dflash", {"slots": 1}),
        ("mtp", {"one_layer": False, "head": 0.0}),
    ],
)
def test_a_second_price_that_disagrees_is_seen(name, changed, monkeypatch):
    lm = tiny.target("llama")
    drafter = BUILD[name](lm)
    price_on = prediction.price_on
    monkeypatch.setattr(
        prediction, "price_on", lambda target, c: replace(price_on(target, c), **changed)
    )
    with pytest.raises(AssertionError):
        compare(lm, drafter)


def priced_elsewhere() -> list[str]:
    """Classes of drafters and of the plan that predict seconds, beside the prices."""
    found = []
    for package in (longdraft.drafters, longdraft.bench.plan):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            classes = inspect.getmembers(import_module(info.name), inspect.isclass)
            found += [
                name
                for name, cls in classes
                if cls.__module__ == info.name
                and "seconds" in vars(cls)
                and not issubclass(cls, DraftPrice)
            ]
    return found


def test_nothing_else_prices_drafts(monkeypatch):
    assert not priced_elsewhere()
    monkeypatch.setattr(GlideOutline, "seconds", lambda self: 0.0, raising=False)
    assert priced_elsewhere() == ["GlideOutline"]


def test_drafters_that_take_turns_share_the_width():
    """What the first one leaves is what the second one may add."""
    lm = tiny.target("llama")
    price = BUILD["vegas-reuse"](lm).price()
    assert price.levels(3, 1) == [1, 1, 1]
    assert price.levels(3, 3) == [1, 3, 3]
    assert price.breadth(3, 3) == [1, 1, 1]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_fixed_costs_of_a_small_model_follow_its_layers_on_gpus(device):
    """A pass costs the target's call without its layers, and those layers that it has. On CPUs it
    costs the target's whole call, so that what is fixed there decides as it did.
    """
    lm = tiny.target("llama")
    drafter = BUILD["sd"](lm)
    price = drafter.price()
    assert price.depth == lm.depth != price.counts.depth
    target = replace(counts_of(lm), device=device, one_call=True)
    price = price.planned(PlannedMachine(target, target, compiled=False))
    costs = PassCosts(call=11.0, chained=8.0)
    share = price.counts.depth / lm.depth if device == "cuda" else 1.0
    lengths = Lengths([70])
    assert price.seconds(costs, lengths, 1, 1) == pytest.approx(3 + 8 * share)
    assert price.seconds(costs, lengths, 4, 1) == pytest.approx(3 + 4 * 8 * share)
    reading = price.reading([0], Lengths([500]))
    assert sum(map(costs.seconds, reading)) == pytest.approx(len(reading) * (3 + 8 * share))


def test_layers_that_cost_more_than_a_call_are_not_refunded():
    """Measured costs need not agree; no pass has a negative price."""
    few = Pass(layers=0.1)
    assert PassCosts(call=2.0, chained=8.0).seconds(few) == pytest.approx(0.2)
    assert PassCosts(call=2.0, chained=8.0).seconds(replace(few, chained=True)) == pytest.approx(
        0.8
    )
    assert PassCosts(call=2.0, chained=8.0).seconds(Pass()) == 2.0


@pytest.mark.parametrize("kind", [SumOfPrices, InTurnPrice])
def test_what_is_expected_of_several_drafters(kind):
    """They find something where any of them does, and one guess makes all of it a guess."""
    first = DraftPrice(usual=(0.9, 0.8), finds=0.25)
    second = DraftPrice(usual=(0.7, 0.6), finds=0.5, rough=True)
    both = kind.of([first, second], 3)
    assert (both.usual, both.finds, both.rough, both.max_depth) == ((0.9, 0.8), 0.5, True, 3)
    assert not kind.of([first, first], 3).rough


def test_prices_of_several_drafters_add_up():
    lm = tiny.target("llama")
    parts = [BUILD["lookup"](lm), BUILD["vegas"](lm)]
    both = Combined()
    both.combine(parts)
    both.max_depth = 5
    price = both.price()
    each = [p.price() for p in parts]
    assert price.nodes(3, 1) == sum(p.nodes(3, 1) for p in each)
    costs = counted(lm)
    [lengths, *_] = LENGTHS
    assert price.seconds(costs, lengths, 3, 1) == sum(p.seconds(costs, lengths, 3, 1) for p in each)
