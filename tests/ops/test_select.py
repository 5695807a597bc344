"""Choosing and copying the best keys: native and torch agree, and both do what they say."""

from __future__ import annotations

import pytest
import torch
from support import tiny

from longdraft.core.capture import Captures
from longdraft.core.tree import Tree
from longdraft.ops import Compact, StoredRow, choose, native, refill, take
from longdraft.ops.select import spread
from longdraft.views import Guided


@pytest.fixture(params=["native", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("the package was built without a C++ compiler")


@pytest.mark.parametrize("reach", [0, 1, 8, 50])
@pytest.mark.parametrize("n", [1, 7, 40, 3000])
def test_the_best_are_chosen_in_order_of_place(way, n, reach):
    # a slice: rows are not adjacent
    scores = torch.randn(3, n + 5, generator=torch.Generator().manual_seed(n))[:, :n]
    for count in {0, 1, n // 3, n}:
        indices = choose(scores.unbind(), count, reach, 0.25)
        after = spread(scores, reach, 0.25)
        assert indices.shape == (3, count) and (indices.diff() > 0).all()
        chosen = torch.zeros(3, n, dtype=torch.bool).scatter_(1, indices, True)
        if 0 < count < n:
            least = after.masked_fill(~chosen, torch.inf).amin(1)
            assert (least >= after.masked_fill(chosen, -torch.inf).amax(1) - 1e-5).all()


def test_a_position_passes_a_share_on():
    scores = torch.zeros(1, 10)
    scores[0, 2] = 4.0
    assert spread(scores, 3, 0.25)[0].tolist() == [0, 0, 4, 1, 1, 1, 0, 0, 0, 0]
    assert spread(scores, 0, 0.25) is scores


def test_of_equals_the_earlier_are_taken(way):
    assert choose([torch.tensor([1.0, 2, 1, 1, -1, 2, 1])], 4).tolist() == [[0, 1, 2, 5]]
    assert choose([torch.zeros(600)] * 2, 3).tolist() == [[0, 1, 2]] * 2


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


def coded(slots: int, heads: int = 3, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys that say which head and slot they are of, and values that say it otherwise."""
    k = (
        torch.arange(heads * slots, dtype=torch.float32)
        .view(heads, slots, 1)
        .expand(-1, -1, width)
        .contiguous()
    )
    return k, -k


def held(copy: tuple[torch.Tensor, torch.Tensor], k: torch.Tensor) -> list[int]:
    """The slots of a compact copy, in order; every head has them at the same places, and each value
    its key.
    """
    mine, values = copy
    assert torch.equal(values, -mine) and bool((mine == mine[..., :1]).all())
    slots = mine[..., 0] - torch.arange(len(k))[:, None] * k.shape[1]
    assert bool((slots == slots[0]).all())
    return sorted(slots[0].long().tolist())


def test_a_copy_follows_its_choices():
    """Growing, shrinking, moving by a little and altogether, past its room; what stays is not
    copied again.
    """
    k, v = coded(900)
    generator = torch.Generator().manual_seed(0)
    copy = Compact()
    before = None
    for size in (40, 40, 57, 30, 110, 110, 1, 300, 299, 300):
        slots = torch.randperm(900, generator=generator)[:size].sort().values
        if before is not None and size > 50:
            slots = torch.cat([before[: size // 2], slots]).unique()[:size]
        found = refill([(copy, StoredRow(k, v), slots)])[0]
        assert held(found, k) == slots.tolist() and found[0].shape == (3, len(slots), 16)
        before = slots
    if native.library() is not None:
        # had anything been copied again, it would be this
        k[:] = 7.0
        v[:] = -7.0
        assert held(refill([(copy, StoredRow(k, v), before)])[0], coded(900)[0]) == before.tolist()


def test_choices_of_each_head_are_copied_as_they_are():
    k, v = coded(50)
    slots = torch.tensor([[1, 5], [2, 3], [40, 49]])
    mine, values = refill([(Compact(), StoredRow(k, v), slots)])[0]
    assert torch.equal(mine, k.gather(1, slots[..., None].expand(-1, -1, 16))) and torch.equal(
        values, -mine
    )


def test_a_guided_view_forgets_the_text_before():
    policy = Guided(0.07, 16)
    target = tiny.target("llama")
    for prompt in tiny.prompts(300, 260):
        cache = target.new_cache(1, 400)
        with torch.inference_mode():
            target.prefill(prompt, cache)
            policy.start(target, torch.tensor([prompt]), cache)
            assert policy.view(cache) is None
            for _ in range(3):
                captured = Captures(policy.captures())
                target(Tree.chain(torch.randint(3, 90, (1, 4))), cache, captured=captured)
                cache.length += 4
                policy.update(cache, captured)
                view = policy.view(cache)
                for layer, at in view.layers.items():
                    k, v = cache.read(layer, 0)
                    mine, values = view.compact(layer, 0, StoredRow(k, v))
                    order = lambda x: x.sum((0, 2)).sort().values  # noqa: E731
                    slots = view.indices[at, 0]
                    assert torch.allclose(order(mine), order(k[:, slots]), atol=1e-5)
                    assert torch.allclose(order(values), order(v[:, slots]), atol=1e-5)
