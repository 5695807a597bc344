"""`fill` in conversations whose messages are edited, and for requests of two owners: what is said
is what plain decoding says.
"""

from __future__ import annotations

import pytest
from support import tiny
from support.checks import SAMPLERS
from support.listed import BUILD

from longdraft import PrefixCache, Session, generate
from longdraft.engine.conversation import Conversation

NEW = 24
SEED = 3
MODELS = ("llama-loops", "qwen3.5")
# A model, the tokens of the first message, and of these how many an edit leaves.
EDITS = [
    *(("llama-loops", *lengths) for lengths in ((64, 40), (128, 128), (400, 1))),
    *(("qwen3.5-long", *lengths) for lengths in ((513, 512), (1060, 1027))),
    pytest.param("qwen3.5-long", 3000, 2500, marks=pytest.mark.full),
]


def said(model: str, prompt: list[int], sampler: str) -> list[int]:
    return generate(
        tiny.target(model),
        [prompt],
        max_new_tokens=NEW,
        sampler=SAMPLERS[sampler],
        seed=SEED,
        eos=(),
    )[0]


@pytest.mark.parametrize("model, length, kept", EDITS)
def test_messages_that_are_edited(model: str, length: int, kept: int) -> None:
    lm = tiny.target(model)
    talk = Conversation(lm)
    drafter = BUILD["fill"](lm)
    text, other, last = tiny.prompts(length, 33, 20, seed=length)
    drafted = 0
    for prompt in (text, text + other, text[:kept] + other, text[:kept] + other + last):
        steps = list(talk.answer(prompt, NEW, drafter))
        assert [t for step in steps for t in step.tokens[0]][:NEW] == said(model, prompt, "greedy")
        drafted += NEW - len(steps)
    assert drafted > 0 or model != "llama-loops"  # a text in circles has drafts that are accepted


@pytest.mark.each_value
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sampler", ["greedy", "T=1"])
def test_requests_of_two_owners(model: str, sampler: str) -> None:
    """They share the beginning of a prompt, a drafter and the memory of prompts."""
    lm = tiny.target(model)
    shared, *ends = tiny.prompts(140, 20, 31, seed=4)
    with Session(
        lm,
        BUILD["fill"](lm),
        2,
        400,
        SAMPLERS[sampler],
        chunk=64,
        prefixes=PrefixCache(4000, block=16),
    ) as session:
        asked = {}
        texts = dict[int, list[int]]()
        for owner, end in (("a", 0), ("b", 0), ("a", 1), ("b", 1)):
            prompt = shared + ends[end]
            asked[session.submit(prompt, NEW, seed=SEED, eos=(), owner=owner)] = prompt
        while session.running or session.waiting:
            for event in session.step():
                texts.setdefault(event.id, []).extend(event.tokens)
    for number, prompt in asked.items():
        assert texts[number] == said(model, prompt, sampler), number
