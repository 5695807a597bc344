"""A chain drafted in one native call is the chain that is drafted node by node; a draw is the argmax of its scores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

from longdraft import Sampler, Stats
from longdraft.backends.native.step import NativeStep
from longdraft.core.verify import match
from longdraft.drafters import GlideDrafter, SelfDrafter, SmallModelDrafter, random_glide
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.engine.generate import prefill, step
from longdraft.ops import draw, gumbel, native
from longdraft.views import Full, Guided, SinkWindow

pytestmark = pytest.mark.skipif(native.library() is None, reason="the package was built without a C++ compiler")
DRAFTERS = {
    "target": lambda t: SelfDrafter(t, Full(), [1] * 5),
    "guided": lambda t: SelfDrafter(t, Guided(0.07, 16), [1] * 5),
    "window": lambda t: SelfDrafter(t, SinkWindow(4, 0.07, 16), [1] * 5),
    "small": lambda t: SmallModelDrafter(random_lm(t, 1), Full(), [1] * 5),
    "small, one": lambda t: SmallModelDrafter(random_lm(t, 1), Full(), [1]),
    "block": lambda t: GlideDrafter(random_glide(t), [1] * 5, Guided(0.07, 16), window=16),
}


def drafts(make, target, sampler, monkeypatch, whole: bool) -> tuple[list, int]:
    """The trees of a few rounds on ragged rows, one of which ends early; how many were drafted in one call."""
    found, calls = [], []
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
            patched.setattr(Sampler, "bare", False)
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
        x.shape == y.shape and torch.equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.2])
@pytest.mark.parametrize("name", ["llama", "mistral-window"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_one_call_drafts_what_node_by_node_does(kind, name, temperature, monkeypatch):
    if kind == "block" and name == "mistral-window":
        pytest.skip("a block needs a layer that sees everything")
    target, sampler = tiny.target(name), Sampler(temperature)
    whole, calls = drafts(DRAFTERS[kind], target, sampler, monkeypatch, True)
    apart, none = drafts(DRAFTERS[kind], target, sampler, monkeypatch, False)
    assert same(whole, apart) and none == 0
    assert calls > 0 or kind == "small, one"


def test_other_noise_is_noticed(monkeypatch):
    target = tiny.target("llama")
    good, _ = drafts(DRAFTERS["target"], target, Sampler(1.0), monkeypatch, True)
    good_draws = NativeStep.draw_chain

    def other_noise(self, model, p, draws, *reach):
        return good_draws(self, model, p, replace(draws, position=draws.position + 1), *reach)

    monkeypatch.setattr(NativeStep, "draw_chain", other_noise)
    bad, _ = drafts(DRAFTERS["target"], target, Sampler(1.0), monkeypatch, True)
    assert not same(good, bad)


def test_a_sampler_that_does_more_than_warm_drafts_node_by_node(monkeypatch):
    for sampler in (
        Sampler(1.0, top_p=0.9),
        Sampler(1.0, penalty=1.2),
        Sampler(0.0, penalty=1.2),
        Sampler(1.0, top_k=5),
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
    seed, position = torch.tensor([0, -5, 1 << 40]), torch.arange(120).view(3, 40) * 7
    noise, law = gumbel(seed, position, vocab).double(), (logits.double() / temperature).log_softmax(-1)
    scores = law + noise
    found = draw(logits, temperature, seed, position)
    best = scores.max(-1).values
    assert (
        best - scores.gather(-1, found[..., None])[..., 0] <= 1e-5 * (1 + best.abs())
    ).all()  # noise came as float32
    assert (found != scores.argmax(-1)).float().mean() < 0.02
    assert (found != law.argmax(-1)).any() or temperature < 0.01


def test_greedy_draws_take_the_first_of_equals():
    logits = torch.zeros(1, 2, 50)
    logits[0, 0, [7, 9]] = 3.0
    assert draw(logits, 0.0, torch.tensor([1]), torch.tensor([[4, 5]])).tolist() == [[7, 0]]


def test_where_nothing_is_native_nodes_come_one_by_one(monkeypatch):
    target = tiny.target("llama")
    good, _ = drafts(DRAFTERS["target"], target, Sampler(1.0), monkeypatch, True)
    monkeypatch.setattr(target.backend, "chain_drafter", lambda *_: None)
    plain, calls = drafts(DRAFTERS["target"], target, Sampler(1.0), monkeypatch, True)
    assert calls == 0 and same(good, plain)
