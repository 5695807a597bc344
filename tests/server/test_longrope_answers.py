"""A model with other rotations for long texts: a short chat whose answer has no limit has those of
short texts.
"""

from __future__ import annotations

import logging
from functools import cache

import pytest
from support import borders, served
from support.borders import BORDER, POSITIONS
from support.served import client, said, serving, tokens_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longdraft.core import Sampler
from longdraft.engine import generate as engine
from longdraft.models.lm import LM

MOST = 40  # new tokens that the server allows
SHORT = "what is this"
NEAR = "q" * (BORDER - 12)
LONG = "q" * (BORDER + 1)


@cache
def tiny() -> tuple[LM, PreTrainedTokenizerFast]:
    made = Tokenizer(models.BPE({chr(i): i - 32 for i in range(32, 127)} | {"Ġ": 95}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}:"
    return LM(borders.longrope(), "phi3"), PreTrainedTokenizerFast(
        tokenizer_object=made, chat_template=template
    )


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(served, "loaded", tiny)
    monkeypatch.setattr(engine, "LIKELY", 16)
    with serving("lookup", session={"slots": POSITIONS}, most_new=MOST) as server:
        yield server


def answer(server, text: str, **more) -> tuple[str, int]:
    """What it says to a chat of one message, and in how many tokens."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "seed": 3,
        "ignore_eos": True,
    } | more
    with client(server) as http:
        found = http.post("/v1/chat/completions", json=body).json()
    assert found["choices"][0]["finish_reason"] == "length"
    return found["choices"][0]["message"]["content"], found["usage"]["completion_tokens"]


def plain(text: str, new: int) -> str:
    return said(tokens_of(f"{text}:"), Sampler(1.0), new=new)


@pytest.mark.full
def test_a_short_chat_has_the_rotations_of_short_texts(server):
    room = BORDER - len(SHORT)
    assert answer(server, SHORT) == (plain(SHORT, room), room)
    assert plain(SHORT, MOST)[:8] != plain(SHORT, room)[:8]


@pytest.mark.full
def test_a_chat_that_may_well_cross_the_border_has_those_of_long_texts(server):
    for text in (NEAR, LONG):
        assert answer(server, text) == (plain(text, MOST), MOST)


@pytest.mark.full
def test_a_limit_that_the_request_names_is_kept(server):
    for new in (4, 32):
        assert answer(server, SHORT, max_tokens=new) == (plain(SHORT, new), new)


@pytest.mark.full
def test_plans_for_all_that_the_server_allows_are_seen(monkeypatch, server):
    monkeypatch.setattr(engine, "LIKELY", POSITIONS)
    assert answer(server, SHORT) == (plain(SHORT, MOST), MOST)


def test_the_log_says_so(monkeypatch, caplog):
    monkeypatch.setattr(served, "loaded", tiny)
    with (
        caplog.at_level(logging.INFO, "longdraft.server"),
        serving("plain", session={"slots": POSITIONS}),
    ):
        lines = [r for r in caplog.records if "border of the model's rotations" in r.message]
    assert [r.__dict__["fields"]["tokens"] for r in lines] == [BORDER]


def test_other_models_are_planned_as_before():
    lm, _ = served.loaded()
    assert engine.likely(lm, 10, 4096) == 4096
