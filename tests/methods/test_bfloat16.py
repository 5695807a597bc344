"""In bfloat16 too, every method says what plain decoding says, and no row knows its neighbors.

For serve see test_continuous, for requests that come and go test_session.
"""

from __future__ import annotations

from functools import cache

import pytest
from support import tiny
from support.checks import SAMPLERS, SEED, check_lossless
from support.listed import BUILD, FROM_TEXT, ROWS, each_method_on, exact, full

from longdraft import generate, row_seed

MODELS = ("llama-bf16", "qwen3-bf16")
NEW = 16
OPTIONS = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"]}


@pytest.mark.each_value
@each_method_on(*MODELS)
@pytest.mark.parametrize(
    "sampler", ["greedy", pytest.param("T=1", marks=full), "T=1 min-p penalty"]
)
def test_one_row_is_plain_decoding(model, sampler, method):
    stats = check_lossless(BUILD[method], exact(model), SAMPLERS[sampler], new=NEW)
    assert stats.steps < NEW or method in FROM_TEXT | {"auto"}


@cache
def plain_alone(model: str) -> list[list[int]]:
    """Each of three rows by itself, without drafts."""
    lm = tiny.target(model)
    prompts = tiny.prompts(*ROWS["3 rows"])
    return [generate(lm, [p], seed=row_seed(SEED, b), **OPTIONS)[0] for b, p in enumerate(prompts)]


@pytest.mark.each_value
@each_method_on(*MODELS)
def test_three_rows_say_what_each_says_alone(model, method):
    lm = tiny.target(exact(model))
    prompts = tiny.prompts(*ROWS["3 rows"])
    together = generate(lm, prompts, BUILD[method](lm), seed=SEED, **OPTIONS)
    assert together == plain_alone(model)
    for b, prompt in enumerate(prompts):
        assert generate(lm, [prompt], BUILD[method](lm), seed=row_seed(SEED, b), **OPTIONS) == [
            together[b]
        ]
