"""Text written many rows at a time is what the model says after each prompt alone."""

from __future__ import annotations

import pytest
from support import tiny

from longdraft.engine import generate as engine
from longdraft.training import writing

PROMPTS = tiny.prompts(9, 21, 4, seed=5)


def check(rows: int) -> None:
    lm = tiny.target("llama")
    wanted = [engine.generate(lm, [p], max_new_tokens=12, eos=())[0] for p in PROMPTS]
    assert list(writing.by_generate(lm, PROMPTS, rows, 12, 0.0, 0, ())) == wanted
    end = wanted[1][3]  # an end token cuts a row, and stays
    cut = [w[: w.index(end) + 1] if end in w else w for w in wanted]
    assert list(writing.by_generate(lm, PROMPTS, rows, 12, 0.0, 0, (end,))) == cut != wanted


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_greedy_text_is_that_of_each_prompt_alone(rows):
    check(rows)


def test_a_row_that_reads_another_rows_padding_is_noticed(monkeypatch):
    """A planted fault: what pads a row is not masked."""
    lm = tiny.target("llama")
    generate = type(lm.hf).generate

    def careless(self, tokens, attention_mask, **options):
        return generate(self, tokens, attention_mask=attention_mask.fill_(1), **options)

    monkeypatch.setattr(type(lm.hf), "generate", careless)
    with pytest.raises(AssertionError):
        check(3)


@pytest.mark.full
def test_sampled_text_is_that_of_its_seed():
    lm = tiny.target("llama")
    first, again, other = (
        list(writing.by_generate(lm, PROMPTS, 2, 12, 1.0, seed, ())) for seed in (1, 1, 2)
    )
    assert first == again != other
