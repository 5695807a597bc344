"""A chain drafted in one native call is the chain that is drafted node by node; a draw is the
argmax of its scores.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from transformers.generation import logits_process as lp

from longdraft import Sampler, Stats
from longdraft.backends.native.step import NativeStep
from longdraft.core.rules import Rules
from longdraft.core.verify import match
from longdraft.drafters import GlideDrafter, SelfDrafter, SmallModelDrafter, random_glide
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.engine.generate import prefill, step
from longdraft.ops import Warpers, argmax, draw, gumbel, native
from longdraft.views import Full, Guided, SinkWindow

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)
DRAFTERS = {
    "target": lambda t: SelfDrafter(t, Full(), [1] * 5),
    "guided": lambda t: SelfDrafter(t, Guided(0.07, 16), [1] * 5),
    "window": lambda t: SelfDrafter(t, SinkWindow(4, 0.07, 16), [1] * 5),
    "small": lambda t: SmallModelDrafter(random_lm(t, 1), Full(), [1] * 5),
    "small, one": lambda t: SmallModelDrafter(random_lm(t, 1), Full(), [1]),
    "block": lambda t: GlideDrafter(random_glide(t), [1] * 5, Guided(0.07, 16), window=16),
}


def drafts(make, target, sampler, monkeypatch, whole: bool) -> tuple[list, int]:
    """The trees of a few rounds on ragged rows, one of which ends early; how many were drafted in
    one call.
    """
    found = []
    calls = []
    draw_chain = NativeStep.draw_chain

    def counted(*args):
        calls.append(1)
        return draw_chain(*args)

    def spy(tree, logits, sampler, rows):
        found.append((tree.tokens.clone(), tree.depth.clone(), tree.mask.clone()))
        return match(tree, logits, sampler, rows)

    with monkeypatch.context() as patched:
        patched.setattr(NativeStep, "draw_chain", counted)
        if not whole:
            patched.setattr(Sampler, "chain", lambda *_: None)
        drafter = make(target)
        seqs = prefill(target, tiny.prompts(70, 31, 133), 24, sampler, 3, ())
        with torch.inference_mode():
            seqs.limit[1] = 5
            drafter.start(seqs)
            for _ in range(5):
                step(target, drafter, seqs, spy, Stats())
    return found, len(calls)


def same(a: list, b: list) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.equal(x, y)
        for p, q in zip(a, b, strict=True)
        for x, y in zip(p, q, strict=True)
    )


SAMPLERS = {
    "greedy": Sampler(),
    "T=1": Sampler(1.0),
    "T=0.2": Sampler(0.2),
    "top-p": Sampler(1.0, top_p=0.8),
    "all warpers": Sampler(1.3, top_k=20, top_p=0.9, min_p=0.1),
    "greedy, penalty": Sampler(penalty=2.0),
    "top-k, near penalty": Sampler(1.0, top_k=9, penalty=1.5, window=4),
    "far penalty": Sampler(1.0, penalty=1.5, window=1 << 31),
}


@pytest.mark.product
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("name", ["llama", "mistral-window"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_one_call_drafts_what_node_by_node_does(kind, name, sampler, monkeypatch):
    if kind == "block" and name == "mistral-window":
        pytest.skip("a block needs a layer that sees everything")
    target = tiny.target(name)
    whole, calls = drafts(DRAFTERS[kind], target, sampler, monkeypatch, True)
    apart, none = drafts(DRAFTERS[kind], target, sampler, monkeypatch, False)
    assert same(whole, apart) and none == 0
    assert calls > 0 or kind == "small, one"


FAULTS = {
    "the noise of the next position": lambda d: replace(d, position=d.position + 1),
    "no top-k": lambda d: replace(d, samplers=[replace(s, top_k=0) for s in d.samplers]),
    "no top-p": lambda d: replace(d, samplers=[replace(s, top_p=1.0) for s in d.samplers]),
    "no penalty": lambda d: replace(d, samplers=[replace(s, penalty=1.0) for s in d.samplers]),
    "no penalty for the last tokens": lambda d: replace(d, recent=d.recent[:, :-3]),
    "a penalty of a wider window": lambda d: replace(
        d, samplers=[replace(s, window=9) for s in d.samplers]
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.whole
def test_what_a_chain_leaves_out_is_noticed(fault, monkeypatch):
    target = tiny.target("llama")
    sampler = (
        Sampler(0.05, penalty=2.0, window=4)
        if "penal" in fault
        else Sampler(1.0, top_k=40, top_p=0.8)
    )
    good, _ = drafts(DRAFTERS["target"], target, sampler, monkeypatch, True)
    good_draws = NativeStep.draw_chain

    def other_draws(self, model, p, draws, *reach):
        return good_draws(self, model, p, FAULTS[fault](draws), *reach)

    monkeypatch.setattr(NativeStep, "draw_chain", other_draws)
    bad, _ = drafts(DRAFTERS["target"], target, sampler, monkeypatch, True)
    assert not same(good, bad)


def test_other_settings_draft_node_by_node(monkeypatch):
    for sampler in (
        Sampler(1.0, eta=0.01),
        Sampler(1.0, rules=Rules((("repetition_penalty", 1.2),))),
    ):
        assert drafts(DRAFTERS["target"], tiny.target("llama"), sampler, monkeypatch, True)[1] == 0


@pytest.mark.parametrize("temperature", [1e-3, 0.3, 1.0, 5.0, 1e4])
@pytest.mark.parametrize("vocab", [3, 16, 100, 4096])
def test_a_draw_is_the_argmax_of_its_scores(vocab, temperature):
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(3, 40, vocab, generator=generator) * 6
    logits[0, :, 1] = float("-inf")
    logits[1] *= 20
    logits[2] = torch.randn(40, 1, generator=generator)  # all alike: the noise decides
    seed = torch.tensor([0, -5, 1 << 40])
    position = torch.arange(120).view(3, 40) * 7
    noise = gumbel(seed, position, vocab).double()
    law = (logits.double() / temperature).log_softmax(-1)
    scores = law + noise
    found = draw(logits, Warpers(temperature), seed, position)
    assert found is not None
    best = scores.max(-1).values
    # noise came as float32
    assert (best - scores.gather(-1, found[..., None])[..., 0] <= 1e-5 * (1 + best.abs())).all()
    assert (found != scores.argmax(-1)).float().mean() < 0.02
    assert (found != law.argmax(-1)).any() or temperature < 0.01


def test_greedy_draws_take_the_first_of_equals():
    logits = torch.zeros(1, 2, 50)
    logits[0, 0, [7, 9]] = 3.0
    found = draw(logits, Warpers(), torch.tensor([1]), torch.tensor([[4, 5]]))
    assert found is not None and found.tolist() == [[7, 0]]


@pytest.mark.parametrize("vocab", [1, 7, 31, 32, 33, 1023, 1024, 1025, 2049, 5000])
def test_the_argmax_is_the_first_of_the_largest(vocab):
    """At every place, the ends of the kernel's blocks among them; with equals behind it."""
    places = torch.arange(vocab)[-1500:]
    scores = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) - 9
    lines = scores.repeat(len(places), 1)
    for line, place in zip(lines, places, strict=True):
        line[place :: max(1, vocab // 3)] = 5.0
    assert argmax(lines).tolist() == places.tolist()
    assert argmax(lines[:, None].to(torch.bfloat16)).tolist() == places[:, None].tolist()
    nothing = torch.full((2, vocab), float("-inf"))
    assert argmax(nothing).tolist() == [0, 0]
    nothing[1, -1] = -1e30
    assert argmax(nothing).tolist() == [0, vocab - 1]
    assert argmax(nothing[:0]).shape == (0,)


def test_no_number_is_no_largest_score():
    scores = torch.full((1, 3000), float("nan"))
    assert argmax(scores).tolist() == [0]
    scores[0, [5, 1700, 2900]] = torch.tensor([1.0, 2.0, -1.0])
    assert argmax(scores).tolist() == [1700]


def chances(warpers: Warpers, logits: torch.Tensor, draws: int = 4000) -> torch.Tensor:
    """How often each token [V] is drawn from logits [V]."""
    found = draw(
        logits.expand(1, draws, -1), warpers, torch.tensor([11]), torch.arange(draws)[None]
    )
    assert found is not None
    return found[0].bincount(minlength=len(logits)) / draws


def law(warpers: Warpers, logits: torch.Tensor) -> torch.Tensor:
    """Transformers' distribution [V]."""
    ids = torch.zeros(1, 0, dtype=torch.long)
    scores = (logits / warpers.temperature)[None]
    for use, warper in (
        (warpers.top_k, lambda: lp.TopKLogitsWarper(warpers.top_k)),
        (warpers.top_p < 1, lambda: lp.TopPLogitsWarper(warpers.top_p)),
        (warpers.min_p, lambda: lp.MinPLogitsWarper(warpers.min_p)),
    ):
        scores = warper()(ids, scores) if use else scores
    return scores[0].softmax(-1)


WARPERS = st.builds(
    Warpers,
    st.sampled_from([0.3, 0.7, 1.0, 2.5]),
    st.sampled_from([0, 0, 1, 2, 7, 50, 400]),
    st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9, 0.999]),
    st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
)


