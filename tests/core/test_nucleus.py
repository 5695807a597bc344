"""Top-p keeps what Transformers keeps, row by row."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import TopPLogitsWarper

from longdraft.core.nucleus import nucleus


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_nucleus_keeps_what_transformers_keeps(top_p, scale):
    """In float64, so that neither sum is rounded to the other side of top_p."""
    logits = (
        torch.randn(5, 3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        * scale
    )
    assert torch.equal(nucleus(logits, top_p), TopPLogitsWarper(top_p)(None, logits))


def test_a_row_does_not_depend_on_its_neighbors():
    # with ties
    rows = torch.cat([torch.randn(3, 2000) * s for s in (0.01, 1.0, 9.0)]).bfloat16().float()
    rows[2, 5:] = float("-inf")  # of a filter before
    together = nucleus(rows, 0.9)
    assert all(
        torch.equal(nucleus(row[None], 0.9)[0], found)
        for row, found in zip(rows, together, strict=True)
    )
    assert (together[2] > float("-inf")).sum() <= 5


def test_the_likeliest_token_is_always_kept():
    logits = torch.tensor([[0.0, 50.0, 1.0]])
    assert nucleus(logits, 1e-9).isinf().tolist() == [[True, False, True]]
