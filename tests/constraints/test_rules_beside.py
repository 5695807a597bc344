"""Beside a constraint a model's rules change which of the allowed tokens is chosen, and never that
one of them is.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import grammars, tiny
from support.grammars import END, after, grammar, logits_after
from support.listed import BUILD
from transformers import GenerationConfig

from longdraft import Sampler, generate
from longdraft.constraints import Grammar
from longdraft.core import Rules, processors, sampling
from longdraft.core.processors import chain


def tokens_of(text: str) -> list[int]:
    return grammars.tokenizer()(text, add_special_tokens=False)["input_ids"]


NEW = 60
RULES: dict[str, dict[str, Any]] = {
    "min_new_tokens": {"min_new_tokens": 30},
    "no_repeat_ngram_size 1": {"no_repeat_ngram_size": 1},
    "no_repeat_ngram_size 2": {"no_repeat_ngram_size": 2},
    "suppress_tokens": {"suppress_tokens": tokens_of('"')},
    "begin_suppress_tokens": {"begin_suppress_tokens": tokens_of("rg{")},
    "bad_words_ids": {"bad_words_ids": [tokens_of('"'), tokens_of("ed")]},
    "forced_eos_token_id": {"forced_eos_token_id": END},
    "forced_bos_token_id": {"forced_bos_token_id": 0},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (2, 1.5)},
    "sequence_bias": {"sequence_bias": [[tokens_of('"'), -200.0], [[END], 200.0]]},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "invalid values and no repeats": {"remove_invalid_values": True, "no_repeat_ngram_size": 1},
}


def sampler_of(name: str, kind: str, temperature: float = 0.0) -> Sampler:
    rules = Rules.of(GenerationConfig(eos_token_id=END, **RULES[name]), 96)
    return Sampler(temperature, top_p=0.9, top_k=5, constraint=grammar(kind), rules=rules)


def by_hand(sampler: Sampler, prompt: list[int], new: int) -> list[int]:
    """Greedy decoding: of the tokens that may follow, the best by Transformers' processors, if they
    leave one.
    """
    lm = tiny.target("llama")
    text = list[int]()
    assert isinstance(sampler.constraint, Grammar) and sampler.rules is not None
    steps = chain(
        sampler.rules.settings, (END,), len(prompt), len(prompt) + new, 96, torch.device("cpu")
    )
    while len(text) < new and END not in text:
        allowed = sorted(after(sampler.constraint, text) or ())
        plain = logits_after(lm, prompt + text)
        scores = torch.full((1, 96), -torch.inf)
        scores[0, allowed] = plain[allowed]
        for step in steps:
            scores = step(torch.tensor([prompt + text]), scores)
        left = scores[0, allowed]
        left = left if (left > torch.finfo(left.dtype).min).any() else plain[allowed]
        text.append(allowed[int(left.argmax())])
    return text


def decoded(sampler: Sampler, method: str | None, prompt: list[int], new: int = NEW) -> list[int]:
    lm = tiny.target("llama")
    drafter = None if method is None else BUILD[method](lm)
    return generate(lm, [prompt], drafter, max_new_tokens=new, sampler=sampler, seed=3, eos=(END,))[
        0
    ]


def check(name: str, kind: str, temperature: float = 0.0, new: int = NEW) -> None:
    """Every token may follow, the text is written by hand where it is greedy, and drafts change
    nothing.
    """
    (prompt,) = tiny.prompts(70)
    sampler = sampler_of(name, kind, temperature)
    plain = decoded(sampler, None, prompt, new)
    for i, token in enumerate(plain):
        assert token in (after(grammar(kind), plain[:i]) or ()), (i, grammars.said(plain[:i]))
    if temperature == 0:
        assert plain == by_hand(sampler, prompt, new)
    assert decoded(sampler, "vegas tree", prompt, new) == plain


@pytest.mark.full
@pytest.mark.parametrize("kind", ["schema", "choice"])
@pytest.mark.parametrize("name", sorted(RULES))
def test_rules_never_break_a_constraint(name, kind):
    check(name, kind)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(RULES))
def test_nor_in_sampled_text_that_is_cut(name):
    """At the limit a model may force its end token, which may not follow there."""
    check(name, "schema", 1.0, new=23)


def test_rules_have_their_effect_where_they_leave_a_token():
    """The three choices begin with r and g: the model prefers r, and where both are suppressed that
    is void.
    """
    (prompt,) = tiny.prompts(70)
    red = tokens_of("r") + tokens_of("re")
    green = tokens_of("g")

    def written(suppressed: list[int]) -> str:
        rules = Rules.of(GenerationConfig(eos_token_id=END, suppress_tokens=suppressed), 96)
        return grammars.said(
            decoded(Sampler(constraint=grammar("choice"), rules=rules), None, prompt)
        )

    assert written([]) == "red" == written(red + green) and written(red) in ("green", "gray")


FAULTS = {
    "rules after the constraint": lambda constrained, processed: processed,
    "rules without an effect": lambda constrained, processed: constrained,
    "tokens that rules bring back": lambda constrained, processed: torch.where(
        (processed == -torch.inf).all(-1, keepdim=True), constrained, processed
    ),
}


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_is_caught(fault, monkeypatch):
    monkeypatch.setattr(sampling, "within", FAULTS[fault])
    # these checks must see it, not the library
    monkeypatch.setattr(Grammar, "failure", lambda self, rows, row: "")
    with pytest.raises(AssertionError):
        for name in sorted(RULES):
            check(name, "choice")
            check(name, "schema", 1.0, new=23)


def test_within_is_what_its_docstring_says():
    low = torch.finfo(torch.float32).min
    constrained = torch.tensor([[1.0, -torch.inf, 2.0]])
    for given, expected in (
        ([0.5, 9.0, -torch.inf], [0.5, -torch.inf, -torch.inf]),
        ([-torch.inf, 0.0, -torch.inf], [1.0, -torch.inf, 2.0]),
        ([low, torch.nan, -torch.inf], [1.0, -torch.inf, 2.0]),
    ):
        assert torch.equal(
            processors.within(constrained, torch.tensor([given])), torch.tensor([expected])
        )
