"""LongSpec by name: its options; and the share of attention that its window leaves out."""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.structure import close

from longdraft import InputError, build
from longdraft.bench import window_mass
from longdraft.drafters import GlideDrafter, random_glide


@pytest.mark.parametrize("widths", ["", "4,,4", "4;4", "0,2", "-1", "four", "2.5", "1000,1000"])
@pytest.mark.parametrize("method", ["longspec", "longspec-guided"])
def test_bad_widths_are_one_line(method, widths):
    target = tiny.target("llama")
    with pytest.raises(InputError, match="option widths is") as error:
        build(method, target, random_glide(target), widths=widths)
    assert "\n" not in str(error.value)


def test_options_reach_the_drafter():
    target = tiny.target("llama")
    block = random_glide(target, window=33)
    drafter = build("longspec", target, block, widths=[2, 3])
    assert isinstance(drafter, GlideDrafter) and (drafter.widths, drafter.window) == ([2, 3], 33)
    assert build("longspec-chain", target, block, gamma=3, window=7).window == 7
    for method, options in (
        ("longspec", {"window": -1}),
        ("longspec-chain", {"gamma": 0}),
        ("longspec-guided", {"min_budget": 0}),
    ):
        with pytest.raises(InputError, match="give a whole number"):
            build(method, target, block, **options)
    with pytest.raises(InputError, match="needs a drafter of kind glide"):
        build("longspec", target)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_attention_outside_a_window_of_the_target(name):
    ids = tiny.prompts(90)[0]
    window = 20
    found = window_mass.of_target(tiny.target(name), ids, window)
    eager = tiny.eager(name)(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    outside = torch.arange(90) < torch.arange(90)[:, None] - window
    assert sorted(found) == [n for n in range(len(eager)) if n not in tiny.target(name).windows]
    for layer, mass in found.items():
        want = (eager[layer][0] * outside).sum(-1).mean(0)[window + 1 :].mean()
        assert abs(mass - float(want)) < 1e-5 and 0 < mass < 1


@torch.no_grad()
def test_attention_outside_a_window_of_the_block():
    ids = tiny.prompts(90)[0]
    block = random_glide(tiny.target("llama"), window=20)
    block.q_proj.weight.mul_(30)  # attention that is far from even
    found = window_mass.of_drafter(block, ids)
    normed = block.self_norm(block.embed(torch.tensor([ids])))
    turn = block.host.rotation(torch.arange(90)[None])
    q = block.queries(normed, turn)[0]
    k = block.keys(normed, turn)[0][0].repeat_interleave(2, 0)
    weights = (
        (q @ k.mT / 4)
        .masked_fill(torch.ones(90, 90, dtype=torch.bool).triu(1), float("-inf"))
        .softmax(-1)
    )
    outside = torch.arange(90) < torch.arange(90)[:, None] - 20
    close(found.float(), (weights * outside).sum(-1)[:, 21:].mean(1), 1e-4)
    assert float(window_mass.of_drafter(block, ids, 88).max()) < float(found.min())
    with pytest.raises(InputError, match="all lie inside a window of 89"):
        window_mass.of_drafter(block, ids, 89)
