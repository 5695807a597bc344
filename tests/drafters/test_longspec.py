"""LongSpec by name: its options reach the drafter, and bad ones are one line."""

from __future__ import annotations

import pytest
from support import tiny

from longdraft import InputError, build
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
