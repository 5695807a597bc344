"""Sampled outputs keep the target's law: a chi-square test over many requests with seeds of their
own.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from conftest import save_llama
from engine import METHODS, SELF, Request, run
from longdraft_vllm import proposers
from scipy.stats import chi2
from transformers import AutoModelForCausalLM
from vllm.v1.sample import rejection_sampler

VOCAB = 5
TOKENS = 3
REQUESTS = 2000
OF_VLLM = rejection_sampler.expand_batch_to_tokens
FALSE_ALARM = 1e-4  # of each of these tests, if the law is kept
PROMPT = [(3 * i * i + i // 7) % VOCAB for i in range(90)] + [1, 2, 3, 4] * 3


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    return save_llama(tmp_path_factory.mktemp("small"), VOCAB)


def law(model: str) -> dict[tuple[int, ...], float]:
    """The probability of each continuation of TOKENS tokens, by Transformers."""
    llama = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    texts = list(product(range(VOCAB), repeat=TOKENS))
    with torch.no_grad():
        logits = llama(torch.tensor([PROMPT + list(t) for t in texts])).logits[
            :, len(PROMPT) - 1 : -1
        ]
    p = logits.softmax(-1).gather(2, torch.tensor(texts)[..., None])[..., 0].prod(1)
    return dict(zip(texts, p.tolist(), strict=True))


def p_value(model: str, method: str) -> float:
    """How likely a difference from the law as great as the observed one is by chance."""
    requests = [
        Request(PROMPT, TOKENS + 1, sampling={"temperature": 1.0, "seed": seed})
        for seed in range(REQUESTS)
    ]
    options = {"keep_ratio": 0.2, "min_budget": 32} if method in SELF else {}
    found = run(model, method, requests, options, max_num_seqs=64, max_num_batched_tokens=512)
    assert found.drafted > REQUESTS / 2 and found.accepted > 0
    seen = Counter(tuple(output[:TOKENS]) for output in found.outputs)
    cells: list[tuple[float, int]] = []
    rare = 0.0
    rarely = 0
    for text, p in law(model).items():
        if p * REQUESTS >= 5:
            cells.append((p * REQUESTS, seen[text]))
        else:
            rare = rare + p * REQUESTS
            rarely = rarely + seen[text]
    if rare:
        cells.append((rare, rarely))
    statistic = sum((n - e) ** 2 / e for e, n in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


@pytest.mark.parametrize("method", METHODS)
def test_the_law_is_kept(small, method):
    assert p_value(small, method) > FALSE_ALARM


def test_a_sampler_that_accepts_too_much_is_caught(small, monkeypatch):
    """The planted fault: every first draft is accepted."""
    accept = rejection_sampler.rejection_sample

    def accept_more(draft_token_ids, num_draft_tokens, *args, **kwargs):
        found = accept(draft_token_ids, num_draft_tokens, *args, **kwargs)
        at = 0
        for row, n in enumerate(num_draft_tokens):
            if n:
                found[row, 0] = draft_token_ids[at]
            at += n
        return found

    monkeypatch.setattr(rejection_sampler, "rejection_sample", accept_more)
    assert p_value(small, "lookup") < FALSE_ALARM


def test_vllms_own_error_on_cpus_is_caught(small, monkeypatch):
    """Without the repair the law is wrong, whatever drafts. If this fails, vLLM is right again:
    drop the repair.
    """
    monkeypatch.setattr(proposers, "repair_sampling", lambda: False)
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", OF_VLLM)
    assert p_value(small, "lookup") < FALSE_ALARM
