"""Texts of 1,000 to 3,000 tokens on a model with recurrent layers, and drafts as long as a prompt:
what is said is what plain decoding of the whole prompt says.
"""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from support import grammars, tiny

from longdraft import Sampler, Session, build, generate
from longdraft.core import Tree
from longdraft.core.states import RowStates
from longdraft.drafters import Drafter
from longdraft.engine.conversation import Conversation
from longdraft.models.lm import LM
from longdraft.prompts.prefix_cache import PrefixCache

NEW = 8


def said(prompt: list[int], new: int = NEW) -> list[int]:
    return generate(tiny.target("qwen3.5"), [prompt], max_new_tokens=new)[0]


# Conversations ------------------------------------------------------------------------------------


def answered(talk: Conversation, prompt: list[int], drafter: Drafter | None = None) -> list[int]:
    return [t for step in talk.answer(prompt, NEW, drafter) for t in step.tokens[0]]


def edited_twice(first: int, cut: int, more: int, again: int) -> bool:
    """Whether the last answer is right: a message is cut and goes on otherwise, and so again
    `again` tokens later.
    """
    talk, [text, other, last] = (
        Conversation(tiny.target("qwen3.5")),
        tiny.prompts(first, more, 20, seed=first),
    )
    for prompt in (text, (text := text[:cut] + other)):
        steps = talk.answer(prompt, 4)
        next(steps)
        steps.close()
    prompt = text[: cut + again] + last
    return answered(talk, prompt) == said(prompt)


@pytest.mark.parametrize(
    "case", [(545, 513, 65, 4), (1057, 1025, 65, 4), (1060, 1027, 66, 8)], ids=str
)
def test_a_message_that_is_edited_twice(case):
    assert edited_twice(*case)


@pytest.mark.full
@pytest.mark.weekly
def test_many_messages_that_are_edited_twice():
    for first in (1055, 1070, 1570, 2600):
        for cut in (1, 3, 5, 8):
            for more in (65, 80):
                assert edited_twice(first, first // 512 * 512 + cut, more, 4), (first, cut, more)


def test_states_of_the_text_that_was_left_would_be_noticed(monkeypatch):
    open_ = RowStates.open
    monkeypatch.setattr(
        RowStates, "open", lambda self, begin, end, left_out=0: open_(self, begin + left_out, end)
    )
    assert not edited_twice(545, 513, 65, 4)


@pytest.mark.parametrize("first", [1100, pytest.param(2500, marks=pytest.mark.full)])
def test_a_conversation_goes_on(first):
    """With answers of every length of a draft kept, and another end after the last checkpoint."""
    lm = tiny.target("qwen3.5")
    talk, [prompt, *more] = Conversation(lm), tiny.prompts(first, 70, 1, 20, seed=1)
    for new in more[:2]:
        prompt = prompt + answered(talk, prompt, build("lookup", lm)) + new
    prompt = prompt[:-30] + more[2]
    assert talk.known(prompt) == len(prompt) - 20
    assert answered(talk, prompt, build("lookup", lm)) == said(prompt)


# Sessions -----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("first", [1050, pytest.param(2600, marks=pytest.mark.full)])
def test_requests_with_one_beginning(first):
    """Texts that share their first tokens, one of them up to a checkpoint before the last; and one
    that goes on.
    """
    lm, [text, *ends] = tiny.target("qwen3.5"), tiny.prompts(first, 30, 70, seed=2)
    prompts = [text + ends[0], text + ends[1], text[:700] + ends[1]]
    with Session(
        lm, build("lookup", lm), 2, first + 200, Sampler(), chunk=300, prefixes=PrefixCache(8000)
    ) as session:
        texts = dict[int, list[int]]()

        def finish() -> None:
            while session.running or session.waiting:
                for event in session.step():
                    texts.setdefault(event.id, []).extend(event.tokens)

        ids = [session.submit(prompts[0], NEW, eos=())]
        finish()
        prompts.append(prompts[0] + texts[ids[0]] + ends[1])
        ids += [session.submit(p, NEW, eos=()) for p in prompts[1:]]
        finish()
    assert [texts[id] for id in ids] == [said(p) for p in prompts]


# Drafts as long as a prompt -----------------------------------------------------------------------


@cache
def long_text() -> tuple[list[int], list[int]]:
    """A prompt, and what is said after it."""
    [prompt] = tiny.prompts(60)
    return prompt, said(prompt, 260)


class Script(Drafter):
    """Drafts a chain of `deep` tokens, of which the first ones are those of a text, as many as the
    next of `right`.
    """

    max_depth = 200

    def __init__(self, text: list[int], prompt: int, deep: int, right: list[int]):
        self.text = text
        self.prompt = prompt
        self.deep = deep
        self.right = list(right)

    def grow(self, tree, seqs, limits):
        at = int(seqs.length[0]) - self.prompt
        right = self.right.pop(0) if self.right else 3
        wrong = [(t + 1) % 90 + 3 for t in self.text[at + right :]]
        tokens = [*self.text[at : at + right], *wrong, *[5] * self.deep][
            : min(self.deep, limits.depth)
        ]
        return Tree.chain(torch.cat([tree.tokens, torch.tensor([tokens], dtype=torch.long)], 1))


@pytest.mark.each_value
@pytest.mark.parametrize("deep", [63, 100, 127, 128, 150])
@pytest.mark.parametrize("where", ["native", "eager"])
def test_a_long_chain_of_drafts_is_not_taken_for_a_prompt(where, deep):
    """Of a prompt all is committed; of drafts only the first tokens may be, and what follows is
    read from these.
    """
    lm = LM(tiny.stock("qwen3.5"))
    text = long_text()
    if where == "eager":
        lm.backend = lm.eager
    drafter = Script(text[1], len(text[0]), deep, [1, 40, deep, 0, 33, 70])
    assert generate(lm, [text[0]], drafter, max_new_tokens=len(text[1]))[0] == text[1]


@pytest.mark.full
@pytest.mark.parametrize("rows", [(40,), (40, 30)], ids=str)
def test_a_long_text_that_a_grammar_forces(rows):
    lm = tiny.target("qwen3.5")
    constraints = grammars.constraints()
    letters = random.Random(1)
    forced = "".join(letters.choice("bcdefghijklm") for _ in range(140))
    given = {
        "max_new_tokens": 132,
        "sampler": Sampler(constraint=constraints.choice([forced])),
        "eos": (2,),
    }
    prompts = tiny.prompts(*rows)
    assert generate(lm, prompts, build("lookup", lm), **given) == generate(lm, prompts, **given)
