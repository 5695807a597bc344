"""What the plugin relies on inside vLLM is there, and a difference is named in one line.

LONGDRAFT_VLLM_SOURCE=FOLDER: also checks the vLLM in this folder, which need not be installed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from longdraft_vllm import contract, plugin, v2
from longdraft_vllm.source import Source
from vllm.config import VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler


@pytest.fixture(autouse=True)
def fresh():
    for cached in (contract.check, contract.fits, contract.installed):
        cached.cache_clear()
    yield
    for cached in (contract.check, contract.fits, contract.installed):
        cached.cache_clear()


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


def test_a_vllm_that_is_not_installed_fits():
    folder = os.environ.get("LONGDRAFT_VLLM_SOURCE")
    if not folder:
        pytest.skip("LONGDRAFT_VLLM_SOURCE names no folder with the source of another vLLM")
    source = Source(Path(folder))
    assert [line for part in contract.CONTRACT for line in contract.problems(part, source)] == []


RUNNER = "vllm.v1.worker.gpu_model_runner"
CHANGES = {  # module, its text, the changed text -> what is said
    "a parameter has another name": (
        RUNNER,
        "sampled_token_ids: torch.Tensor | list[list[int]]",
        "tokens: torch.Tensor | list[list[int]]",
        "GPUModelRunner.propose_draft_token_ids takes (self, scheduler_output, tokens, "
        "sampling_metadata",
    ),
    "a function is gone": (
        "vllm.v1.worker.block_table",
        "def get_device_tensor",
        "def get_tensor",
        "vllm.v1.worker.block_table:BlockTable has no get_device_tensor",
    ),
    "an attribute is no longer set": (
        "vllm.v1.core.sched.scheduler",
        "num_lookahead_tokens",
        "ahead",
        "Scheduler has no num_lookahead_tokens",
    ),
    "a class is gone": (
        "vllm.v1.worker.utils",
        "class AttentionGroup",
        "class Group",
        "vLLM has no vllm.v1.worker.utils:AttentionGroup",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_difference_is_named_in_one_line(change, monkeypatch):
    module, before, after, says = CHANGES[change]
    text = Source.text

    def changed(self, name):
        found = text(self, name)
        assert name != module or before in found
        return found.replace(before, after) if name == module else found

    monkeypatch.setattr(Source, "text", changed)
    with pytest.raises(contract.Mismatch) as found:
        contract.check("self-draft")
    assert says in str(found.value) and "\n" not in str(found.value)


def test_a_vllm_that_does_not_fit_starts_without_the_plugin(monkeypatch, heard):
    monkeypatch.setitem(
        contract.CONTRACT, "registration", [contract.Takes("vllm.platforms:nothing", "x")]
    )
    plugin.install()
    assert "vLLM has no vllm.platforms:nothing" in heard.text
    assert Scheduler.__init__.__module__.startswith("vllm.")


def test_a_newer_runner_that_does_not_fit_is_left_as_it_is(monkeypatch, heard):
    monkeypatch.setitem(
        contract.CONTRACT, "v2 registration", [contract.Takes("vllm.platforms:nothing", "x")]
    )
    before = VllmConfig._get_v2_model_runner_unsupported_features
    v2.install()
    assert "vLLM has no vllm.platforms:nothing" in heard.text
    assert VllmConfig._get_v2_model_runner_unsupported_features is before
