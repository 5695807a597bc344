"""Attention over keys of 8 bits is compared with full precision, and both are asked for numbers."""

from __future__ import annotations

import json
from itertools import pairwise

import attention_divergence
import pytest
import torch

from longdraft.errors import InputError
from longdraft.models.loading import load

SMALL = ["-m", "bundled", "--contexts", "96,200", "--last", "64", "--hidden", "3"]
TEXT = "The captain looked at the sea, and the sea was gray.\n" * 60


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.full
def test_both_are_measured(text, tmp_path):
    code = tmp_path / "code.py"
    code.write_text("def area(width, height):\n    return width * height\n\n" * 60)
    out = tmp_path / "out.jsonl"
    assert attention_divergence.main([*SMALL, str(text), str(code), "--out", str(out)]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["text"], r["context"]) for r in records] == [
        (name, n) for name in ("text.txt", "code.py") for n in (96, 200)
    ]
    for r in records:
        assert 0 < r["nats"] < 0.02 and r["same"] > 0.9 and r["tokens"] <= 64
        assert r["hidden"] == 3 and 0 <= r["equal"] <= 3 and r["kv"] == "int8"


@torch.inference_mode()
def test_a_model_does_not_differ_from_itself_and_another_one_does(text):
    exact, tokenizer = load("bundled", "float32")
    other, _ = load("bundled", "float32", weights="int4")
    passage = attention_divergence.Passage(text, 96, tokenizer)
    same = attention_divergence.divergence([exact, exact], passage, 48)
    assert same["nats"] == 0 and same["same"] == 1
    differs = attention_divergence.divergence([exact, other], passage, 48)
    assert differs["nats"] > 0.001


def test_numbers_are_hidden_at_equal_distances_and_asked_for(text):
    _, tokenizer = load("bundled", "float32")
    passage = attention_divergence.Passage(text, 200, tokenizer)
    tokens, asked = passage.hidden(4, 0)
    whole = tokenizer.decode(tokens)
    places = [whole.index(number) for _, number in asked]
    gaps = [b - a for a, b in pairwise(places)]
    assert len(asked) == 4 and max(gaps) < 1.3 * min(gaps)
    assert all(number not in tokenizer.decode(question) for question, number in asked)


def test_a_short_text_is_refused(text):
    _, tokenizer = load("bundled", "float32")
    with pytest.raises(InputError, match=r"fewer than 100000 tokens"):
        attention_divergence.Passage(text, 100_000, tokenizer)
