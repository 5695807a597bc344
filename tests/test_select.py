"""Choosing and copying the best keys: native and torch agree, and both do what they say."""

from __future__ import annotations

import pytest
import torch

from longdraft.ops import choose, native, take
from longdraft.ops.select import lend


@pytest.fixture(params=["native", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("the package was built without a C++ compiler")


@pytest.mark.parametrize("reach", [0, 1, 8, 50])
@pytest.mark.parametrize("n", [1, 7, 40, 3000])
def test_the_best_are_chosen_in_order_of_place(way, n, reach):
    scores = torch.randn(3, n + 5, generator=torch.Generator().manual_seed(n))[:, :n]  # a slice: rows are not adjacent
    for count in {0, 1, n // 3, n}:
        picks = choose(scores, count, reach, 0.25)
        lent = lend(scores, reach, 0.25)
        assert picks.shape == (3, count) and (picks.diff() > 0).all()
        chosen = torch.zeros(3, n, dtype=torch.bool).scatter_(1, picks, True)
        if 0 < count < n:
            least = lent.masked_fill(~chosen, torch.inf).amin(1)
            assert (least >= lent.masked_fill(chosen, -torch.inf).amax(1) - 1e-5).all()


def test_a_place_lends_to_those_after_it():
    scores = torch.zeros(1, 10)
    scores[0, 2] = 4.0
    assert lend(scores, 3, 0.25)[0].tolist() == [0, 0, 4, 1, 1, 1, 0, 0, 0, 0]
    assert lend(scores, 0, 0.25) is scores


def test_of_equals_the_earlier_are_taken(way):
    assert choose(torch.tensor([[1.0, 2, 1, 1, -1, 2, 1]]), 4).tolist() == [[0, 1, 2, 5]]
    assert choose(torch.zeros(2, 600), 3).tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("apart", [False, True])
def test_rows_are_copied_from_a_slice_of_a_longer_buffer(way, dtype, apart):
    x = torch.randn(3, 500, 24).to(dtype)[:, 10:450]
    slots = torch.stack([torch.randperm(440)[:333] for _ in range(3)])
    slots = slots if apart else slots[0]
    each = slots if apart else slots.expand(3, -1)
    assert torch.equal(take(x, slots), torch.stack([x[h, each[h]] for h in range(3)]))
    assert torch.equal(take(x, slots[:1]) if apart else take(x, slots[None]), take(x, each[0]))
    assert take(x, slots[..., :0]).shape == (3, 0, 24)
