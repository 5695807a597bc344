"""From text on a machine to rows of tokens, and what each step does with them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from support import tiny

from longdraft.errors import InputError
from longdraft.training import data, rows
from longdraft.training.schedule import Plan, parse_stages


def test_packages_are_grouped_capped_and_cleaned(tmp_path):
    for name, text in {
        "a.py": "x = 1\n" * 100,
        "deep/b.py": "y = 2\n" * 100,
        "deep/tests/c.py": "z = 3\n" * 100,
        "deep/_vendor/d.py": "z = 3\n" * 100,
        "deep/generated.py": "z = " + "3" * 5000,
        "deep/tiny.py": "z = 3\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = data.package("pack", tmp_path, cap=10**6)
    assert [(d.name, d.group) for d in found] == [
        ("pack/a.py", "pack"),
        ("pack/deep/b.py", "pack/deep"),
    ]
    assert len(data.package("pack", tmp_path, cap=700)) == 1


def test_rows_are_consecutive_in_one_group_and_pure():
    corpus = tiny.corpus()
    settings = {"code": 0.5, "copies": 0.0, "vocab": 1000}
    kinds = []
    for step in range(60):
        tokens, labels, sources = rows.batch(corpus, 3, 24, 7, step, **settings)
        assert (sources == rows.IGNORE).all()
        assert (
            tokens.shape == (3, 25) and (tokens.diff() == 1).all() and torch.equal(tokens, labels)
        )
        kinds += (tokens[:, 0] >= 300).tolist()
        assert torch.equal(tokens, rows.batch(corpus, 3, 24, 7, step, **settings)[0])
    assert 60 < sum(kinds) < 120
    assert not torch.equal(tokens, rows.batch(corpus, 3, 24, 8, 59, **settings)[0])
    assert (rows.batch(corpus, 3, 200, 7, 0, **settings)[0] >= 300).all()
    with pytest.raises(InputError, match="501 tokens"):
        rows.batch(corpus, 1, 500, 7, 0, **settings)


def test_repeated_spans_can_be_foreseen_and_the_rest_is_not_scored():
    changed = 0
    masked = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        before = rng.integers(1, 10**12, 513)
        row = before.copy()
        label = before.copy()
        source = np.full(513, rows.IGNORE)
        rows.repeat_spans(row, label, source, rng, 10**12)
        scored = label != rows.IGNORE
        assert (label[scored] == row[scored]).all()
        new = np.flatnonzero(row != before)
        # first place of every value
        places = {int(v): i for i, v in reversed(list(enumerate(row)))}
        for i in new[
            scored[new]
        ]:  # tokens here are unique, so whatever is new and scored stood there before, in order
            place = places[int(row[i])]
            assert place < i and row[place - 1] == row[i - 1] and source[i] == place
        assert (source[row == before] == rows.IGNORE).all()
        changed = changed + len(new)
        masked = masked + (~scored).sum()
    assert 0.2 < changed / 200 / 513 < 0.6 and 0.02 < masked / 200 / 513 < 0.4


def test_schedule_is_warmed_up_constant_and_decays_to_the_end():
    plan = Plan(((8, 60), (32, 30)), step_tokens=16, decay=0.5)
    assert plan.steps == 90 and plan.shape(59) == (2, 8) and plan.shape(60) == (1, 32)
    assert plan.tokens(60) == 960 and plan.tokens(90) == 1920
    rates = [plan.rate(step) for step in range(90)]
    assert rates[0] < 0.2 and rates[20:60] == [1.0] * 40 and rates[60] == 1.0
    assert all(a > b for a, b in pairwise(rates[60:])) and 0 < rates[-1] < 0.05


@pytest.mark.parametrize(
    "text", ["512", "x:3", "512:", "4:10", "512:0", "-8:3", "512:1.5", "1024:5"]
)
def test_bad_stages(text):
    with pytest.raises(InputError, match="--stage"):
        parse_stages([text], positions=512)


def test_a_seed_may_be_negative_and_others_draw_as_ever():
    for seed, taken in ((5, 5), ((1 << 64) - 1, (1 << 64) - 1), (-1, (1 << 64) - 1)):
        assert rows.generator(seed, 7, 1).random() == np.random.default_rng([taken, 7, 1]).random()
    assert rows.generator(-2, 7).random() != rows.generator(2, 7).random()
