"""A seed gives the same output in every run on one machine: where draft shapes can change it, no clock chooses them.

The clocks here are random: they stand still, jump, and never run the same twice.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, SEED, plain
from support.listed import BUILD, FROM_TEXT, each_method, full, tried
from test_adaptive import Prophet

from longdraft import AdaptiveDraft, build, generate, match, reject
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.sequences import Sequences
from longdraft.core.tree import UNBOUNDED, Tree
from longdraft.drafters import Auto, Drafter, Lookup, SelfDrafter
from longdraft.drafters.adaptive.cost_model import CostModel
from longdraft.drafters.adaptive.pace import Pace
from longdraft.drafters.adaptive.step_costs import LEVEL, NODE, SCORES, Counted, Measured, costs_for
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import bytes_read, keys_read, weights_of
from longdraft.ops import native
from longdraft.views import Full, SinkWindow

SMALL = {"gamma": 4, "min_budget": 16}
DRAFTERS = {
    "vegas": lambda t: AdaptiveDraft(build("vegas", t, **SMALL)),
    "lookup": lambda t: AdaptiveDraft(build("lookup", t, n=1, count=5)),
    "suffix": lambda t: AdaptiveDraft(build("suffix", t, nodes=8)),
    "auto": lambda t: Auto([tried(AdaptiveDraft(build("vegas", t, **SMALL))), Lookup(1, 5)], 6),
}
each_sampler = pytest.mark.parametrize("sampler", ["T=1", pytest.param("greedy", marks=pytest.mark.full)])
each_drafter = pytest.mark.parametrize("drafter", DRAFTERS)
needs_native = pytest.mark.skipif(native.library() is None, reason="the native kernels are not built")


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
        self.inner, self.has_draft_probs, self.shapes = inner, inner.has_draft_probs, []

    def captures(self):
        return self.inner.captures()

    def start(self, seqs):
        self.inner.start(seqs)

    def grow(self, tree, seqs, limits):
        return self.inner.grow(tree, seqs, limits)

    def update(self, seqs, tree, verdict, captured):
        self.shapes.append(tree.parent.tolist())
        self.inner.update(seqs, tree, verdict, captured)


def set_clocks(monkeypatch, seed: int) -> None:
    """Every clock that longdraft reads."""
    draw, now = random.Random(seed), [0.0]

    def clock() -> float:
        now[0] += draw.choice([0.0, 10 ** draw.uniform(-6, 3)])
        return now[0]

    for name, module in list(sys.modules.items()):
        if name.startswith("longdraft") and hasattr(module, "perf_counter"):
            monkeypatch.setattr(module, "perf_counter", clock)


def runs(monkeypatch, lm: LM, make, sampler: str, verify=match, times: int = 3, new: int = 64) -> Iterator[tuple]:
    """(output, shapes of trees) of the same call, each time with another clock."""
    for seed in range(times):
        set_clocks(monkeypatch, seed)
        drafter = Watch(make(lm))
        options = {"max_new_tokens": new, "sampler": SAMPLERS[sampler], "seed": SEED, "verify": verify}
        yield generate(lm, tiny.prompts(70), drafter, **options), drafter.shapes


def check_repeats(monkeypatch, lm: LM, make, sampler: str = "greedy", verify=match, **options) -> None:
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


# Text and trees ------------------------------------------------------------------------------------------------------


@each_sampler
@each_drafter
@pytest.mark.parametrize(
    "model", ["qwen3-moe", *(pytest.param(m, marks=full) for m in ("llama", "gpt-oss", "gemma2-softcap"))]
)
def test_a_seed_reproduces_its_output_where_rounding_depends_on_the_tree(model, drafter, sampler, monkeypatch):
    check_repeats(monkeypatch, inexact(model), DRAFTERS[drafter], sampler)


@each_method
def test_no_drafter_reads_a_clock(method, monkeypatch):
    """float32 too: the output is the same here, but sums may run in another order, so the trees must be the same."""
    check_repeats(
        monkeypatch, tiny.target("llama-torch"), lambda t: AdaptiveDraft(BUILD[method](t)), "T=1", times=2, new=40
    )


@pytest.mark.parametrize(
    "drafter", ["lookup", *(pytest.param(d, marks=pytest.mark.full) for d in DRAFTERS if d != "lookup")]
)
def test_measured_costs_are_caught(drafter, monkeypatch):
    """The planted fault: seconds are measured on every target."""
    monkeypatch.setattr("longdraft.drafters.adaptive.adaptive_draft.costs_for", lambda target, tree: Measured())
    with pytest.raises(AssertionError, match="differ"):
        check_repeats(monkeypatch, inexact("qwen3-moe"), DRAFTERS[drafter], "greedy", times=16)


def test_the_clock_changes_the_output_where_it_chooses_the_trees(monkeypatch):
    """The planted fault changes the output, not the trees alone."""
    monkeypatch.setattr("longdraft.drafters.adaptive.adaptive_draft.costs_for", lambda target, tree: Measured())
    assert text_differs(monkeypatch, inexact("qwen3-moe"), DRAFTERS["vegas"], "greedy")


@needs_native
@each_sampler
@each_drafter
def test_on_the_native_step_the_clock_may_choose(drafter, sampler, monkeypatch):
    lm = half("llama")
    options = {"max_new_tokens": 64, "sampler": SAMPLERS[sampler], "seed": SEED}
    want = generate(lm, tiny.prompts(70), **options)
    found = list(runs(monkeypatch, lm, DRAFTERS[drafter], sampler, times=16))
    assert lm.exact and all(text == want for text, _ in found)
    assert any(shapes != found[0][1] for _, shapes in found), "the clocks chose nothing"


@needs_native
def test_under_reject_trees_change_the_output_of_any_model(monkeypatch):
    """It keeps draft probabilities, so not even on the native step may a clock choose."""
    lm = half("llama")
    make = lambda t: AdaptiveDraft(SelfDrafter(t, SinkWindow(2, 0.07, 16), [1] * 4))  # noqa: E731
    check_repeats(monkeypatch, lm, make, "T=1", reject)
    monkeypatch.setattr("longdraft.drafters.adaptive.adaptive_draft.costs_for", lambda target, tree: Measured())
    assert text_differs(monkeypatch, lm, make, "T=1", reject)


def test_a_clock_that_stands_still_is_no_error():
    lm, want = tiny.target("llama"), plain("llama", SAMPLERS["greedy"], (70,), 64)
    adaptive = AdaptiveDraft(build("lookup", lm, n=1, count=5), Measured(lambda: 7.0))
    assert generate(lm, tiny.prompts(70), adaptive, max_new_tokens=64, sampler=SAMPLERS["greedy"], seed=SEED) == want


# The fixed costs -----------------------------------------------------------------------------------------------------


@needs_native
def test_what_fits_a_target():
    root = Tree.root(torch.tensor([5]))
    exact, other = tiny.target("llama"), tiny.target("llama-torch")
    assert exact.exact and isinstance(costs_for(exact, root), Measured)
    assert isinstance(costs_for(exact, root.with_draft_probs(0, torch.zeros(1, 1, 96))), Counted)
    assert not other.exact and isinstance(costs_for(other, root), Counted)


def prefilled(lm: LM, *lengths: int) -> Sequences:
    cache = lm.new_cache(len(lengths), 64)
    prompts = tiny.prompts(*lengths)
    with torch.inference_mode():
        for b, prompt in enumerate(prompts):
            lm.prefill(prompt[:-1], cache.row(b))
    return Sequences.of(prompts, 8, cache, SAMPLERS["greedy"])


def cost(lm: LM, seqs: Sequences, nodes: int, inner: Drafter | None = None, **captured) -> float:
    tree = Tree.chain(torch.ones(len(seqs.length), nodes, dtype=torch.long))
    return Counted(lm).end(inner or Drafter(), seqs, tree, nodes - 1, Captures(CaptureSpec(**captured)))


def test_a_step_costs_what_it_reads():
    lm = tiny.target("llama-torch")
    seqs = prefilled(lm, 41, 31)
    assert cost(lm, seqs, 1) == 1.0
    assert cost(lm, seqs, 5) == pytest.approx(1 + 4 * 2 * NODE["cpu"])
    assert cost(lm, seqs, 1, rows="mean") == 1 + SCORES
    full = cost(lm, seqs, 4, SelfDrafter(lm, Full(), [1] * 3)) - cost(lm, seqs, 4)
    assert full == pytest.approx(3 * (1 + LEVEL))  # it reads what a plain step reads
    few = cost(lm, seqs, 4, SelfDrafter(lm, SinkWindow(2, 0.0, 10), [1] * 3)) - cost(lm, seqs, 4)
    slot = 3 * 2 * (2 * 16) * 4  # layers, keys and values, heads x width, bytes
    share = (lm.nbytes() + slot * 20) / (lm.nbytes() + slot * 70)
    assert few == pytest.approx(3 * (share + LEVEL))


def test_more_nodes_read_more_experts():
    lm = tiny.target("qwen3-moe")
    w, experts = weights_of(lm), 3 * 4 * (64 * 64 + 64 * 32) * 4
    assert w.experts == experts and w.shared + w.experts == lm.nbytes()
    assert w.read(1) == w.shared + experts / 2 and w.read(2) == w.shared + experts * 3 / 4  # two of four each
    assert cost(lm, prefilled(lm, 40), 8) > 1.2 + 7 * NODE["cpu"]


def test_a_window_is_read_whatever_the_view():
    lm = tiny.target("qwen3-mixed")
    seqs, slot = prefilled(lm, 41), 2 * (2 * 16) * 4
    assert keys_read(lm, seqs.cache) == slot * (24 + 40 + 24)
    assert keys_read(lm, seqs.cache, lambda lengths: [10]) == slot * (24 + 10 + 24)


@each_method
def test_every_drafter_reports_what_it_reads(method, monkeypatch):
    """One that did not would be taken for free and never turned off."""
    lm, seen = tiny.target("llama-torch"), []

    class Spy(Counted):
        def end(self, inner, seqs, tree, depth, captured):
            if depth:
                seen.append(inner.reads(seqs, depth) / bytes_read(lm, seqs.cache) / depth)
            return super().end(inner, seqs, tree, depth, captured)

    monkeypatch.setattr(Pace, "shape", lambda self, captured: (3, UNBOUNDED))
    drafter = BUILD[method](lm)
    adaptive = AdaptiveDraft(drafter.drafters[0].inner if isinstance(drafter, Auto) else drafter, Spy(lm))
    generate(lm, tiny.prompts(70, 31), adaptive, max_new_tokens=24, sampler=SAMPLERS["T=1"], seed=SEED)
    assert seen and all(x == 0 for x in seen) if method in FROM_TEXT else all(0 < x < 3 for x in seen), seen


class Priced(Prophet):
    """Each drafted token reads `share` times what a plain step reads."""

    def __init__(self, lm: LM, rows, gamma: int, good, share: float):
        super().__init__(rows, gamma, good)
        self.lm, self.share = lm, share

    def reads(self, seqs, depth):
        return depth * self.share * bytes_read(self.lm, seqs.cache)


def depths(good, share: float, new: int = 400) -> Priced:
    """The drafter after a run: good(n) tokens of the n-th draft are right; each costs `share` plain steps and LEVEL."""
    lm, options = tiny.target("llama-loops"), {"max_new_tokens": new, "sampler": SAMPLERS["T=1"], "seed": SEED}
    rows = plain("llama-loops", SAMPLERS["T=1"], (70,), new)
    inner = Priced(lm, rows, 7, good, share)
    assert generate(lm, tiny.prompts(70), AdaptiveDraft(inner, Counted(lm)), **options) == rows
    return inner


def test_good_drafts_go_to_the_full_depth_by_counts():
    assert depths(lambda n: 7, share=0.1).depths[-22:-2] == [7] * 20


def test_the_depth_follows_what_a_draft_costs_and_brings_by_counts():
    assert max(depths(lambda n: 3, share=0.2).depths[-50:]) <= 4
    cheap, dear = (depths(lambda n: 7 if n % 2 else 1, share).depths[-50:] for share in (0.0, 0.4))
    assert sum(cheap) > sum(dear)


def test_drafting_is_turned_off_and_on_again_by_counts():
    inner = depths(lambda n: 0, share=1.0)
    assert len(inner.depths) < 10 and inner.captured < 20
    inner = depths(lambda n: 0 if n < 3 else 7, share=0.1)
    assert inner.depths[-3] == 7


def test_auto_keeps_the_best_by_counts():
    lm, options = tiny.target("llama-loops"), {"max_new_tokens": 400, "sampler": SAMPLERS["T=1"], "seed": SEED}
    rows = plain("llama-loops", SAMPLERS["T=1"], (70,), 400)
    parts = [Priced(lm, rows, 7, lambda n, good=good: good, 0.1) for good in (1, 7, 2)]
    drafter = Auto([AdaptiveDraft(part, Counted(lm)) for part in parts], rounds=12)
    assert generate(lm, tiny.prompts(70), drafter, **options) == rows
    assert drafter.now.inner is parts[1] and not drafter.trying and parts[1].depths[-3] == 7


def test_a_drafter_that_is_kept_is_judged_by_its_own_steps_alone(monkeypatch):
    """The step between two trials drafts nothing: it is no refused draft of the next drafter."""
    noted, add = [], CostModel.add

    def spy(self, depth, *rest):
        noted.append(depth)
        add(self, depth, *rest)

    monkeypatch.setattr(CostModel, "add", spy)
    lm, rows = tiny.target("llama-loops"), plain("llama-loops", SAMPLERS["T=1"], (70,), 400)
    parts = [Priced(lm, rows, 7, lambda n, good=good: good, 0.1) for good in (1, 7, 2)]
    drafter = Auto([AdaptiveDraft(part, Counted(lm)) for part in parts], rounds=12)
    generate(lm, tiny.prompts(70), drafter, max_new_tokens=400, sampler=SAMPLERS["T=1"], seed=SEED)
    assert sum(depth > 0 for depth in noted) == sum(depth > 0 for part in parts for depth in part.depths)