@pytest.mark.full
@given(
    WARPERS,
    st.sampled_from([5, 17, 300]),
    st.integers(0, 1 << 20),
    st.sampled_from([0.1, 3.0, 20.0]),
)
def test_the_kernel_draws_by_transformers_law(warpers, vocab, seed, spread):
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread
    logits[seed % vocab] = float("-inf")
    found = chances(warpers, logits)
    wanted = law(warpers, logits)
    assert not found[wanted < 1e-9].any()  # also what is cut off
    assert (found - wanted).abs().max() < 0.04  # 5 deviations of 4000 draws


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (Warpers(0.7), Warpers(1.0)),
        (Warpers(1.0, 8), Warpers(1.0, 9)),
        (Warpers(1.0, 0, 0.8), Warpers(1.0, 0, 0.7)),
        (Warpers(1.0, 0, 1.0, 0.1), Warpers(1.0, 0, 1.0, 0.05)),
        (Warpers(1.0, 12, 0.8), Warpers(1.0, 0, 0.8)),
    ],
    ids=str,
)
@pytest.mark.whole
def test_a_wrong_law_is_noticed(right, wrong):
    logits = torch.linspace(4, 0, 40)
    wanted = law(right, logits)

    def follows(found: torch.Tensor) -> bool:
        return not found[wanted == 0].any() and bool((found - wanted).abs().max() < 0.03)

    assert follows(chances(right, logits)) and not follows(chances(wrong, logits))


@pytest.mark.parametrize(
    "wrong",
    [Warpers(-1.0), Warpers(1.0, -1), Warpers(1.0, 0, 0.0), Warpers(1.0, 0, 1.0, 2.0)],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(RuntimeError, match="settings"):
        draw(torch.zeros(1, 1, 20), wrong, torch.tensor([1]), torch.tensor([[4]]))


def test_where_nothing_is_native_nodes_come_one_by_one(monkeypatch):
    target = tiny.target("llama")
    good, _ = drafts(DRAFTERS["target"], target, Sampler(1.0), monkeypatch, True)
    monkeypatch.setattr(target.backend, "chain_drafter", lambda *_: None)
    plain, calls = drafts(DRAFTERS["target"], target, Sampler(1.0), monkeypatch, True)
    assert calls == 0 and same(good, plain)
