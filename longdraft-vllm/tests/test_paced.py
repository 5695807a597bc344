"""With the pace on, outputs are plain decoding's whatever it decides, and it decides by what steps
take.
"""

from __future__ import annotations

from functools import cache

import pytest
from conftest import VOCAB
from engine import METHODS, SELF, Report, mixed, run
from longdraft_vllm import pace
from longdraft_vllm.runner import SelfDrafting
from pacing import ON, Machine, at_random
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

LONGEST = 256
SMALL = {"num_gpu_blocks_override": 11}  # too few pages for the requests that run at once


@cache
def plain(model: str) -> Report:
    return run(model, None, mixed(VOCAB, LONGEST))


@cache
def always(model: str, method: str) -> Report:
    return run(model, method, mixed(VOCAB, LONGEST))


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch, GPUModelRunner)


@pytest.mark.parametrize("method", METHODS)
def test_drafting_goes_on_where_it_pays(llama, method, machine):
    machine.verify = 0.001
    machine.draft = 0.001
    found = run(
        llama, method, mixed(VOCAB, LONGEST), ON | {"min_budget": 64} if method in SELF else ON
    )
    assert found.outputs == plain(llama).outputs
    assert found.drafted > 100 and found.accepted > 0


@pytest.mark.parametrize("method", METHODS)
def test_drafting_stops_where_it_does_not_pay(llama, method, machine):
    machine.verify = 0.5
    machine.draft = 0.5
    found = run(llama, method, mixed(VOCAB, LONGEST), ON)
    assert found.outputs == plain(llama).outputs
    assert found.drafted < 0.2 * always(llama, method).drafted


def test_a_pace_that_never_stops_is_caught(llama, machine, monkeypatch):
    """The planted fault: any draft seems to pay."""
    machine.verify = 0.5
    machine.draft = 0.5
    monkeypatch.setattr(pace, "MARGIN", 0.0)
    monkeypatch.setattr(pace, "LIMIT", float("inf"))
    monkeypatch.setattr(pace, "FIRST", 1)
    found = run(llama, "vegas", mixed(VOCAB, LONGEST), ON)
    assert found.drafted > 0.2 * always(llama, "vegas").drafted


@pytest.fixture
def wild(monkeypatch) -> None:
    at_random(monkeypatch)


@pytest.mark.parametrize("method", METHODS)
def test_whatever_it_decides_outputs_are_plain_decodings(llama, method, wild):
    found = run(llama, method, mixed(VOCAB, LONGEST), ON, **SMALL)
    assert found.preempted > 0
    assert found.outputs == plain(llama).outputs
    assert 0 < found.drafted < always(llama, method).drafted
    assert (sum(d for d, _ in found.own), sum(a for _, a in found.own)) == (
        found.drafted,
        found.accepted,
    )


def test_an_interval_that_is_given_stays(llama, wild, monkeypatch):
    seen = set()
    draft = SelfDrafting._draft

    def drafting(self, rows):
        seen.add(self.step.every)
        return draft(self, rows)

    monkeypatch.setattr(SelfDrafting, "_draft", drafting)
    assert (
        run(llama, "vegas", mixed(VOCAB, LONGEST), ON | {"every": 3}).outputs
        == plain(llama).outputs
    )
    assert seen == {3}
    run(llama, "vegas", mixed(VOCAB, LONGEST), ON)
    assert len(seen) > 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pace": "auto"}, 'pace is \'auto\': give "on" or "off"'),
        ({"every": 0}, "every is 0: give a number of steps"),
    ],
)
def test_wrong_options_are_refused(llama, options, says):
    with pytest.raises((RuntimeError, ValueError), match=says):
        run(llama, "vegas", [], options)
