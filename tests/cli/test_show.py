"""Text and figures as they are printed."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.place import words
from transformers import AutoModelForCausalLM

from longdraft.bench.inputs import stdlib_prompt
from longdraft.cli.show import summary, verdict
from longdraft.engine.decode_session import DecodeSession, first_difference
from longdraft.models.loading import load
from longdraft.models.text import Detokenizer, text_of


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_character_is_broken(place, size):
    tokenizer = load("tiny", "float32")[1]
    text = "naïve été 日本 🎉🎉 – fin\n  ü"
    ids = tokenizer(text)["input_ids"]
    stream = Detokenizer(tokenizer)
    pieces = [stream.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    assert "".join([*pieces, stream.flush()]) == text == text_of(tokenizer, ids)
    assert all("\ufffd" not in p for p in pieces)


def test_half_a_character_at_the_end_is_shown_at_the_end(place):
    tokenizer = load("tiny", "float32")[1]
    ids = tokenizer("a🎊")["input_ids"][:-1]
    stream = Detokenizer(tokenizer)
    assert "\ufffd" not in "".join(stream.push([i]) for i in ids)
    assert "\ufffd" in stream.flush() and stream.flush() == ""


def test_first_difference_is_the_earliest_with_its_gap(place):
    target, tokenizer = load("tiny", "float32")
    prompts = [tokenizer(words(n, n))["input_ids"] for n in (20, 30)]
    runs = DecodeSession(target, prompts, 12)
    plain = runs.rows()
    assert first_difference(runs, plain, runs.rows()) is None
    other = [list(row) for row in plain]
    other[0][9] += 1
    other[1][6] += 1
    found = first_difference(runs, plain, other)
    assert found is not None and (found["row"], found["position"]) == (1, 6)
    with torch.no_grad():
        hf = AutoModelForCausalLM.from_pretrained(
            "tiny", dtype=torch.float32, attn_implementation="eager"
        )
        best = hf(torch.tensor([prompts[1] + plain[1][:6]])).logits[0, -1].topk(2).values
    assert found["top2_gap"] == pytest.approx(float(best[0] - best[1]), abs=1e-3)
    assert "row 2, new token 7" in verdict(found, True)
    assert runs.rows(limit=5) == [row[:5] for row in plain]


def test_figures_say_what_is_not_equal():
    words = {
        "method": "vegas",
        "new_tokens": [3, 4],
        "prompt_tokens": [5, 6],
        "decode_s": 1.0,
        "tokens_per_s": 7.0,
        "start_s": 0.0,
    }
    words |= {
        "mean_acceptance_length": 2.0,
        "accepted_by_source": {"block": 1, "n-grams": 3},
        "prefill_s": 0.5,
        "plain": {"tokens_per_s": 3.5},
        "speedup": 2.0,
    }
    words |= {"exact": True, "speedup_end_to_end": 1.4, "speedup_steady": 2.0}
    words |= {"equal": False, "first_difference": {"row": 0, "position": 3, "top2_gap": 0.015}}
    line = summary(words)
    assert "7 tokens" in line and "prefill of 11 tokens" in line
    assert "mean acceptance length 2.00 (drafts from n-grams 75%, block 25%)" in line
    assert "(drafts from" not in summary(words | {"accepted_by_source": {"block": 4}})
    assert "equal: no: new token 4, where the target's best two are 0.015 apart" in line


def test_stdlib_prompt(place):
    tokenizer = load("tiny", "float32")[1]
    ids, files = stdlib_prompt(tokenizer, 5000)
    more, more_files = stdlib_prompt(tokenizer, 60_000)
    assert len(ids) == 5000 and ids == more[:5000] and more_files[: len(files)] == files
    assert len(more_files) > 1 and all(f.endswith(".py") for f in more_files)
    sizes = [(Path(os.__file__).parent / f).stat().st_size for f in more_files]
    assert all(a <= b for a, b in pairwise(sizes))
