"""A step without drafts is sampled as vLLM's verification would: tokens, log-probabilities, random
numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from longdraft_vllm import contract
from longdraft_vllm.plain_steps import NAME, sample_plainly
from longdraft_vllm.repairs import repair_sampling
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

ROWS = 3
VOCAB = 50


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """As a worker for CPUs does, and then the plugin."""
    current_platform.register_triton_kernel_overrides()
    repair_sampling()


@pytest.fixture(params=["raw_logprobs", "processed_logprobs", "raw_logits"])
def sampler(request, monkeypatch) -> RejectionSampler:
    """As vLLM has it, though engines of other tests ran in this process, which is put back
    afterward.
    """
    monkeypatch.setattr(
        RejectionSampler,
        "forward",
        getattr(RejectionSampler.forward, NAME, RejectionSampler.forward),
    )
    return RejectionSampler(Sampler(request.param))


def asked(greedy: bool, logprobs: int | None, top_p: bool = True) -> SamplingMetadata:
    """Requests with penalties; unless they are greedy, with seeds, top-k and mostly top-p too."""
    given: dict[str, Any] = dict.fromkeys(SamplingMetadata.__dataclass_fields__)
    hot = torch.tensor([0.7, 1.3, 1.0])
    given |= {
        "temperature": None if greedy else hot,
        "all_greedy": greedy,
        "all_random": not greedy,
    }
    given |= {
        "generators": {} if greedy else {b: torch.Generator().manual_seed(b) for b in range(ROWS)}
    }
    if not greedy:
        given |= {
            "top_k": torch.full((ROWS,), 20),
            "top_p": torch.full((ROWS,), 0.9) if top_p else None,
        }
    given |= {"max_num_logprobs": logprobs, "no_penalties": False}
    given |= {
        "prompt_token_ids": torch.arange(12).view(ROWS, 4),
        "output_token_ids": [[7, 9], [3], [4, 4, 4]],
    }
    given |= {
        name: torch.full((ROWS,), 0.4) for name in ("frequency_penalties", "presence_penalties")
    }
    given |= {
        "repetition_penalties": torch.full((ROWS,), 1.2),
        "spec_token_ids": [[] for _ in range(ROWS)],
    }
    given |= {
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
    }
    return SamplingMetadata(**given)


def verified(drafts: list[list[int]]) -> SpecDecodeMetadata:
    """Each request has a row of logits for each of its drafts and one more, the bonus token's."""
    counts = torch.tensor([len(chain) for chain in drafts], dtype=torch.int32)
    bonus = (counts + 1).cumsum(0) - 1
    rows = torch.arange(int(bonus[-1]) + 1)
    tokens = torch.tensor([token for chain in drafts for token in chain], dtype=torch.int32)
    target = rows[~torch.isin(rows, bonus)]
    ends = counts.cumsum(0).int()
    return SpecDecodeMetadata(tokens, counts.tolist(), ends, (bonus + 1).int(), target, bonus, rows)


def sampled(sampler: RejectionSampler, drafts: list[list[int]], **more: Any) -> tuple[Any, ...]:
    """What it gives, and the next random number of each request."""
    found = replace(asked(**more), spec_token_ids=drafts)
    metadata = verified(drafts)
    logits = torch.randn(
        ROWS + sum(map(len, drafts)), VOCAB, generator=torch.Generator().manual_seed(5)
    )
    made = sampler(metadata, None, logits, found)
    probs = made.logprobs_tensors
    numbers = (
        [torch.zeros(0), torch.zeros(0)]
        if probs is None
        else [probs.logprobs, probs.logprob_token_ids]
    )
    following = [torch.rand(1, generator=g).item() for g in found.generators.values()]
    return made.sampled_token_ids.tolist(), following, *numbers


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Log-probabilities may be rounded differently."""
    equal = one[:2] == other[:2] and one[2].shape == other[2].shape
    return equal and torch.allclose(one[2], other[2], atol=1e-5) and torch.equal(one[3], other[3])


@pytest.mark.parametrize("logprobs", [None, 0, 4])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("drafts", [[[], [], []], [[5], [], [8, 9]]])
def test_it_changes_nothing(sampler, greedy, logprobs, drafts):
    before = sampled(sampler, drafts, greedy=greedy, logprobs=logprobs)
    assert sample_plainly() and not sample_plainly()
    assert same(sampled(sampler, drafts, greedy=greedy, logprobs=logprobs), before)


def test_only_steps_without_drafts_leave_the_verification_out(sampler, monkeypatch):
    calls = []
    verify = RejectionSampler.forward
    monkeypatch.setattr(
        RejectionSampler, "forward", lambda *given: calls.append(1) or verify(*given)
    )
    sample_plainly()
    for drafts in [[], [], []], [[5], [], []]:
        sampled(sampler, drafts, greedy=False, logprobs=None)
    assert calls == [1]


@pytest.mark.parametrize("repaired", [False, True])
def test_top_k_alone_does_not_end_the_engine(sampler, repaired):
    """As it does in vLLM 0.32.0 on CPUs. If this fails, vLLM is right again: drop the sentence in
    the README.
    """
    asks: dict[str, Any] = {"greedy": False, "logprobs": None, "top_p": False}
    if repaired:
        sample_plainly()
        assert len(sampled(sampler, [[], [], []], **asks)[0]) == ROWS
    else:
        with pytest.raises(RuntimeError, match="numel"):
            sampled(sampler, [[], [], []], **asks)


def test_leaving_it_out_where_something_was_drafted_is_noticed(sampler, monkeypatch):
    drafts: list[list[int]] = [[5], [], [8, 9]]
    sample_plainly()
    monkeypatch.setattr(SpecDecodeMetadata, "max_spec_len", 0, raising=False)
    monkeypatch.setattr(SpecDecodeMetadata, "__post_init__", lambda self: None)
    with pytest.raises(RuntimeError, match="size"):  # the rows of logits do not fit the requests
        sampled(sampler, drafts, greedy=True, logprobs=None)


def test_a_vllm_that_does_not_fit_is_left_as_it_is(sampler, monkeypatch):
    monkeypatch.setitem(
        contract.CONTRACT, "plain steps", [contract.Takes("vllm.platforms:nothing", "x")]
    )
    contract.fits.cache_clear()
    contract.check.cache_clear()
    assert not sample_plainly() and not hasattr(RejectionSampler.forward, NAME)
    contract.fits.cache_clear()
    contract.check.cache_clear()
