"""vLLM's newer model runner on a CPU, where Triton's interpreter runs its kernels, so it needs a process of its own.

Run: TRITON_INTERPRET=1 pytest tests/test_v2.py
"""

from __future__ import annotations

import os
import sys
from functools import cache, wraps
from types import SimpleNamespace

import pytest

if os.environ.get("TRITON_INTERPRET") != "1" or "vllm" in sys.modules:
    pytest.skip("needs a process of its own: TRITON_INTERPRET=1 pytest tests/test_v2.py", allow_module_level=True)
pytest.importorskip("triton", reason="vLLM's newer model runner needs Triton")
import interpreter  # noqa: F401
import test_law
import torch
from conftest import VOCAB, save_llama
from engine import METHODS, SELF, Report, mixed, run
from longdraft_vllm import speculator, v2
from longdraft_vllm.runner import SelfDrafting
from vllm.config import VllmConfig
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.spec_decode import rejection_sampler

LONGEST = 256
SMALL = {"num_gpu_blocks_override": 11}  # too few pages for the requests that run at once


@cache
def of_older_runner(model: str, method: str | None) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        return run(model, method, mixed(VOCAB, LONGEST))


@pytest.fixture(autouse=True)
def steps(monkeypatch) -> list[int]:
    """The newer runner's batches of this test, counted so that no test passes on the older one."""
    found: list[int] = []
    execute = model_runner.GPUModelRunner.sample_tokens

    @wraps(execute)
    def counting(self, *args):
        found.append(1)
        return execute(self, *args)

    monkeypatch.setattr(model_runner.GPUModelRunner, "sample_tokens", counting)
    return found


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
    assert found.accepted > 0.9 * of_older_runner(llama, method).accepted


@pytest.mark.parametrize("method", ["suffix", "vegas"])
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


def test_a_request_reports_its_acceptance(llama):
    found = run(llama, "suffix", mixed(VOCAB, LONGEST)[:4])
    assert sum(accepted for _, accepted in found.own) == found.accepted > 0
    assert all(drafted > 0 for drafted, _ in found.own)


def test_a_sampler_that_accepts_too_much_is_caught(llama, monkeypatch):
    accept_more(monkeypatch)
    found = run(llama, "suffix", mixed(VOCAB, LONGEST))
    assert found.outputs != of_older_runner(llama, None).outputs


def test_drafts_in_a_committed_slot_are_caught(llama, monkeypatch):
    """The planted fault: draft keys land on the last committed token's."""
    slots = SelfDrafting.slots
    monkeypatch.setattr(SelfDrafting, "slots", lambda self, paged, rows, at: slots(self, paged, rows, at - 1))
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


def test_where_there_is_no_draft_the_last_token_is_verified():
    roots = torch.tensor([7, 8, 9])
    found = speculator.filled({1: [4, 5], 2: [1, 2, 3]}, roots, 3)
    assert found.tolist() == [[7, 7, 7], [4, 5, 8], [1, 2, 3]]
    assert speculator.filled({}, roots, 2).tolist() == [[7, 7], [8, 8], [9, 9]]


def config(model: str) -> SimpleNamespace:
    spec = SimpleNamespace(method="custom_class", model=model, parallel_drafting=False)
    parallel = SimpleNamespace(distributed_executor_backend=None, pipeline_parallel_size=1, use_ubatching=False)
    return SimpleNamespace(speculative_config=spec, parallel_config=parallel)


@pytest.mark.parametrize(
    ("model", "chosen", "refused"),
    [("longdraft_vllm.Suffix", "1", False), ("longdraft_vllm.Suffix", None, True), ("another.Drafter", "1", True)],
)
def test_only_our_methods_are_accepted_and_only_if_v2_is_chosen(model, chosen, refused, monkeypatch):
    v2.install()
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    if chosen:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", chosen)
    found = VllmConfig._get_v2_model_runner_unsupported_features(config(model))
    assert found == (["speculative method 'custom_class'"] if refused else [])
