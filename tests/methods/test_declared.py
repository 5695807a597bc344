"""Every drafter states how deep its drafts are and whether they are chains, and drafts
accordingly.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.checks import SEED
from support.listed import BUILD, each_method

from longdraft import Sampler
from longdraft.drafters.step import speculative_step
from longdraft.engine.generate import prefill
from longdraft.methods import ANY, METHODS
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM


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


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_copies_that_are_declared_are_those_that_are_made(name):
    words = (
        ["same", "int8", "int4"] if "draft_weights" in METHODS[name].options.model_fields else []
    )
    for given in ({}, *({"draft_weights": word} for word in words)):
        lm = LM(tiny.stock("llama"))
        # `fill` drafts by a copy where it has no weights
        weights = DrafterWeights(random=METHODS[name].needs != ANY)
        spec = MethodSpec(name, name, given, weights)
        stated = spec.copies(lm)
        assert not lm.copies
        spec.build(lm)
        assert set(lm.copies) == stated, given
