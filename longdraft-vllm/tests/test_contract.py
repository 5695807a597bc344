"""What the plugin relies on inside vLLM is there, and a difference is named in one line."""

from __future__ import annotations

import logging

import pytest
from longdraft_vllm import contract, plugin, v2
from vllm.config import VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.block_table import BlockTable
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


@pytest.fixture(autouse=True)
def fresh():
    contract.check.cache_clear()
    yield
    contract.check.cache_clear()


@pytest.fixture
def heard(monkeypatch, caplog):
    """What the plugin logs, also if vLLM has silenced its loggers."""
    for name in ("vllm", "vllm.longdraft"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    with caplog.at_level(logging.WARNING, "vllm.longdraft"):
        yield caplog


@pytest.mark.parametrize("part", contract.CONTRACT)
def test_this_vllm_fits(part):
    contract.check(part)


def renamed(monkeypatch):
    def propose_draft_token_ids(self, scheduler_output, tokens):
        """A parameter has another name."""

    monkeypatch.setattr(GPUModelRunner, "propose_draft_token_ids", propose_draft_token_ids)
    return "propose_draft_token_ids takes (self, scheduler_output, tokens) but not sampled_token_ids"


def gone(monkeypatch):
    monkeypatch.delattr(BlockTable, "get_device_tensor")
    return "BlockTable has no get_device_tensor"


def unset(monkeypatch):
    """The source no longer sets the attribute."""
    source = contract.inspect.getsource
    monkeypatch.setattr(contract.inspect, "getsource", lambda x: source(x).replace("num_lookahead_tokens", "ahead"))
    return "Scheduler has no num_lookahead_tokens"


@pytest.mark.parametrize("change", [renamed, gone, unset])
def test_a_difference_is_named_in_one_line(change, monkeypatch):
    says = change(monkeypatch)
    with pytest.raises(contract.Mismatch) as found:
        contract.check("self-draft")
    assert says in str(found.value) and "\n" not in str(found.value)


def test_a_vllm_that_does_not_fit_starts_without_the_plugin(monkeypatch, heard):
    monkeypatch.setitem(contract.CONTRACT, "registration", [contract.Takes("vllm.platforms:nothing", "x")])
    plugin.install()
    assert "vLLM has no vllm.platforms:nothing" in heard.text
    assert Scheduler.__init__.__module__.startswith("vllm.")


def test_a_newer_runner_that_does_not_fit_is_left_as_it_is(monkeypatch, heard):
    monkeypatch.setitem(contract.CONTRACT, "v2 registration", [contract.Takes("vllm.platforms:nothing", "x")])
    before = VllmConfig._get_v2_model_runner_unsupported_features
    v2.install()
    assert "vLLM has no vllm.platforms:nothing" in heard.text
    assert VllmConfig._get_v2_model_runner_unsupported_features is before
