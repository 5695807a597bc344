"""Every drafter states how deep its drafts are and whether they are chains, and drafts accordingly."""

from __future__ import annotations

import pytest
import tiny
import torch
from checks import SEED
from listed import BUILD, each_method

from longdraft import Sampler
from longdraft.drafters.step import speculative_step
from longdraft.engine.generate import prefill


@each_method
@torch.inference_mode()
def test_drafts_are_as_declared(method):
    target = tiny.target("llama-loops")
    drafter = BUILD[method](target)
    seqs = prefill(target, tiny.prompts(70), 64, Sampler(), SEED)
    drafter.start(seqs)
    speculative_step(target, drafter, seqs, draft=False)
    for _ in range(4):
        tree = speculative_step(target, drafter, seqs).tree
        deepest = int(tree.depth.max())
        assert deepest <= drafter.max_depth <= 64
        if drafter.is_chain:
            assert deepest == drafter.max_depth == tree.size - 1


@pytest.mark.parametrize(
    ("method", "depth", "chain"),
    [
        ("vegas", 4, True),
        ("triforce", 5, True),
        ("sd", 4, True),
        ("longspec", 3, False),
        ("longspec-chain", 4, True),
        ("vegas-reuse", 4, False),
        ("lookup", 5, False),
        ("medusa", 2, False),
        ("eagle3", 3, False),
        ("dflash", 7, False),
    ],
)
def test_what_is_declared(method, depth, chain):
    drafter = BUILD[method](tiny.target("llama"))
    assert (drafter.max_depth, drafter.is_chain) == (depth, chain)
