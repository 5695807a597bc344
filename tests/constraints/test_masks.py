"""Masks are applied to logits of any size and type: what they exclude is -inf, the rest is what it
was.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longdraft.constraints import masks
from longdraft.constraints.masks import excluded


def check(vocab: int, size: int = 96, dtype: torch.dtype = torch.float32) -> None:
    """Logits of `vocab` tokens under masks of `size` bits, beside torch's masked_fill."""
    r = np.random.default_rng(vocab)
    bits = r.integers(0, 2, (2, 3, size)).astype(bool)
    packed = [[np.packbits(node, bitorder="little").tobytes() for node in row] for row in bits]
    allowed = torch.zeros(2, 3, max(vocab, size), dtype=torch.bool)
    allowed[..., :size] = torch.from_numpy(bits)
    logits = torch.randn(2, 3, vocab).to(dtype)
    found = excluded(logits, packed)
    assert found.is_contiguous() and found.dtype == torch.float32
    assert torch.equal(found, logits.float().masked_fill(~allowed[..., :vocab], float("-inf")))


@pytest.mark.parametrize("vocab", [1, 8, 90, 95, 96, 97, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_excluded_is_masked_fill(vocab, dtype):
    check(vocab, dtype=dtype)


@pytest.mark.parametrize("wrong", ["order", "sign"])
def test_another_table_is_noticed(wrong, monkeypatch):
    monkeypatch.setattr(
        masks, "ADDED", masks.ADDED[:, ::-1] if wrong == "order" else masks.ADDED[::-1]
    )
    with pytest.raises(AssertionError):
        check(96)


def test_other_logits_are_left_as_they_were():
    logits = torch.randn(1, 1, 16)
    before = logits.clone()
    excluded(logits, [[b"\x00\x01"]])
    assert torch.equal(logits, before)
