"""Greedy outputs equal vLLM's own plain decoding, token for token, whatever happens to the
requests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from conftest import VOCAB
from engine import METHODS, SELF, Report, mixed, off, run
from longdraft_vllm.runner import SelfDrafting
from longdraft_vllm.views import Vegas

LONGEST = 256
TIE = 0.15  # log-probabilities of these logits, of which bfloat16 has steps of 0.03
SMALL = {"num_gpu_blocks_override": 11}  # too few pages for the requests that run at once


@cache
def plain(model: str) -> Report:
    found = run(model, None, mixed(VOCAB, LONGEST))
    assert found.cached > 0 and found.drafted == 0
    return found


@pytest.mark.parametrize("method", METHODS)
def test_outputs_equal_plain_decoding(llama, method):
    found = run(llama, method, mixed(VOCAB, LONGEST))
    assert found.outputs == plain(llama).outputs
    assert found.drafted > 100 and found.accepted > 0
    assert found.cached > 0
    assert (sum(d for d, _ in found.own), sum(a for _, a in found.own)) == (
        found.drafted,
        found.accepted,
    )
    assert len({a for _, a in found.own}) > 1


@pytest.mark.parametrize("method", METHODS)
def test_outputs_survive_preemption(llama, method):
    found = run(llama, method, mixed(VOCAB, LONGEST), **SMALL)
    assert found.preempted > 0
    assert found.outputs == plain(llama).outputs


def test_outputs_of_a_compiled_model_equal_plain_decoding(llama):
    """vLLM's default on CPUs: queries are still seen, and drafts run the compiled model."""
    found = run(llama, "vegas", mixed(VOCAB, LONGEST), enforce_eager=False)
    assert found.outputs == plain(llama).outputs
    assert found.drafted > 100 and found.accepted > 0


def in_bfloat16(model: str, method: str | None) -> Report:
    """Requests whose tokens come with the likeliest two of each position."""
    requests = mixed(VOCAB, LONGEST)
    for r in requests:
        r.sampling = {"temperature": 0.0, "logprobs": 2}
    return run(model, method, requests, dtype="bfloat16")


@pytest.fixture(scope="module")
def plain_in_bfloat16(llama) -> Report:
    return in_bfloat16(llama, None)


@pytest.mark.parametrize("method", METHODS)
def test_outputs_in_bfloat16_differ_at_ties_only(llama, plain_in_bfloat16, method):
    found = in_bfloat16(llama, method)
    assert found.drafted > 100
    assert all(margin < TIE for margin in off(plain_in_bfloat16, found))


def test_a_wrong_token_is_no_tie(llama, plain_in_bfloat16):
    """The planted fault: one token of each output is another one."""
    wrong = [
        [*tokens[:9], (tokens[9] + 1) % VOCAB, *tokens[10:]] for tokens in plain_in_bfloat16.outputs
    ]
    assert any(
        margin > TIE for margin in off(plain_in_bfloat16, replace(plain_in_bfloat16, outputs=wrong))
    )


@pytest.mark.parametrize("method", SELF)
def test_a_view_of_everything_predicts_everything(llama, method):
    """Positions, slots and tables are right: the target's drafts are its own tokens."""
    requests = [r for i, r in enumerate(mixed(VOCAB, LONGEST)) if i != 5]
    found = run(llama, method, requests, {"keep_ratio": 1.0})
    assert found.accepted > 0.9 * found.drafted  # not 1: requests end within a draft
    sparse = run(llama, method, requests)
    assert sparse.accepted < 0.9 * sparse.drafted


@pytest.mark.parametrize("method", SELF)
def test_drafts_in_a_committed_slot_are_caught(llama, method, monkeypatch):
    """The planted fault: draft keys land on the last committed token's."""
    slots = SelfDrafting.slots
    monkeypatch.setattr(
        SelfDrafting,
        "slots",
        lambda self, paged, rows, at: slots(self, paged, rows, (at - 1).clamp(min=0)),
    )
    found = run(llama, method, mixed(VOCAB, LONGEST))
    assert found.outputs != plain(llama).outputs


def test_a_view_is_used_for_some_steps(llama, monkeypatch):
    """Fewer views are chosen, rows that pause get new ones, and outputs are the same."""
    count = Counter()
    select = Vegas.select

    def counted(self, *args):
        count[self.every] += 1
        return select(self, *args)

    monkeypatch.setattr(Vegas, "select", counted)
    for every in (1, 4):
        found = run(llama, "vegas", mixed(VOCAB, LONGEST), {"every": every}, **SMALL)
        assert found.preempted > 0
        assert found.outputs == plain(llama).outputs
    assert 2 * count[4] < count[1]


def test_without_reserved_slots_fewer_drafts_are_made(llama):
    """vLLM's own scheduler reserves none: rows whose pages are full do not draft, and nothing is
    overwritten.
    """
    stock = "vllm.v1.core.sched.scheduler.Scheduler"
    found = run(llama, "vegas", mixed(VOCAB, LONGEST), scheduler_cls=stock)
    ours = run(llama, "vegas", mixed(VOCAB, LONGEST))
    assert found.outputs == plain(llama).outputs
    assert 0 < found.drafted < ours.drafted


def test_the_classes_can_be_named(llama):
    """The flags that take the place of the automatic choice."""
    named = {
        "worker_cls": "longdraft_vllm.cpu.Worker",
        "scheduler_cls": "longdraft_vllm.scheduler.LookaheadScheduler",
    }
    assert run(llama, "vegas", mixed(VOCAB, LONGEST), **named).outputs == plain(llama).outputs
