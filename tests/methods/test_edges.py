"""Where a text begins and ends: its first token, its end token, its limit, the model's last
position.
"""

from __future__ import annotations

import pytest
from support import tiny
from support.checks import PENALTY, SAMPLERS, SEED, check_eos, check_lossless, plain
from support.listed import BUILD, each_method, each_method_on, each_sampler

from longdraft import InputError, generate, stream

INSIDE = {"llama": (70, 31), "gpt-oss": (70, 31, 50), "mistral-window": (24, 1, 70)}


@pytest.mark.each_value
@each_method_on(*INSIDE)
def test_an_end_token_inside_an_accepted_branch(model, method):
    check_eos(BUILD[method], model, INSIDE[model])


def test_the_end_token_cases_do_end_inside_branches():
    """The full view accepts 3 drafts a step, so tokens 1-3, 5-7 and 9-11 of the output are accepted
    ones.
    """
    lm = tiny.target("llama")
    full = plain("llama", SAMPLERS["T=1"], (70,), 24)[0]
    inside = 0
    for at in range(2, 12):
        options = {
            "max_new_tokens": 24,
            "sampler": SAMPLERS["T=1"],
            "seed": SEED,
            "eos": (full[at],),
        }
        steps = [
            s.tokens[0] for s in stream(lm, tiny.prompts(70), BUILD["full view"](lm), **options)
        ]
        assert steps[-1][-1] == full[at]
        inside += len(steps[-1]) < 4
    assert inside > 3


@pytest.mark.each_value
@each_method_on("llama", "gpt-oss")
@pytest.mark.parametrize("new", [1, 2, 3])
def test_few_new_tokens(model, method, new):
    check_lossless(BUILD[method], model, PENALTY, (40, 20), new)


FEW = {"llama": [(1,), (2, 1, 60)], "gpt-oss": [(16, 17)], "mistral-window": [(23, 24, 25)]}


@pytest.mark.each_value
@each_method_on(*FEW)
@each_sampler
def test_short_prompts(model, method, sampler):
    """One token; as many as the budget or a model's own window; one more: alone and beside a long
    one.
    """
    for lengths in FEW[model]:
        check_lossless(BUILD[method], model, sampler, lengths)


@pytest.mark.each_value
@each_method_on("llama", "gpt-oss", "mistral-window")
def test_the_last_position_of_the_model(method, model):
    """Rows that end at the very last position, while branches would reach beyond it."""
    positions = tiny.target(model).positions
    check_lossless(BUILD[method], model, SAMPLERS["T=1"], (positions - 14, positions - 40), new=14)


def test_one_position_too_many_is_refused():
    lm = tiny.target("llama")
    with pytest.raises(InputError, match="give at most 14 new tokens"):
        generate(lm, tiny.prompts(lm.positions - 14), max_new_tokens=15)


@each_method
def test_a_drafter_can_be_used_again(method):
    """What a drafter learned of one text must not leak into the next one."""
    drafter = BUILD[method](tiny.target("llama"))
    for lengths in ((70,), (31, 50), (20,)):
        check_lossless(lambda t: drafter, "llama", SAMPLERS["T=1"], lengths)


BAD_INPUT = {
    "no new tokens": ({"max_new_tokens": 0}, [[3]], "give 1 or more"),
    "negative": ({"max_new_tokens": -4}, [[3]], "give 1 or more"),
    "huge": ({"max_new_tokens": 10**9}, [[3]], "give at most 511 new tokens"),
    "no prompt": ({}, [], "no tokens"),
    "empty prompt": ({}, [[3], []], "no tokens"),
    "long prompt": ({}, [[3] * 600], "a shorter prompt"),
    "token above the vocabulary": ({}, [[3, 96]], "prompt token 96"),
    "negative token": ({}, [[-1]], "prompt token -1"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line(case):
    options, prompts, words = BAD_INPUT[case]
    with pytest.raises(InputError, match=words) as error:
        next(stream(tiny.target("llama"), prompts, **options))
    assert "\n" not in str(error.value)
