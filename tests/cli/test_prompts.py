"""What a user types is text: a special token that it spells is not that token, unless asked for."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer, ByT5Tokenizer

from longdraft.bench import inputs
from longdraft.cli import prompts
from longdraft.models.loading import BUNDLED
from longdraft.models.text import token_ids


def bundled():
    return AutoTokenizer.from_pretrained(BUNDLED), "<|endoftext|>"


def chatting():
    """With a special token added later, as a chat model's are."""
    found = bundled()[0]
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return found, "<|im_end|>"


def slow():
    return ByT5Tokenizer(), "</s>"


@pytest.mark.parametrize("made", [bundled, chatting, slow])
def test_special_tokens_in_a_text_are_text(made):
    tokenizer, word = made()
    special = tokenizer.convert_tokens_to_ids(word)
    text = f"a{word}b"
    plain = token_ids(tokenizer, text)
    parsed = token_ids(tokenizer, text, control=True)
    # what the tokenizer adds itself
    assert plain.count(special) == token_ids(tokenizer, "ab").count(special)
    assert parsed.count(special) == plain.count(special) + 1
    assert tokenizer.decode(token_ids(tokenizer, text, add_special_tokens=False)) == text
    assert tokenizer(text)["input_ids"] == parsed  # it is left as it was
    assert token_ids(tokenizer, "plain text, naïve") == token_ids(
        tokenizer, "plain text, naïve", control=True
    )


def test_a_tokenizer_that_never_reads_them_is_not_asked():
    class MistralCommonBackend:
        def __call__(self, text, verbose):
            return {"input_ids": (1, 2)}

    assert token_ids(MistralCommonBackend(), "x") == [1, 2]


def test_prompts_and_texts_that_are_measured():
    tokenizer, word = bundled()
    special = tokenizer.convert_tokens_to_ids(word)
    text = prompts.Prompt("p", f"a{word}b")
    assert special not in prompts.encode([text], tokenizer, None)[0]
    assert special in prompts.encode([text], tokenizer, None, control=True)[0]
    assert special not in inputs._tokenized("x", text.text, tokenizer).tokens


@pytest.mark.full
def test_the_command_line(cli, record):
    text = "naïve <|endoftext|> tree"
    plain = record(text)
    parsed = record(text, "--control-tokens")
    assert plain["prompt_tokens"] > parsed["prompt_tokens"]
    assert (
        json.loads(cli("generate", text, "-m", "tiny", "--json", "--max-new-tokens", "1")[1])[
            "prompt_tokens"
        ]
        == (plain["prompt_tokens"])
    )
