"""Engines that round differently agree with the target; engines that compute another model are told
apart.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny

from longdraft.bench.peers.agreement import FirstTokens, leading
from longdraft.bench.peers.base import CannotRun
from longdraft.core.sampling import Sampler
from longdraft.engine import generate as engine
from longdraft.engine.decode_session import DecodeSession


@pytest.fixture(params=[0.0, 1.0])
def session(request):
    """Prompts of a target that was read; sampled or not, first tokens are compared greedily."""
    target = tiny.target("llama")
    return DecodeSession(
        target, tiny.prompts(40, 30, vocab=target.vocab), 32, Sampler(request.param), 3, ()
    )


def greedy(session, prompts=None) -> list[list[int]]:
    return engine.generate(session.target, prompts or session.prompts, max_new_tokens=32, eos=())


def test_equal_output_agrees(session):
    plain = greedy(session)
    before = session.rows()
    first = FirstTokens()
    assert first.compare(session, "a", plain) == {
        "compared": 32,
        "equal": 32,
        "chosen": 32,
        "with": {},
    }
    assert session.rows() == before


def test_an_output_that_parts_at_a_tie_agrees(session):
    """After another second token, the rest is the model's own choice."""
    others = [[row[0], (row[1] + 1) % session.target.vocab] for row in greedy(session)]
    prompts = [p + row for p, row in zip(session.prompts, others, strict=True)]
    rows = [(row + more)[:32] for row, more in zip(others, greedy(session, prompts), strict=True)]
    first = FirstTokens()
    first.compare(session, "same", greedy(session))
    found = first.compare(session, "tied", rows)
    assert found == {"compared": 32, "equal": 1, "chosen": 31, "with": {"same": 1}}


@pytest.mark.parametrize(
    "wrong", ["noise", "repeated", "another model", "another prompt", "no token"]
)
def test_another_model_is_told_apart(session, wrong):
    vocab = session.target.vocab
    if wrong == "another model":
        rows = engine.generate(tiny.target("qwen3"), session.prompts, max_new_tokens=32, eos=())
    elif wrong == "another prompt":
        rows = greedy(session, [p[:-5] + p[:5] for p in session.prompts])
    else:
        noise = torch.randint(
            3, vocab, (2, 32), generator=torch.Generator().manual_seed(1)
        ).tolist()
        rows = {"noise": noise, "repeated": [[7] * 32] * 2, "no token": [[vocab] * 32] * 2}[wrong]
    with pytest.raises(
        CannotRun, match=r"it does not compute this model: of its first 32 tokens [0-7] equal"
    ):
        FirstTokens().compare(session, wrong, rows)


def test_one_wrong_row_is_enough(session):
    plain = greedy(session)
    with pytest.raises(CannotRun, match="0 equal"):
        FirstTokens().compare(
            session, "a", [plain[0], [(t + 1) % session.target.vocab for t in plain[1]]]
        )


def test_leading_counts_the_row_that_agrees_least():
    assert leading([[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [1, 9, 3]]) == 1
    assert leading([[1, 2]], [[1, 2, 3]]) == 2
