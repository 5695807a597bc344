"""Weights begin at lines of the processor's cache, and are what they were."""

from __future__ import annotations

from itertools import pairwise

import torch
from support import tiny

from longdraft import load
from longdraft.models.alignment import align_weights, pages

LINE = 64  # bytes of a line of the processor's cache


def test_settled_weights_are_the_same_and_aligned():
    hf = tiny.stock("llama", dtype=torch.bfloat16)
    hf.lm_head.weight = hf.model.embed_tokens.weight
    before = {name: p.clone() for name, p in hf.named_parameters()}
    align_weights(hf.parameters())
    assert all(
        torch.equal(p, before[name]) and p.data_ptr() % LINE == 0
        for name, p in hf.named_parameters()
    )
    assert hf.lm_head.weight is hf.model.embed_tokens.weight
    areas = sorted(
        (p.data_ptr(), p.data_ptr() + p.numel() * p.element_size()) for p in hf.parameters()
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(areas))


def test_odd_sizes_and_none_at_all():
    align_weights(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)).parameters())
    align_weights([])
    assert len(pages(5)) == 5


def test_what_is_loaded_is_settled():
    assert all(p.data_ptr() % LINE == 0 for p in load("bundled")[0].hf.parameters())
