"""Rows that enter, leave and move: each draft comes from the row's own text."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from longdraft_vllm import texts as module
from longdraft_vllm.proposers import Lookup, Suffix
from longdraft_vllm.texts import Known

METHODS = {"lookup": Lookup, "suffix": Suffix}
COUNT = 5
LONGEST = 200


def config(**options):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=COUNT),
        model_config=SimpleNamespace(max_model_len=LONGEST),
        scheduler_config=SimpleNamespace(max_num_seqs=3),
        additional_config={"longdraft": {"pace": "off"} | options},
    )


def propose(proposer, batch):
    """batch: (text, whether it has just got a token) for each row -> the drafts."""
    table = np.zeros((len(batch), LONGEST), dtype=np.int32)
    for row, (text, _) in enumerate(batch):
        table[row, : len(text)] = text
    lengths = np.array([len(text) for text, _ in batch])
    return proposer.propose(
        [[text[-1]] if new else [] for text, new in batch], lengths, table, slot_mappings=None
    )


def expected(method, text):
    """What a proposer drafts that has seen nothing else."""
    return propose(METHODS[method](config()), [(text, True)])[0]


def moving_rows(method, steps=60):
    """A batch like vLLM's: texts grow by a few tokens, rows are exchanged, dropped, taken back and
    replaced.
    """
    rng = random.Random(7)
    draw = lambda n: [rng.randrange(3) for _ in range(n)]  # noqa: E731
    shared = draw(30)
    proposer = METHODS[method](config())
    texts = [shared + draw(2) for _ in range(3)]
    paused = []
    drafted = 0
    for step in range(steps):
        for text in texts:
            text += draw(rng.randrange(1, 4))
        event = rng.randrange(5)
        if event == 0:
            rng.shuffle(texts)
        elif event == 1 and len(texts) > 1:
            paused.append(texts.pop(0))
        elif event == 2 and paused:
            texts.insert(0, paused.pop())
        elif event == 3:
            texts[-1] = shared[:]
        news = [rng.random() < 0.8 for _ in texts]
        found = propose(proposer, list(zip(texts, news, strict=True)))
        for text, new, draft in zip(texts, news, found, strict=True):
            assert draft == (
                expected(method, text) if new and len(text) + COUNT < LONGEST else draft
            ), step
            assert new or not draft
            drafted += len(draft)
        texts = [text for text in texts if len(text) < LONGEST - 20] or [shared[:]]
    assert drafted > 100


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_move_draft_from_their_own_text(method):
    moving_rows(method)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_that_keeps_another_rows_drafter_is_caught(method, monkeypatch):
    """The planted fault: what was read at a row is taken to be the row's, whoever is there now."""
    monkeypatch.setattr(Known, "begins", lambda self, text: len(self.text) <= len(text))
    with pytest.raises(AssertionError):
        moving_rows(method)


def test_a_paused_text_is_not_read_again(monkeypatch):
    read = []
    monkeypatch.setattr(module.Known, "__init__", counting(module.Known.__init__, read))
    proposer = Lookup(config())
    a = [1, 2, 3, 1, 2]
    b = [4, 5, 4, 5]
    propose(proposer, [(a, True), (b, True)])
    propose(proposer, [([*b, 4], True)])
    propose(proposer, [([*b, 4, 5], True), ([*a, 3], True)])
    assert len(read) == 2


def counting(call, calls):
    def counted(*args):
        calls.append(args)
        call(*args)

    return counted


@pytest.mark.parametrize("method", METHODS)
def test_drafts_fit_into_the_context(method):
    """The last drafted token leaves room for the token after it."""
    text = list(range(50)) * (LONGEST // 50)
    for n in range(LONGEST - COUNT - 2, LONGEST + 1):
        draft = propose(METHODS[method](config()), [(text[:n], True)])[0]
        assert len(draft) == max(min(COUNT, LONGEST - n - 1), 0)


def test_options_are_passed_on_and_checked():
    assert Lookup(config(n=1)).texts.make().n == 1
    with pytest.raises(ValueError, match="Lookup has no option m; its options are n, count"):
        Lookup(config(m=1))
