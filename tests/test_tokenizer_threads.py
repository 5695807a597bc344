"""A tokenizer that several threads share gives each of them what it gives one alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
from transformers import AutoTokenizer

from longdraft.models.loading import BUNDLED
from longdraft.models.text import token_ids

TEXTS = [f"<|endoftext|>{'word ' * n}<|endoftext|>" for n in (1, 20, 300)]
CALLS = [(text, control) for text in TEXTS for control in (False, True)] * 60


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(BUNDLED)


def shared_flag(tokenizer, text: str, control: bool) -> list[int]:
    """The broken variant: every call sets the flag of one tokenizer and then reads it."""
    return list(tokenizer(text, verbose=False, split_special_tokens=not control)["input_ids"])


def wrong(read, tokenizer) -> int:
    """How many of the calls in 6 threads differ from a call alone."""
    alone = {call: shared_flag(deepcopy(tokenizer), *call) for call in set(CALLS)}
    assert all(alone[text, True] != alone[text, False] for text in TEXTS)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda call: read(tokenizer, *call), CALLS))
    return sum(a != alone[call] for a, call in zip(found, CALLS, strict=True))


def test_six_threads_read_special_tokens_and_plain_text(tokenizer):
    assert wrong(token_ids, tokenizer) == 0


def test_the_broken_variant_is_caught(tokenizer):
    assert any(wrong(shared_flag, tokenizer) for _ in range(50))


def test_tokens_that_are_added_later_are_read(tokenizer):
    assert len(token_ids(tokenizer, "<|new|>", control=True)) > 1
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    assert token_ids(tokenizer, "<|new|>", control=True) == [tokenizer.convert_tokens_to_ids("<|new|>")]
    assert len(token_ids(tokenizer, "<|new|>")) > 1
