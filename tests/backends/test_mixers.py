"""What takes the place of attention in the native pass, of every family that has it: beside the
eager pass and beside itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny
from torch import Tensor

from longdraft.backends.native.short_convolution import GatedConvolution
from longdraft.core import Captures, CaptureSpec, KVCache, Tree
from longdraft.models.lm import LM
from longdraft.ops import native

if native.library() is None:
    pytest.skip("no build of the native kernels runs here", allow_module_level=True)

LIKE_OTHERS = ("qwen3.5", "granite-hybrid-dense")
each_model = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full) if name in LIKE_OTHERS else name
        for name in tiny.HYBRIDS
    ],
)


def model(name: str, dtype: torch.dtype = torch.float32) -> LM:
    """A model whose modules no other test has."""
    if name not in tiny.CONFIGS:
        pytest.skip("this version of Transformers lacks it")
    lm = LM(tiny.stock(name, dtype=dtype), name)
    assert lm.backend.name == "native" and lm.exact
    return lm


def tokens(count: int, rows: int = 1) -> Tensor:
    return torch.randint(3, 96, (rows, count), generator=torch.Generator().manual_seed(count))


def run(lm: LM, given: Tensor, sizes: list[int]) -> tuple[Tensor, KVCache]:
    """Logits of rows [B,N] that are committed in passes of these sizes, and the cache."""
    cache = lm.new_cache(len(given), 32)
    out = list[Tensor]()
    for part in given.split(sizes, 1):
        with cache.appending(part.shape[1]):
            out.append(lm(Tree.chain(part), cache))
    return torch.cat(out, 1), cache


def beside_the_eager_pass(lm: LM) -> tuple[Tensor, Tensor]:
    """Logits of one text, and Transformers' own."""
    given = tokens(40)
    actual = lm(Tree.chain(given), lm.new_cache(1, 64))
    nothing = Captures(CaptureSpec())
    return actual, lm.eager.forward(Tree.chain(given), lm.new_cache(1, 64), 0, None, nothing)


@torch.inference_mode()
@each_model
def test_equals_transformers(name: str) -> None:
    actual, right = beside_the_eager_pass(model(name))
    torch.testing.assert_close(actual, right, rtol=1e-3, atol=2e-3)


@torch.inference_mode()
@each_model
def test_bits_do_not_depend_on_the_passes(name: str) -> None:
    lm = model(name, torch.bfloat16)
    given = tokens(75, rows=2)
    expected, _ = run(lm, given, [1] * 75)
    for sizes in ([64, 11], [7] * 10 + [5], [50, 1, 8, 16]):
        assert torch.equal(run(lm, given, sizes)[0], expected), sizes
    assert torch.equal(run(lm, given[1:], [64, 11])[0], expected[1:])


@torch.inference_mode()
@each_model
def test_nodes_of_a_tree_are_those_of_their_paths(name: str) -> None:
    lm = model(name)
    given = tokens(20)
    more = tokens(7)
    branching = Tree.root(more[:, 0])
    for i, parent in enumerate([0, 0, 1, 1, 2, 4], 1):
        branching = branching.grow(torch.tensor([[parent]]), more[:, i : i + 1])
    _, cache = run(lm, given, [20])
    actual = lm(branching, cache)
    for node in range(7):
        path = [i for i in range(7) if branching.mask[0, node, i]]
        alone = torch.cat([given, branching.tokens[:, path]], 1)
        assert torch.equal(run(lm, alone, [1] * alone.shape[1])[0][0, -1], actual[0, node]), node


# A part of a mixer, and what is put in its place.
FORGOTTEN = {
    "the order of taps": ("lfm2", "taps", lambda mixer: mixer.taps.flip(1)),
    "a tap": ("lfm3", "taps", lambda mixer: mixer.taps[:, 1:]),
    "values beside the state": ("bamba", "skip", lambda mixer: torch.zeros_like(mixer.skip)),
    "the bias of a convolution": ("bamba", "bias", lambda mixer: None),
    "the bias of time steps": (
        "granite-hybrid",
        "step_bias",
        lambda mixer: torch.zeros_like(mixer.step_bias),
    ),
    "betas up to 2": ("olmo-hybrid", "beta_scale", lambda mixer: 1.0),
    "weights of the gated norm": ("nemotron-h", "weight", lambda mixer: mixer.weight.flip(0)),
}


@torch.inference_mode()
@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_part_that_is_forgotten_is_noticed(what: str) -> None:
    name, field, change = FORGOTTEN[what]
    lm = model(name)
    step: Any = lm.backend.step
    mixers = list(step.mixers.values())
    for mixer in mixers:
        setattr(mixer, field, change(mixer))
    actual, right = beside_the_eager_pass(lm)
    assert mixers and (actual - right).abs().max() > 1e-2


@torch.inference_mode()
def test_an_input_of_the_node_beside_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model("lfm2")
    given = tokens(12)
    expected, _ = run(lm, given, [1] * 12)
    compute = GatedConvolution.__call__
    monkeypatch.setattr(
        GatedConvolution,
        "__call__",
        lambda self, lib, scans, inputs, B, W: compute(self, lib, scans, inputs.roll(-1), B, W),
    )
    assert not torch.equal(run(lm, given, [12])[0], expected)
