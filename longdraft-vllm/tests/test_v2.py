"""vLLM's newer model runner on a CPU, where Triton's interpreter runs its kernels, so it needs a
process of its own.

Run: TRITON_INTERPRET=1 pytest tests/test_v2.py tests/test_v2_keyed.py tests/test_v2_paced.py
"""

from __future__ import annotations

from functools import cache

import newer  # before vLLM
import pytest
import test_law
import torch
from conftest import VOCAB, save_llama
from engine import METHODS, SELF, Report, mixed, run
from longdraft_vllm import speculator
from longdraft_vllm.recycle_speculator import RecycleSpeculator
from longdraft_vllm.runner import SelfDrafting
from newer import LONGEST, SMALL
from test_recycle import bigrams_read
from vllm.v1.worker.gpu.spec_decode import rejection_sampler


@cache
def of_older_runner(model: str, method: str | None, first: int = 8) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        return run(model, method, mixed(VOCAB, LONGEST)[:first])


@pytest.fixture(autouse=True)
def steps(monkeypatch) -> list[int]:
    return newer.counted(monkeypatch)


def accept_more(monkeypatch) -> None:
    """The planted fault: every first draft is accepted."""
    accept = rejection_sampler.rejection_sample

    def faulty(logits, draft_logits, tokens, ends, *args, **kwargs):
        sampled, counts = accept(logits, draft_logits, tokens, ends, *args, **kwargs)
        for row, (start, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            if end > start + 1:  # the first of a row's tokens is its last sampled one
                sampled[row, 0] = tokens[start + 1]
        return sampled, counts

    monkeypatch.setattr(rejection_sampler, "rejection_sample", faulty)


def test_plain_decoding_equals_the_older_runner(llama, steps):
    found = run(llama, None, mixed(VOCAB, LONGEST))
    assert steps and found.drafted == 0
    assert found.outputs == of_older_runner(llama, None).outputs


@pytest.mark.parametrize("method", METHODS)
def test_outputs_equal_plain_decoding(llama, method, steps):
    found = run(llama, method, mixed(VOCAB, LONGEST))
    assert steps and found.drafted > 100 and found.cached > 0
    assert found.outputs == of_older_runner(llama, None).outputs
    assert found.accepted > 0


@pytest.mark.parametrize("method", ["recycle", "suffix", "vegas"])
def test_outputs_survive_preemption(llama, method, steps):
    found = run(llama, method, mixed(VOCAB, LONGEST), **SMALL)
    assert steps and found.preempted > 0 and found.accepted > 0
    assert found.outputs == of_older_runner(llama, None).outputs


def test_outputs_of_a_compiled_model_equal_plain_decoding(llama, steps):
    found = run(llama, "vegas", mixed(VOCAB, LONGEST), enforce_eager=False)
    assert steps and found.accepted > 0
    assert found.outputs == of_older_runner(llama, None).outputs


@pytest.mark.parametrize("method", SELF)
def test_a_view_of_everything_predicts_everything(llama, method, steps):
    """Positions, slots and tables are right: the target's drafts are its own tokens."""
    requests = [r for i, r in enumerate(mixed(VOCAB, LONGEST)) if i != 5]
    found = run(llama, method, requests, {"keep_ratio": 1.0})
    assert steps and found.accepted > 0.9 * found.drafted  # not 1: requests end within a draft


@pytest.mark.parametrize("method", METHODS)
def test_each_request_reports_the_drafts_that_were_made(llama, method, steps):
    """As many drafted and accepted tokens as on the older runner, where requests have drafts of any
    length.
    """
    found = run(llama, method, mixed(VOCAB, LONGEST)[:4])
    assert steps and found.own == of_older_runner(llama, method, 4).own
    assert (sum(d for d, _ in found.own), sum(a for _, a in found.own)) == (
        found.drafted,
        found.accepted,
    )
    assert len(set(found.own)) > 1


def test_what_fills_drafts_up_is_not_reported(llama, monkeypatch):
    """The planted fault: vLLM verifies all tokens that it is given."""
    propose = speculator.Proposing.propose

    def longer(self, input_batch, *args, **named):
        drafts = propose(self, input_batch, *args, **named)
        self.lengths = dict.fromkeys(input_batch.req_ids, self.count)
        return drafts

    monkeypatch.setattr(speculator.Proposing, "propose", longer)
    found = run(llama, "suffix", mixed(VOCAB, LONGEST)[:4])
    older = of_older_runner(llama, "suffix", 4)
    assert found.outputs == older.outputs
    assert found.drafted > older.drafted


def test_recycle_reads_what_the_target_says(llama, monkeypatch, steps):
    pairs, neighbors = bigrams_read(llama, monkeypatch)
    assert steps and len(pairs) > 50 and pairs <= neighbors


def test_recycle_that_reads_another_rows_logits_is_caught(llama, monkeypatch):
    """The planted fault: each row's logits are taken one row too late."""
    read = RecycleSpeculator.read
    monkeypatch.setattr(
        RecycleSpeculator, "read", lambda self, *rows: read(self, *rows[:3], rows[3].roll(1))
    )
    pairs, neighbors = bigrams_read(llama, monkeypatch)
    assert not pairs <= neighbors


def test_a_sampler_that_accepts_too_much_is_caught(llama, monkeypatch):
    accept_more(monkeypatch)
    found = run(llama, "suffix", mixed(VOCAB, LONGEST))
    assert found.outputs != of_older_runner(llama, None).outputs


def test_drafts_in_a_committed_slot_are_caught(llama, monkeypatch):
    """The planted fault: draft keys land on the last committed token's."""
    slots = SelfDrafting.slots
    monkeypatch.setattr(
        SelfDrafting, "slots", lambda self, paged, rows, at: slots(self, paged, rows, at - 1)
    )
    found = run(llama, "vegas", mixed(VOCAB, LONGEST))
    assert found.outputs != of_older_runner(llama, None).outputs


def test_drafts_of_another_row_are_caught(llama, monkeypatch):
    """The planted fault: rows get each other's drafts, which only acceptance shows."""
    filled = speculator.filled
    monkeypatch.setattr(speculator, "filled", lambda *args: filled(*args).roll(1, 0))
    found = run(llama, "suffix", mixed(VOCAB, LONGEST))
    assert found.outputs == of_older_runner(llama, None).outputs
    assert found.accepted < 0.9 * of_older_runner(llama, "suffix").accepted


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    return save_llama(tmp_path_factory.mktemp("small"), test_law.VOCAB)


@pytest.fixture
def fewer(monkeypatch) -> None:
    """The interpreter is slow: 300 requests, and all continuations of 2 tokens."""
    monkeypatch.setattr(test_law, "REQUESTS", 300)
    monkeypatch.setattr(test_law, "TOKENS", 2)


@pytest.mark.parametrize("method", ["suffix", "vegas"])
def test_the_law_is_kept(small, method, fewer, steps):
    assert test_law.p_value(small, method) > test_law.FALSE_ALARM and steps


def test_a_wrong_law_is_caught(small, fewer, monkeypatch):
    accept_more(monkeypatch)
    assert test_law.p_value(small, "lookup") < test_law.FALSE_ALARM


def test_where_there_is_no_draft_the_last_token_takes_its_place():
    roots = torch.tensor([7, 8, 9])
    found = speculator.filled({1: [4, 5], 2: [1, 2, 3]}, roots, 3)
    assert found.tolist() == [[7, 7, 7], [4, 5, 8], [1, 2, 3]]
    assert speculator.filled({}, roots, 2).tolist() == [[7, 7], [8, 8], [9, 9]]
