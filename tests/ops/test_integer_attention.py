"""Attention over keys and values of 8 bits, in integers: as a plain computation says, in every
build; and what that would not forgive.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.integer_attention import Reference, in_blocks, rounded_weights
from torch import Tensor

from longdraft import ops
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.models.lm import LM

NEAR = 2e-5  # float sums have another order
HEADS = [16, 32, 64, 96, 128]
LENGTHS = (1, 31, 64, 300, 1300)


def model(head_dim: int, key_heads: int = 2) -> LM:
    """Of one layer, so that the nodes do not depend on each other's rounding."""
    one = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    hf = tiny.stock("wide", head_dim=head_dim, num_key_value_heads=key_heads, **one)
    return LM(hf, "wide", kv="int8")


def bushy(tokens: Tensor) -> Tree:
    """Two branches of four nodes each, whose nodes lie in turn."""
    tree = Tree.root(tokens)
    for parent in (0, 0, 1, 2, 3, 4, 5, 6):
        tree = tree.grow(torch.full((len(tokens), 1), parent), tokens[:, None] + parent + 1)
    return tree


def distance(lm: LM, reference: Reference, monkeypatch, lengths=LENGTHS) -> float:
    """Between the kernels' logits and the reference's, relative to their mean size.

    The median of all nodes: a query that lies between two codes is rounded by its last bits.
    """
    cache = lm.new_cache(len(lengths), max(lengths) + 64)
    for b, p in enumerate(tiny.prompts(*(n + 1 for n in lengths))):
        lm.prefill(p[:-1], cache.row(b))
    tokens = torch.arange(5, 5 + len(lengths))
    trees = Tree.root(tokens), Tree.chain(tokens[:, None] + torch.arange(9)), bushy(tokens)
    distances = list[Tensor]()
    for tree in trees:
        found = lm(tree, cache)
        with monkeypatch.context() as patch:
            patch.setattr(ops, "attend", reference)
            want = lm.eager.forward(tree, cache, 0, None, Captures(CaptureSpec()))
        distances.append(((found - want).abs().mean(-1) / want.abs().mean()).flatten())
    return float(torch.cat(distances).median())


@pytest.mark.product
@pytest.mark.parametrize("head_dim", HEADS)
@pytest.mark.parametrize("key_heads", [1, 2, 4])  # of 4 heads
@pytest.mark.usefixtures("build")
@torch.inference_mode()
def test_integers_are_what_the_reference_says(head_dim, key_heads, monkeypatch):
    assert distance(model(head_dim, key_heads), Reference(), monkeypatch) < NEAR


def unrounded(x: Tensor) -> Tensor:
    return x


def queries_by_one_scale(q: Tensor) -> Tensor:
    scale = q.abs().amax(-1, keepdim=True) / 127
    return (q / scale).round() * scale


def queries_by_the_next_blocks_scale(q: Tensor) -> Tensor:
    blocks = in_blocks(q, 32)
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).roll(1, -2)
    return ((blocks / scale).round().clamp(-127, 127) * scale).flatten(-2)


def weights_that_begin_one_slot_later(weights: Tensor) -> Tensor:
    shifted = torch.nn.functional.pad(weights, (1, 0))
    return rounded_weights(shifted)[..., 1:]


def weights_of_seven_bits(weights: Tensor) -> Tensor:
    groups = in_blocks(weights, 32)
    step = groups.amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((groups / step).round() * step).flatten(-2)[..., : weights.shape[-1]]


FAULTS = {
    "queries": [unrounded, queries_by_one_scale, queries_by_the_next_blocks_scale],
    "weights": [unrounded, weights_that_begin_one_slot_later, weights_of_seven_bits],
}


@pytest.mark.parametrize(
    "part,fault", [(part, fault) for part, faults in FAULTS.items() for fault in faults]
)
@torch.inference_mode()
def test_another_computation_is_noticed(part, fault, monkeypatch):
    lm = model(64)
    if lm.backend.name != "native":
        pytest.skip("no kernels here")
    reference = Reference()
    setattr(reference, part, fault)
    assert distance(lm, reference, monkeypatch) > 3 * NEAR


@pytest.mark.usefixtures("build")
@torch.inference_mode()
def test_sums_of_integers_do_not_saturate(monkeypatch):
    """Keys and values whose codes are all 127 or all -127, with equal weights: no sum of a group of
    values is larger.
    """
    lm = model(128)
    cache = lm.new_cache(1, 700)
    [prompt] = tiny.prompts(640)
    lm.prefill(prompt, cache)
    tree = Tree.root(torch.tensor([5]))
    for sign in (1.0, -1.0):
        for layer in cache.layers:
            k, v = cache.stored(layer, 0)
            codes = ops.coded.encode(torch.full((len(k), 640, 128), 3.0 * sign), 8)
            k[:, :640] = codes  # of transformed keys
            v[:, :640] = codes
        found = lm(tree, cache)
        with monkeypatch.context() as patch:
            patch.setattr(ops, "attend", Reference())
            want = lm.eager.forward(tree, cache, 0, None, Captures(CaptureSpec()))
        assert float((found - want).abs().max() / want.abs().max()) < NEAR
