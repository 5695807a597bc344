"""The checks can fail: each planted fault makes one of them fail that the good version passes."""

from __future__ import annotations

from functools import cache, partial

import pytest
from support import broken
from support.checks import SAMPLERS, check_law
from support.planted import (
    APART,
    PLANTED,
    reject_plant,
)


def name_of(check) -> str:
    while isinstance(check, partial):
        check = check.func
    return check.__name__


passed = cache(lambda check: check())  # the good version need not pass the same check twice


def expect_caught(fault: str, good, bad) -> None:
    passed(good)
    with pytest.raises(AssertionError):
        bad()
    broken.caught(fault.split(" v ")[0], name_of(good))


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_caught(fault, monkeypatch):
    plant, check = PLANTED[fault]

    def bad():
        plant(monkeypatch)
        check()

    expect_caught(fault, check, bad)


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("fault", APART)
def test_a_fault_that_is_given_is_caught(fault):
    expect_caught(fault, *APART[fault]())


def test_no_twin_lies_unused():
    """Each function of broken.py that plants something is planted by a line above."""
    twins = {f for f in vars(broken).values() if "mp" in getattr(f, "__annotations__", ())}
    assert twins and twins <= {plant for plant, _ in PLANTED.values()}


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize(
    "sampler", [SAMPLERS["T=1"], SAMPLERS["T=0.7 top-p"]], ids=["T=1", "top-p"]
)
def test_the_twins_harness_itself_is_sound(sampler, monkeypatch):
    """Without a fault the second writing of `reject` passes, so what fails a twin is its fault
    alone.
    """
    reject_plant(None)(monkeypatch)
    check_law("reject", widths=(3, 6), sampler=sampler)
