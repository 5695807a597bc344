"""On vLLM's newer model runner too, the pace decides what is drafted and verified, and outputs are
plain decoding's.

Run: TRITON_INTERPRET=1 pytest tests/test_v2.py tests/test_v2_keyed.py tests/test_v2_paced.py
"""

from __future__ import annotations

import newer  # before vLLM
import pytest
from conftest import VOCAB
from engine import METHODS, SELF, mixed, run
from longdraft_vllm.pace import Pace
from longdraft_vllm.paced_text import FromTexts
from newer import LONGEST, SMALL
from pacing import ON, Machine, at_random
from test_v2 import of_older_runner
from vllm.v1.worker.gpu.model_runner import GPUModelRunner


@pytest.fixture(autouse=True)
def steps(monkeypatch) -> list[int]:
    return newer.counted(monkeypatch)


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch, GPUModelRunner)


@pytest.mark.parametrize("method", METHODS)
def test_whatever_it_decides_outputs_are_plain_decodings(llama, method, monkeypatch, steps):
    at_random(monkeypatch)
    found = run(llama, method, mixed(VOCAB, LONGEST), ON, **SMALL)
    assert steps and found.preempted > 0
    assert found.outputs == of_older_runner(llama, None).outputs
    assert 0 < found.accepted < found.drafted < of_older_runner(llama, method).drafted
    assert (sum(d for d, _ in found.own), sum(a for _, a in found.own)) == (
        found.drafted,
        found.accepted,
    )


@pytest.mark.parametrize("method", METHODS)
def test_where_it_decides_against_drafts_nothing_is_verified(llama, method, monkeypatch, steps):
    monkeypatch.setattr(Pace, "pick", lambda self, rows, shapes: None)
    found = run(llama, method, mixed(VOCAB, LONGEST), ON)
    assert steps and found.drafted == 0
    assert found.outputs == of_older_runner(llama, None).outputs


def test_a_method_that_ignores_its_pace_is_caught(llama, monkeypatch):
    monkeypatch.setattr(Pace, "pick", lambda self, rows, shapes: None)
    monkeypatch.setattr(
        FromTexts, "paced_chains", lambda self, texts, new, alone: self.chains(texts)
    )
    assert run(llama, "recycle", mixed(VOCAB, LONGEST)[:4], ON).drafted > 0


@pytest.mark.parametrize("method", METHODS)
def test_drafting_goes_on_where_it_pays_and_stops_where_it_does_not(llama, method, machine, steps):
    machine.verify = 0.001
    machine.draft = 0.001
    pays = run(
        llama, method, mixed(VOCAB, LONGEST), ON | {"min_budget": 64} if method in SELF else ON
    )
    machine.verify = 0.5
    machine.draft = 0.5
    loses = run(llama, method, mixed(VOCAB, LONGEST), ON)
    assert steps and pays.outputs == loses.outputs == of_older_runner(llama, None).outputs
    assert pays.accepted > 0 and pays.drafted > 100
    assert loses.drafted < 0.2 * of_older_runner(llama, method).drafted
