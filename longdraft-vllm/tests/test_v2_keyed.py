"""On vLLM's newer model runner too, a seeded request with keyed noise gives what longdraft's own
engine gives.

Run: TRITON_INTERPRET=1 pytest tests/test_v2.py tests/test_v2_keyed.py tests/test_v2_paced.py
"""

from __future__ import annotations

import newer  # before vLLM
import pytest
import torch
from conftest import VOCAB
from engine import METHODS, Request, mixed, run
from longdraft_vllm.samplers import Draws
from newer import LONGEST, SMALL
from pacing import at_random
from test_keyed import by_longdraft, keyed_run


@pytest.fixture(autouse=True)
def steps(monkeypatch) -> list[int]:
    return newer.counted(monkeypatch)


@pytest.fixture(scope="module")
def expected(llama) -> list[list[int]]:
    return by_longdraft(llama)


@pytest.mark.parametrize("method", [None, *METHODS])
def test_outputs_equal_those_of_longdrafts_engine(llama, expected, method, steps):
    found = keyed_run(llama, method)
    assert steps and found.outputs[:-1] == expected
    assert found.accepted > 0 if method else found.drafted == 0


@pytest.mark.parametrize("method", ["lookup", "vegas"])
def test_outputs_survive_preemption(llama, expected, method, steps):
    found = keyed_run(llama, method, **SMALL)
    assert steps and found.preempted > 0
    assert found.outputs[:-1] == expected


@pytest.mark.parametrize("method", METHODS)
def test_outputs_are_the_same_whatever_the_pace_decides(
    llama, expected, method, monkeypatch, steps
):
    at_random(monkeypatch)
    found = keyed_run(llama, method, pace="on")
    assert steps and found.outputs[:-1] == expected
    assert 0 < found.accepted < found.drafted


def test_drafts_by_the_same_noise_are_accepted(llama, steps):
    """Drafted under a view of everything, they are what the verification draws."""
    sampling = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 5}
    given = [Request(r.prompt, r.tokens, sampling=sampling) for r in mixed(VOCAB, LONGEST)[:3]]
    found = run(llama, "vegas", given, {"keyed_noise": True, "keep_ratio": 1.0})
    assert steps and found.accepted > 0.9 * found.drafted > 50


def test_noise_of_another_position_is_caught(llama, expected, monkeypatch):
    """The planted fault: the tokens after a request's first one are drawn with the noise of that
    position.
    """
    redraw = Draws.redraw

    def too_early(self, tokens, logits, expanded, positions):
        first = torch.stack([positions[expanded == number].min() for number in expanded])
        redraw(self, tokens, logits, expanded, first)

    monkeypatch.setattr(Draws, "redraw", too_early)
    assert keyed_run(llama, "lookup").outputs[:-1] != expected


def test_another_engine_of_the_process_is_not_affected(llama, steps):
    """Some of its functions are wrapped for the process; without the option, a seed is vLLM's."""
    given = [Request([5, 6, 7] * 8, 30, sampling={"temperature": 1.0, "seed": 1})]
    before = run(llama, None, given)
    assert keyed_run(llama, "lookup", given).outputs != before.outputs
    assert steps and run(llama, None, given).outputs == before.outputs
