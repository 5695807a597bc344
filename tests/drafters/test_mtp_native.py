"""MTP layers that native kernels compute draft what torch's modules draft, node by node or a chain
in one call.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, check_lossless
from support.structure import close

from longdraft import Sampler, Stats
from longdraft.backends.native.step import NativeStep
from longdraft.core.tree import Tree
from longdraft.core.verify import match, reject
from longdraft.drafters import Mtp
from longdraft.drafters.mtp.block import MtpLayers, placed, random_mtp
from longdraft.drafters.mtp.compiled import compiled
from longdraft.drafters.mtp.ring import MtpRing
from longdraft.engine.generate import prefill, step
from longdraft.models.lm import LM
from longdraft.ops import native

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)
# qwen2: biases; qwen3: norms of q and k; the last: a window
NATIVE = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral-window",
)
TORCH = (
    "llama-torch",
    "gpt-oss",
    "qwen3-moe",
    "gemma2-softcap",
    "gemma3",
    "phi3",
    "olmo3",
    "deepseek",
    "qwen3.5",
)
CHAIN = [1] * 4
TREE = [24, 4, 4]
Fault = Callable[[pytest.MonkeyPatch], None]


@torch.inference_mode(False)
def layers(target: LM, count: int = 1, **options: bool) -> MtpLayers:
    """Random ones, whose norms and biases matter."""
    module = MtpLayers(target, count, sliding=bool(target.windows), **options)
    generator = torch.Generator().manual_seed(7)
    for name, p in module.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(p, 0.5, 1.5, generator=generator)
        else:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5, generator=generator)
    return placed(module)


class Kept(Mtp):
    """Keeps its trees."""

    trees: list[Tree]

    def grow(self, tree, seqs, limits):
        self.trees.append(super().grow(tree, seqs, limits))
        return self.trees[-1]


@torch.inference_mode()
def run(module: MtpLayers, widths: list[int], sampler: Sampler, verify, whole: bool) -> Kept:
    """A few steps of rows of unequal lengths, of which one ends early; all rings of long rows wrap
    around.
    """
    target = module.target
    drafter = Kept(module, widths, 3, 10)
    drafter.compiled = drafter.compiled if whole else []
    drafter.trees = []
    seqs = prefill(target, tiny.prompts(70, 1, 12), 40, sampler, 3, ())
    seqs.limit[1] = 5
    drafter.start(seqs)
    for _ in range(12):
        step(target, drafter, seqs, verify, Stats())
    return drafter


def check_native_drafts(
    model: str = "llama",
    count: int = 1,
    widths: list[int] = TREE,
    sampler: Sampler = SAMPLERS["T=1"],
    verify=match,
    options: dict[str, bool] | None = None,
) -> None:
    """The same trees, outputs and contents of the rings as those of torch."""
    module = layers(tiny.target(model), count, **options or {})
    mine, theirs = (run(module, widths, sampler, verify, whole) for whole in (True, False))
    assert len(mine.compiled) == count and len(mine.trees) == len(theirs.trees) == 12
    for a, b in zip(mine.trees, theirs.trees, strict=True):
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.parent, b.parent)
        if b.draft_probs is not None:
            close(a.draft_probs, b.draft_probs, 1e-4)
    for output, other in zip(mine.outputs, theirs.outputs, strict=True):
        close(output, other, 1e-4)
    for ring, other in zip(mine.rings, theirs.rings, strict=True):
        assert torch.equal(ring.held, other.held) and int(ring.held.max()) > 2 * ring.slots
        for b, held in enumerate(ring.held >= 0):
            for x, y in zip(ring.cache.read(0, b), other.cache.read(0, b), strict=True):
                close(x[:, : ring.slots][:, held], y[:, : ring.slots][:, held], 1e-4)


@pytest.mark.each_value
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("widths", [CHAIN, [1], TREE], ids=["chain", "one", "tree"])
@pytest.mark.parametrize("count", [1, 2])
def test_drafts_are_those_of_torch(count, widths, sampler):
    check_native_drafts(count=count, widths=widths, sampler=sampler)


@pytest.mark.each_value
@pytest.mark.parametrize("widths", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("model", NATIVE[1:])
def test_other_classes_of_layers(model, widths):
    check_native_drafts(model, widths=widths)


@pytest.mark.full
@pytest.mark.parametrize("option", ["hidden_first", "raw"])
def test_other_layouts(option):
    check_native_drafts(options={option: True})


@pytest.mark.full
@pytest.mark.parametrize("widths", [CHAIN, TREE], ids=["chain", "tree"])
def test_draft_probabilities(widths):
    """verify="reject" needs each node's distribution, so a chain is drafted node by node."""
    check_native_drafts(widths=widths, verify=reject)


