"""In Transformers' `generate` a constraint does what it does in `longdraft.generate`, before the
processors.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.grammars import END, after, grammar

import longdraft
from longdraft import Sampler

MODEL = tiny.stock("llama")
OPTIONS = {
    "max_new_tokens": 30,
    "eos_token_id": END,
    "pad_token_id": 0,
    "method": "vegas",
    "gamma": 3,
    "min_budget": 16,
}


@pytest.mark.parametrize("kind", ["schema", "choice"])
def test_text_is_that_of_generate(kind):
    (prompt,) = tiny.prompts(41)
    out = MODEL.generate(
        torch.tensor([prompt]),
        custom_generate=longdraft.hf_generate,
        constraint=grammar(kind),
        do_sample=False,
        **OPTIONS,
    )
    sampler = Sampler(constraint=grammar(kind))
    expected = longdraft.generate(
        tiny.target("llama"), [prompt], max_new_tokens=30, sampler=sampler, eos=(END,)
    )
    assert out[0, len(prompt) :].tolist() == expected[0]


def test_processors_see_the_scores_after_it():
    """A penalty on repeated tokens makes a sampler of processors; each token is still one that may
    follow.
    """
    (prompt,) = tiny.prompts(41)
    out = MODEL.generate(
        torch.tensor([prompt]),
        custom_generate=longdraft.hf_generate,
        constraint=grammar(),
        do_sample=True,
        no_repeat_ngram_size=9,
        seed=3,
        **OPTIONS,
    )
    row = out[0, len(prompt) :].tolist()
    assert (
        all(token in (after(grammar(), row[:i]) or ()) for i, token in enumerate(row))
        and len(row) > 10
    )


@pytest.mark.each_value
@pytest.mark.parametrize(
    "rules",
    [
        {"bad_words_ids": [[i] for i in range(3, 60)]},
        {"min_new_tokens": 30},
        {"suppress_tokens": list(range(60, 96))},
        {"forced_eos_token_id": END},
        {"bad_words_ids": [[i] for i in range(3, 60)], "do_sample": True, "top_k": 3},
    ],
    ids=lambda rules: " ".join(rules),
)
@pytest.mark.parametrize("kind", ["schema", "choice"])
def test_no_processor_breaks_a_constraint(kind, rules):
    (prompt,) = tiny.prompts(41)
    out = MODEL.generate(
        torch.tensor([prompt]),
        custom_generate=longdraft.hf_generate,
        constraint=grammar(kind),
        seed=3,
        **({"do_sample": False} | rules | OPTIONS),
    )
    row = out[0, len(prompt) :].tolist()
    row = row[: row.index(END) + 1] if END in row else row
    assert all(token in (after(grammar(kind), row[:i]) or ()) for i, token in enumerate(row))
    assert row[-1] == END or len(row) == 30
