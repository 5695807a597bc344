"""A small hybrid is trained by Transformers' own forward, faster: the same losses and gradients,
segment by segment.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import softplus
from transformers.models.qwen3_5 import modeling_qwen3_5

from longdraft.errors import InputError
from longdraft.training import guide, hybrid, rows, target, trainer

LENGTH = 200  # no multiple of the segments below, nor of the chunks of 64


def built(layers: int = 4):
    return hybrid.build(vocab=64, layers=layers, hidden=32, heads=2, mlp=32, positions=256, seed=0)


def tokens() -> torch.Tensor:
    return torch.randint(1, 64, (2, LENGTH + 1), generator=torch.Generator().manual_seed(0))


def gradients(model, loss) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def whole(model, row: torch.Tensor) -> torch.Tensor:
    """The loss as Transformers computes it."""
    return model(input_ids=row, labels=row, use_cache=False).loss


@pytest.fixture
def short_segments(monkeypatch):
    monkeypatch.setattr(hybrid, "SEGMENT", 64)


def test_segments_give_the_losses_and_gradients_of_the_whole_scan(short_segments):
    model = built()
    row = tokens()
    before = getattr(modeling_qwen3_5, hybrid.SCAN)
    expected = whole(model, row)
    loss = target.loss(model, row, row, False)
    assert (
        torch.allclose(loss, expected, atol=1e-5)
        and getattr(modeling_qwen3_5, hybrid.SCAN) is before
    )
    theirs = gradients(model, expected)
    ours = gradients(model, loss)
    assert all(torch.allclose(ours[name], theirs[name], atol=2e-5, rtol=1e-3) for name in theirs)
    assert theirs["model.layers.0.linear_attn.dt_bias"].abs().max() > 1e-4


def test_a_segment_that_forgets_the_state_is_noticed(short_segments, monkeypatch):
    scan = getattr(modeling_qwen3_5, hybrid.SCAN)
    monkeypatch.setattr(
        modeling_qwen3_5, hybrid.SCAN, lambda *a, initial_state=None, **o: scan(*a, **o)
    )
    model = built()
    row = tokens()
    forgetful = target.loss(model, row, row, False)
    assert not torch.allclose(forgetful, whole(model, row), atol=1e-5)


def test_recurrences_remember_from_one_to_thousands_of_tokens():
    steps = torch.cat(
        [softplus(p) for n, p in built(16).named_parameters() if n.endswith("dt_bias")]
    )
    assert (
        hybrid.SHORTEST_STEP * 0.99 < steps.min() < 0.005
        and 0.03 < steps.max() < hybrid.LONGEST_STEP * 1.01
    )


@pytest.mark.full
def test_the_attention_of_a_hybrid_is_guided_to_what_it_copies():
    model = built()
    row = tokens()[:, :25]
    row[:, 13:] = row[:, 1:13]
    sources = torch.full_like(row, rows.IGNORE)
    sources[:, 14:] = torch.arange(2, 13)
    made = trainer.optimizers(model, 0.02, 0.01)
    history = []
    for _ in range(30):
        _, extra = guide.guided(model, lambda: target.loss(model, row, row, False), sources)
        history.append(extra.item())
        extra.backward()
        for each in made:
            each.step()
            each.zero_grad()
    assert 1.5 < history[0] < 4 and history[-1] < 0.5 * history[0]
    nothing = torch.full_like(row, rows.IGNORE)
    assert guide.guided(model, lambda: target.loss(model, row, row, False), nothing)[1] == 0


@pytest.mark.full
def test_it_learns():
    model = built()
    row = tokens()[:1, :33]
    made = trainer.optimizers(model, 0.02, 0.01)
    for _ in range(20):
        loss = target.loss(model, row, row, True)
        loss.backward()
        for each in made:
            each.step()
            each.zero_grad()
    assert loss < 0.7 * math.log(64)


@pytest.mark.parametrize(
    ("sizes", "said"), [({"layers": 3}, "--layers is 3"), ({"heads": 8}, "multiple of 8 .* 64")]
)
def test_sizes_that_do_not_fit_are_refused(sizes, said):
    options = {
        "vocab": 64,
        "layers": 4,
        "hidden": 32,
        "heads": 2,
        "mlp": 32,
        "positions": 64,
        "seed": 0,
        **sizes,
    }
    with pytest.raises(InputError, match=said):
        hybrid.build(**options)
