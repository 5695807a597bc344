"""On a real GPU: kernels against float64, and the same text by every path. Left out where torch
sees none.
"""

from __future__ import annotations

import pytest
import torch

from longdraft.bench.shapes import random_model
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.engine import generate as engine
from longdraft.methods.self_speculative import vegas, vegas_tree
from longdraft.ops import gumbel, noise, reference, scan
from longdraft.ops.triton import self_check as trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


@pytest.fixture(scope="module")
def lm():
    return random_model("4x512", "float32", vocab=512)


@pytest.fixture(scope="module")
def prompt() -> list[list[int]]:
    return [
        torch.randint(3, 500, (n,), generator=torch.Generator().manual_seed(n)).tolist()
        for n in (1500, 700)
    ]


def test_the_trial_passes():
    trial.compare(torch.device("cuda"))
    trial.compare_scans(torch.device("cuda"))
    assert trial.kernels() is not None


@pytest.mark.parametrize("dtype, most", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("nodes", [1, 8, 69, 200])
def test_attention_is_near_float64(nodes, dtype, most):
    g = torch.Generator("cuda").manual_seed(nodes)
    q, k, v = (
        torch.randn(h, n, 128, device="cuda", generator=g).to(dtype)
        for h, n in ((32, nodes), (8, 5000), (8, 5000))
    )
    mask = torch.ones(nodes, nodes, dtype=torch.bool, device="cuda").tril()
    found = trial.kernels().attend(q, [reference.Segment(k, v, mask)], 128**-0.5).out
    wanted = reference.attend(
        q.double(), [reference.Segment(k.double(), v.double(), mask)], 128**-0.5
    ).out
    assert float((found - wanted).norm() / wanted.norm()) < most


@pytest.mark.parametrize("tokens", [1, 8, 100])
def test_scans_are_near_float64(tokens):
    """A gated delta net in the shape of Qwen3.5-27B; a chain in two launches leaves the same
    bits.
    """
    g = torch.Generator("cuda").manual_seed(tokens)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=g)

    k, q, v = (draw(tokens, heads, 128).bfloat16() for heads in (16, 16, 48))
    gate = -draw(tokens, 48).abs()
    beta = draw(tokens, 48).sigmoid().bfloat16()
    state = draw(48, 128, 128)
    terms = scan.Terms(k, v, gate, beta, q, 128**-0.5, normalized=True)
    gpu = trial.scans()
    assert gpu is not None
    order = scan.chain(tokens, k.device)
    for found, wanted in zip(
        gpu.along(terms, state, order), scan.along(terms, state, order, torch.float64), strict=True
    ):
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5
    whole = gpu.along(terms, state, order)[1][0]
    for part in (slice(tokens // 2), slice(tokens // 2, None)):
        if count := len(k[part]):
            own = scan.Terms(
                k[part], v[part], gate[part], beta[part], None, 128**-0.5, normalized=True
            )
            state = gpu.along(own, state, scan.chain(count, k.device))[1][0]
    assert torch.equal(state, whole)


def test_noise_is_that_of_a_cpu():
    seed = torch.tensor([3, 1 << 60])
    position = torch.tensor([[0, 1 << 33], [7, 8]])
    found = gumbel(seed.cuda(), position.cuda(), 5000).cpu()
    torch.testing.assert_close(found, noise.gumbel(seed, position, 5000), rtol=1e-5, atol=1e-5)


DRAFTS = {
    "chain": lambda lm: vegas(lm, gamma=3, min_budget=64),
    "tree": lambda lm: vegas_tree(lm, [2, 3, 3], min_budget=64),
}


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_draft_changes_no_token(lm, prompt, draft):
    plain = engine.generate(lm, prompt, max_new_tokens=64)
    assert engine.generate(lm, prompt, DRAFTS[draft](lm), max_new_tokens=64) == plain
    assert lm.backend.name == "cuda" and any(
        p.graph is not None for p in lm.backend.passes.values()
    )


def test_graphs_say_what_the_ordinary_path_says(lm, prompt, monkeypatch):
    by_graphs = engine.generate(lm, prompt, max_new_tokens=64)
    monkeypatch.setattr(lm, "backend", lm.eager)
    assert engine.generate(lm, prompt, max_new_tokens=64) == by_graphs
    monkeypatch.setattr(trial, "kernels", lambda: None)  # all by torch
    assert engine.generate(lm, prompt, max_new_tokens=64) == by_graphs


@torch.no_grad()
def test_replays_follow_their_inputs(lm):
    """The same shape again and again: other tokens, lengths and taps, each as by the ordinary
    path.
    """
    backend = lm.backend
    eager = lm.eager
    cache = lm.new_cache(1, 600)
    lm.prefill(list(range(3, 403)), cache)
    for i in range(6):
        cache.length.fill_(400 - 30 * i)
        tree = Tree.chain(torch.arange(5 * i + 3, 5 * i + 8, device="cuda")[None])
        both = []
        for lm.backend in (backend, eager):
            captured = Captures(CaptureSpec("ends", "weights", hidden=(2,)))
            both.append(
                (lm(tree, cache, captured=captured), captured.scores[1], captured.states[2])
            )
        lm.backend = backend
        for found, wanted in zip(*both, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
