"""Keyed noise in vLLM belongs to an engine: several of them in one process do not disturb each
other.

vLLM itself is not needed: modules with its names stand in for the few parts that are imported.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

SOURCES = Path(__file__).resolve().parents[2] / "longdraft-vllm" / "src"
VOCAB = 11
DRAFTS = 2


def standing_in(monkeypatch, name: str, **content: Any) -> ModuleType:
    """A module in place of one of vLLM's, in its package."""
    parent, _, leaf = name.rpartition(".")
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    if parent:
        above = sys.modules.get(parent) or standing_in(monkeypatch, parent)
        monkeypatch.setattr(above, leaf, module, raising=False)
    return module


@pytest.fixture
def keyed(monkeypatch):
    def verify(draft_token_ids, num_draft_tokens, *_: Any, **options: Any):
        # vLLM's own: marked, so that it can be told apart
        return torch.full((len(num_draft_tokens), DRAFTS + 1), -7)

    standing_in(
        monkeypatch,
        "vllm.v1.sample.rejection_sampler",
        rejection_sample=verify,
        PLACEHOLDER_TOKEN_ID=-1,
    )
    sampler = "vllm.v1.sample.ops.topk_topp_sampler"
    standing_in(monkeypatch, sampler, apply_top_k_top_p=lambda logits, k, p: logits)
    monkeypatch.syspath_prepend(SOURCES)
    import_module("longdraft_vllm")
    standing_in(monkeypatch, "longdraft_vllm.runner", Row=SimpleNamespace)
    monkeypatch.delitem(sys.modules, "longdraft_vllm.keyed", raising=False)
    sys.modules.pop("longdraft_vllm.keyed", None)
    yield import_module("longdraft_vllm.keyed")
    sys.modules.pop("longdraft_vllm.keyed", None)


class VllmRunner:
    """The part of vLLM's model runner that the mixin builds on."""

    def __init__(self, vllm_config: Any, device: torch.device):
        self.sampler = SimpleNamespace(
            topk_topp_sampler=SimpleNamespace(forward=lambda *a: (a[0].argmax(-1), None))
        )

    def _sample(self, logits: torch.Tensor, spec: Any) -> torch.Tensor:
        if self.between is not None:
            self.between()
        sampler = sys.modules["vllm.v1.sample.rejection_sampler"]
        drafts = torch.zeros(DRAFTS, dtype=torch.long)
        bonus = torch.zeros(1, 1, dtype=torch.long)
        return sampler.rejection_sample(
            drafts, spec.num_draft_tokens, DRAFTS, None, None, logits, bonus, None
        )


def runner(keyed: Any, seed: int) -> Any:
    made = type("Runner", (keyed.Keyed, VllmRunner), {})(None, torch.device("cpu"))
    made.input_batch = SimpleNamespace(req_ids=["r"], num_tokens_no_spec=[5], generators={})
    made.requests = {
        "r": SimpleNamespace(sampling_params=SimpleNamespace(seed=seed, temperature=1.0))
    }
    made.between = None
    return made


def test_a_second_engine_does_not_replace_the_noise_of_the_first(keyed):
    logits = torch.randn(DRAFTS, VOCAB)
    spec = SimpleNamespace(num_draft_tokens=[DRAFTS])
    alone = runner(keyed, 1)._sample(logits, spec).tolist()
    assert alone[0][0] != -7
    first = runner(keyed, 1)
    second = runner(keyed, 2)
    assert first._sample(logits, spec).tolist() == alone
    seconds = second._sample(logits, spec).tolist()
    # a step of another engine while this one samples
    first.between = lambda: second._sample(logits, spec)
    assert (
        first._sample(logits, spec).tolist() == alone
        and second._sample(logits, spec).tolist() == seconds
    )


def test_other_engines_are_left_to_vllm(keyed):
    runner(keyed, 1)
    plain = VllmRunner(None, torch.device("cpu"))
    plain.between = None
    found = plain._sample(torch.randn(DRAFTS, VOCAB), SimpleNamespace(num_draft_tokens=[DRAFTS]))
    assert found.tolist() == [[-7] * (DRAFTS + 1)]
