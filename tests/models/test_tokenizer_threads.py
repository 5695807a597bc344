"""A tokenizer that several threads share gives each of them what it gives one alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
from transformers import AutoTokenizer

from longdraft.models import text as reading
from longdraft.models.chat import chat_tokens
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


@pytest.mark.full
def test_the_broken_variant_is_caught(tokenizer):
    assert any(wrong(shared_flag, tokenizer) for _ in range(50))


CHAT = "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"


def chats_and_completions(tokenizer) -> int:
    """How many of 360 conversations and prompts (as text, and with special tokens) differ in 6
    threads.
    """
    tokenizer.chat_template = CHAT

    def read(i: int) -> list[int]:
        kind = i % 3
        text = TEXTS[i // 3 % len(TEXTS)]
        if kind == 2:
            return chat_tokens(tokenizer, [{"role": "user", "content": text}])
        return token_ids(tokenizer, text, control=bool(kind))

    alone = [read(i) for i in range(3 * len(TEXTS))]
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(read, range(360)))
    return sum(one != alone[i % len(alone)] for i, one in enumerate(found))


@pytest.mark.full
def test_chats_and_completions_in_six_threads(tokenizer, monkeypatch):
    assert chats_and_completions(tokenizer) == 0
    monkeypatch.setattr(reading, "_reader", lambda tokenizer, control: tokenizer)
    assert any(chats_and_completions(tokenizer) for _ in range(50))  # the broken variant is caught


def longest_wait(call: Callable[[], object]) -> float:
    """The longest time that another thread did not run while a call did, as a share of the call's
    time.

    In processor time of this process, because other processes may be busy too.
    """
    with ThreadPoolExecutor(1) as pool:
        begin = last = time.process_time()
        longest = 0.0
        running = pool.submit(call)
        ended = False
        while not ended:
            time.sleep(0.001)
            ended = running.done()  # before the clock is read, so a call has a sample after its end
            now = time.process_time()
            longest = max(longest, now - last)
            last = now
        return longest / (last - begin)


@pytest.mark.full
@pytest.mark.timing
def test_a_long_text_does_not_stop_other_threads(tokenizer):
    """The event loop is one. `encode` of the Rust tokenizer keeps the interpreter's lock;
    `encode_batch` does not.
    """
    tokenizer.chat_template = CHAT
    text = "import os\n\ndef walk(path): for name in path\n" * 5000
    chat_tokens(tokenizer, [{"role": "user", "content": "x"}])
    assert longest_wait(lambda: token_ids(tokenizer, text)) < 0.5
    assert longest_wait(lambda: chat_tokens(tokenizer, [{"role": "user", "content": text}])) < 0.5
    assert longest_wait(lambda: tokenizer.backend_tokenizer.encode(text)) > 0.5


def test_tokens_that_are_added_later_are_read(tokenizer):
    assert len(token_ids(tokenizer, "<|new|>", control=True)) > 1
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    assert token_ids(tokenizer, "<|new|>", control=True) == [
        tokenizer.convert_tokens_to_ids("<|new|>")
    ]
    assert len(token_ids(tokenizer, "<|new|>")) > 1