@pytest.mark.full
def test_a_chain_of_one_layer_is_one_call(monkeypatch):
    calls = []
    drawn = NativeStep.draw_chain
    monkeypatch.setattr(NativeStep, "draw_chain", lambda *args: calls.append(1) or drawn(*args))
    module = layers(tiny.target("llama"))
    for verify, widths, count in ((match, CHAIN, 12), (reject, CHAIN, 0), (match, TREE, 0)):
        calls.clear()
        run(module, widths, SAMPLERS["T=1"], verify, True)
        assert len(calls) == count
    run(layers(tiny.target("llama"), 2), CHAIN, SAMPLERS["T=1"], match, True)
    assert not calls


@pytest.mark.full
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("model", ["llama", "llama-bf16", "mistral-window"])
@pytest.mark.parametrize("widths", [CHAIN, TREE], ids=["chain", "tree"])
def test_native_drafts_are_lossless(widths, model, sampler):
    """Also beside a target in bfloat16, where the layers' weights have 8 bits."""
    drafter = Mtp(random_mtp(tiny.target(model), 0), widths, 3, 12)
    assert drafter.compiled
    stats = check_lossless(lambda t: drafter, model, sampler, (70, 31, 90), 24)
    assert widths is CHAIN or sum(stats.accepted) > 3


@pytest.mark.parametrize("model", TORCH)
def test_torch_runs_what_the_kernels_do_not_compute(model):
    assert not compiled(random_mtp(tiny.target(model), 0))


def test_a_changed_layer_is_left_to_torch():
    """Hooks, other activations and other epsilons are not lost."""
    target = tiny.target("llama")
    modules = [random_mtp(target, 0, 2) for _ in range(4)]
    assert len(compiled(modules[0])) == 2
    modules[0].layers[1].fuse.register_forward_hook(lambda *_: None)
    modules[1].layers[0].layer.mlp.act_fn = torch.nn.GELU()
    modules[2].layers[0].norm_out.variance_epsilon = 0.1
    modules[3].layers[0].layer.self_attn.scaling = 1.0
    assert not any(map(compiled, modules))


# Faults -------------------------------------------------------------------------------------------


def shifted(mp: pytest.MonkeyPatch) -> None:
    """The slots that a node sees are shifted by one."""
    good = MtpRing.seen

    def seen(self, rows, pair, mask):
        both = good(self, rows, pair, mask)
        return torch.cat([both[..., : self.slots].roll(1, -1), both[..., self.slots :]], -1)

    mp.setattr(MtpRing, "seen", seen)


def other_rows(mp: pytest.MonkeyPatch) -> None:
    """The keys of a part of the rows are written over those of the first ones."""
    good = MtpRing.keys
    mp.setattr(MtpRing, "keys", lambda self, rows, *args: good(self, slice(0, rows.stop), *args))


@pytest.mark.full
@pytest.mark.parametrize("widths", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("fault", [shifted, other_rows])
@pytest.mark.whole
def test_broken_versions_are_caught(fault: Fault, widths, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_native_drafts(widths=widths)
