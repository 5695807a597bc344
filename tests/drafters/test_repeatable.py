"""A seed gives the same output in every run on one machine: where draft shapes can change it, no
clock chooses them.

The clocks here are random: they stand still, jump, and never run the same twice.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, SEED, plain
from support.listed import BUILD, each_method, full
from support.prices import Stated
from support.sessions import Ends, finish

from longdraft import AdaptiveDraft, Session, build, generate, match, reject
from longdraft.costs.counts import counted
from longdraft.costs.passes import PassCosts
from longdraft.drafters import Drafter, Fill, Lookup, SelfDrafter
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants
from longdraft.drafters.adaptive.prices import Predicted
from longdraft.methods.prices import adapted
from longdraft.models.lm import LM
from longdraft.ops import native
from longdraft.views import SinkWindow

SMALL = {"gamma": 4, "min_budget": 16}
# measurements count at once, so that a short text shows what they change
AT_ONCE = replace(DEFAULTS, part_rate=0.9, unanchored_measurements=0)
CONSTANTS = DEFAULTS


class Cheap(Predicted):
    """A drafted token costs a twentieth of a plain step, so that drafts pay on tiny models too."""

    def __init__(self, target: LM, costs: PassCosts, corrects: bool = False):
        super().__init__(target, costs, corrects, CONSTANTS)

    def draft(self, drafter, lengths, depth, width):
        return depth / 20 * self.plain(lengths) * self.scale(drafter)


def cheap(target: LM) -> tuple[Cheap, Cheap]:
    """As for named methods: measurements correct the first one where the output cannot depend on
    them.
    """
    fixed = Cheap(target, counted(target))
    return (Cheap(target, counted(target), corrects=True) if target.exact else fixed), fixed


def hopeful(drafter: Drafter) -> Drafter:
    """It expects enough of its drafts to make some."""
    price = drafter.price
    drafter.price = lambda: replace(price(), usual=(0.6, 0.4))
    return drafter


DRAFTERS = {
    "vegas": lambda t: AdaptiveDraft(build("vegas", t, **SMALL), *cheap(t)),
    "lookup": lambda t: AdaptiveDraft(hopeful(build("lookup", t, n=1, count=5)), *cheap(t)),
    "suffix": lambda t: AdaptiveDraft(hopeful(build("suffix", t, nodes=8)), *cheap(t)),
    "fill": lambda t: Fill([build("vegas", t, **SMALL)], *cheap(t)),
}
each_sampler = pytest.mark.parametrize(
    "sampler", ["T=1", pytest.param("greedy", marks=pytest.mark.full)]
)
each_drafter = pytest.mark.parametrize("drafter", DRAFTERS)
needs_native = pytest.mark.skipif(
    native.library() is None, reason="the native kernels are not built"
)


@cache
def half(name: str) -> LM:
    """A tiny model in bfloat16."""
    return LM(tiny.stock(name, dtype=torch.bfloat16), name)


@cache
def inexact(name: str) -> LM:
    """The same by the torch path."""
    lm = LM(tiny.stock(name, dtype=torch.bfloat16), name)
    lm.backend = lm.eager
    return lm


class Watch(Drafter):
    """The inner drafter, and the shape of every tree that was verified."""

    def __init__(self, inner: Drafter):
        self.inner = inner
        self.has_draft_probs = inner.has_draft_probs
        self.shapes = []

    def captures(self):
        return self.inner.captures()

    def verified_by(self, verify):
        self.inner.verified_by(verify)

    def start(self, seqs):
        self.inner.start(seqs)

    def grow(self, tree, seqs, limits):
        return self.inner.grow(tree, seqs, limits)

    def update(self, seqs, tree, verdict, captured):
        self.shapes.append(tree.parent.tolist())
        self.inner.update(seqs, tree, verdict, captured)


def set_clocks(monkeypatch, seed: int) -> None:
    """Every clock that longdraft reads."""
    draw = random.Random(seed)
    now = [0.0]

    def clock() -> float:
        now[0] += draw.choice([0.0, 10 ** draw.uniform(-6, 3)])
        return now[0]

    for name, module in list(sys.modules.items()):
        if name.startswith("longdraft") and hasattr(module, "perf_counter"):
            monkeypatch.setattr(module, "perf_counter", clock)


def runs(
    monkeypatch, lm: LM, make, sampler: str, verify=match, times: int = 3, new: int = 64
) -> Iterator[tuple]:
    """(output, shapes of trees) of the same call, each time with another clock."""
    for seed in range(times):
        set_clocks(monkeypatch, seed)
        drafter = Watch(make(lm))
        options = {
            "max_new_tokens": new,
            "sampler": SAMPLERS[sampler],
            "seed": SEED,
            "verify": verify,
        }
        yield generate(lm, tiny.prompts(70), drafter, **options), drafter.shapes


GOOD = Predicted.__init__


def time_everything(monkeypatch) -> None:
    """The planted fault."""
    monkeypatch.setattr(Predicted, "__init__", timed)
    at_once(monkeypatch)


def at_once(monkeypatch) -> None:
    monkeypatch.setitem(globals(), "CONSTANTS", AT_ONCE)


def timed(
    self: Predicted,
    target: LM,
    costs: PassCosts,
    corrects: bool = False,
    constants: Constants = DEFAULTS,
) -> None:
    """As if every output were the same whatever is drafted."""
    GOOD(self, target, costs, True, constants)


def check_repeats(
    monkeypatch, lm: LM, make, sampler: str = "greedy", verify=match, **options
) -> None:
    """The same call gives the same output by the same trees, whatever the clock reads."""
    found = runs(monkeypatch, lm, make, sampler, verify, **options)
    first, trees = next(found)
    for text, shapes in found:
        assert text == first, "the text differs from run to run"
        assert shapes == trees, "the trees differ from run to run"
    assert any(len(parents) > 1 for tree in trees for parents in tree), "nothing was drafted"


def text_differs(*call) -> bool:
    """Whether one of eight clocks gives another output than the first one."""
    found = runs(*call, times=8)
    first, _ = next(found)
    return any(text != first for text, _ in found)


# Text and trees -----------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.product
@each_sampler
@each_drafter
@pytest.mark.parametrize(
    "model",
    ["qwen3-moe", *(pytest.param(m, marks=full) for m in ("llama", "gpt-oss", "gemma2-softcap"))],
)
def test_a_seed_reproduces_its_output_where_rounding_depends_on_the_tree(
    model, drafter, sampler, monkeypatch
):
    check_repeats(monkeypatch, inexact(model), DRAFTERS[drafter], sampler)


@pytest.mark.full
@each_method
def test_no_drafter_reads_a_clock(method, monkeypatch):
    """float32 too: the output is the same here, but sums may run in another order, so the trees
    must be the same.
    """
    check_repeats(
        monkeypatch,
        tiny.target("llama-torch"),
        lambda t: AdaptiveDraft(BUILD[method](t), Stated()),
        "T=1",
        times=2,
        new=40,
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "drafter",
    ["lookup", *(pytest.param(d, marks=pytest.mark.full) for d in DRAFTERS if d != "lookup")],
)
@pytest.mark.whole
def test_measured_costs_are_caught(drafter, monkeypatch):
    """The planted fault: steps are timed on every target."""
    time_everything(monkeypatch)
    with pytest.raises(AssertionError, match="differ"):
        check_repeats(monkeypatch, inexact("qwen3-moe"), DRAFTERS[drafter], "greedy", times=16)


@pytest.mark.full
def test_the_clock_changes_the_output_where_it_chooses_the_trees(monkeypatch):
    """The planted fault changes the output, not the trees alone."""
    time_everything(monkeypatch)
    assert text_differs(monkeypatch, inexact("qwen3-moe"), DRAFTERS["lookup"], "greedy")


@pytest.mark.full
@needs_native
@each_sampler
@each_drafter
def test_on_the_native_step_the_clock_may_choose(drafter, sampler, monkeypatch):
    lm = half("llama")
    at_once(monkeypatch)
    options = {"max_new_tokens": 64, "sampler": SAMPLERS[sampler], "seed": SEED}
    want = generate(lm, tiny.prompts(70), **options)
    found = list(runs(monkeypatch, lm, DRAFTERS[drafter], sampler, times=16))
    assert lm.exact and all(text == want for text, _ in found)
    assert any(shapes != found[0][1] for _, shapes in found), "the clocks chose nothing"


@pytest.mark.full
@needs_native
def test_under_reject_trees_change_the_output_of_any_model(monkeypatch):
    """It keeps draft probabilities, so not even on the native step may a clock choose."""
    lm = half("llama")
    make = lambda t: AdaptiveDraft(SelfDrafter(t, SinkWindow(2, 0.07, 16), [1] * 4), *cheap(t))  # noqa: E731
    check_repeats(monkeypatch, lm, make, "T=1", reject)
    time_everything(monkeypatch)
    assert text_differs(monkeypatch, lm, make, "T=1", reject)


# Prices -------------------------------------------------------------------------------------------


@pytest.mark.full
@needs_native
def test_what_fits_a_target():
    """Costs that were measured at load, and measurements that correct them, only where the output
    cannot depend on them; under verify=reject it can on any backend.
    """
    exact = adapted(Lookup(), tiny.target("llama"))
    other = adapted(Lookup(), tiny.target("llama-torch"))
    assert exact.prices.usual.corrects and not exact.prices.fixed.corrects
    assert exact.prices.usual is not exact.prices.fixed
    assert not other.prices.usual.corrects and other.prices.usual is other.prices.fixed
    lm = half("llama")
    drafter = adapted(SelfDrafter(lm, SinkWindow(2, 0.07, 16), [1] * 4), lm)
    drafter.prices.fixed = Stated(0.5)
    generate(lm, tiny.prompts(70), drafter, max_new_tokens=8, verify=reject)
    assert drafter.pace.table.draft[1][4] == 2.0


@needs_native
def test_under_reject_no_measured_cost_decides(monkeypatch):
    """Whatever was measured at load, the trees are the same."""
    lm = half("llama")
    found = []
    for seconds in (1e-9, 1e-3):
        costs = PassCosts(call=seconds, read=1e-12)
        monkeypatch.setattr(
            "longdraft.methods.prices.known_costs",
            lambda target, exact=True, costs=costs: costs if exact else counted(target),
        )
        drafter = Watch(adapted(SelfDrafter(lm, SinkWindow(2, 0.07, 16), [1] * 4), lm))
        options = {"max_new_tokens": 48, "sampler": SAMPLERS["T=1"], "seed": SEED, "verify": reject}
        found.append((generate(lm, tiny.prompts(70), drafter, **options), drafter.shapes))
    assert found[0] == found[1]


class Choices(AdaptiveDraft):
    """Notes the costs by which drafts are chosen when rows begin."""

    def start(self, seqs):
        super().start(seqs)
        if len(seqs.length):
            self.begun = self.pace.table.draft


def chosen(verify, serve: bool) -> list[tuple]:
    """(what was said, the first costs) where calls were measured to cost nothing, and where they
    alone do.
    """
    lm = half("llama")
    found = []
    for measured in (PassCosts(call=1e-9, read=1e-12), PassCosts(call=1e-3, read=1e-12)):
        inner = SelfDrafter(lm, SinkWindow(2, 0.07, 16), [1] * 4)
        drafter = Choices(inner, Predicted(lm, measured, corrects=True), Predicted(lm, counted(lm)))
        [prompt], options = tiny.prompts(70), {"sampler": SAMPLERS["T=1"], "verify": verify}
        if serve:
            with Session(lm, drafter, 1, 160, **options) as s:
                s.submit(prompt, 24, seed=SEED)
                said = list(finish(s, Ends()).texts.values())
        else:
            said = generate(lm, [prompt], drafter, max_new_tokens=24, seed=SEED, **options)
        found.append((said, drafter.begun))
    return found


@needs_native
@pytest.mark.parametrize("serve", [False, True], ids=["generate", "session"])
def test_under_reject_no_measured_cost_decides_at_first(serve):
    """The verifier is known before the first draft, so the first choice is made by the prices that
    it allows.
    """
    (said, first), (other, second) = chosen(reject, serve)
    assert first == second and said == other
    (said, first), (other, second) = chosen(match, serve)
    assert first != second and said == other, "measured costs are not used"


@needs_native
def test_a_verifier_that_is_learned_from_the_first_draft_is_noticed(monkeypatch):
    """The planted fault: drafters are not told."""
    monkeypatch.setattr(AdaptiveDraft, "verified_by", Drafter.verified_by)
    with pytest.raises(AssertionError):
        test_under_reject_no_measured_cost_decides_at_first(False)


def test_a_clock_that_stands_still_is_no_error(monkeypatch):
    monkeypatch.setattr("longdraft.drafters.adaptive.adaptive_draft.perf_counter", lambda: 7.0)
    lm = tiny.target("llama")
    want = plain("llama", SAMPLERS["greedy"], (70,), 64)
    drafter = adapted(build("lookup", lm, n=1, count=5), lm)
    assert (
        generate(
            lm, tiny.prompts(70), drafter, max_new_tokens=64, sampler=SAMPLERS["greedy"], seed=SEED
        )
        == want
    )
