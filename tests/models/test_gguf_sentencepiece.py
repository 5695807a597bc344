"""SentencePiece tokenizers of GGUF files: merges, which Llama 2 has, and unigrams."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from support.gguf_vocabularies import BYTES, built, pieces

from longdraft.errors import InputError
from longdraft.models.gguf import tokenizer as gguf_tokenizer

# SentencePiece ------------------------------------------------------------------------------------


def llama(words: list[str], architecture: str = "llama", **metadata: Any):
    """A vocabulary as SentencePiece's: earlier words are better ones."""
    tokens = ["<unk>", "<s>", "</s>", "<|user|>", *BYTES, *words]
    types = [2, 3, 3, 3] + [6] * 256 + [1] * len(words)
    return built(
        tokens,
        "llama",
        architecture,
        scores=np.array([0.0] * 260 + [-float(i) for i in range(len(words))], np.float32),
        token_type=np.array(types, np.int32),
        bos_token_id=1,
        **metadata,
    )


SPACES = ["▁", "▁▁", "▁▁▁", "a", "▁a", "b"]


def check_spaces() -> None:
    """A text gets one space more, also where it begins with some; control tokens give none."""
    made = llama(SPACES)
    assert pieces(made, "a") == ["<s>", "▁a"] and pieces(made, " a") == ["<s>", "▁▁", "a"]
    assert pieces(made, " ") == ["<s>", "▁▁"] and pieces(made, "") == ["<s>"]
    for text in ("a", " a", "  b a ", " ", "ab"):
        assert made.decode(made(text)["input_ids"][1:]) == text


def test_spaces_are_those_of_sentencepiece():
    check_spaces()
    made = llama(SPACES, add_space_prefix=False)
    assert pieces(made, " a") == ["<s>", "▁a"] and pieces(made, "a") == ["<s>", "a"]
    assert pieces(llama(SPACES), "a<|user|>b") == ["<s>", "▁a", "<|user|>", "b"]


def test_a_space_too_few_is_found(monkeypatch):
    """Metaspace alone adds no space to a text that begins with one."""
    nothing = gguf_tokenizer.normalizers.Sequence([])
    monkeypatch.setattr(gguf_tokenizer.normalizers, "Replace", lambda *_: nothing)
    with pytest.raises(AssertionError):
        check_spaces()


def test_what_no_token_spells_is_the_unknown_one():
    """It is known by its type where the metadata does not name it."""
    made = built(
        ["<pad>", "<unk>", "▁", "a"],
        "llama",
        scores=np.zeros(4, np.float32),
        token_type=np.array([3, 2, 1, 1], np.int32),
    )
    assert pieces(made, "aza") == ["▁", "a", "<unk>", "a"]


def check_phi(architecture: str, kept: bool) -> None:
    made = llama(["▁", "▁b"], architecture)
    found = made.convert_ids_to_tokens(made("<|user|>\n\nb", add_special_tokens=False).input_ids)
    assert (found[1:-1] == ["<0x0A>"] * 2) == kept and found[0] == "<|user|>"
    assert "<0x0A>" in pieces(made, "<s>\n")  # this token keeps what follows


def test_control_tokens_of_phi_3_take_the_spaces_after_them(monkeypatch):
    check_phi("phi3", kept=False)
    check_phi("llama", kept=True)
    monkeypatch.setattr(gguf_tokenizer, "_stripping", lambda file: False)
    with pytest.raises(AssertionError):
        check_phi("phi3", kept=False)


# Unigrams -----------------------------------------------------------------------------------------


def unigrams(**metadata: Any):
    """The best pieces of "abc" are not the longest ones at its beginning."""
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "c", "ab", "bc", "▁a"]
    scores = [0.0, 0.0, 0.0, -3.0, -3.0, -3.0, -9.0, -2.5, -1.0, -3.0]
    known = {
        "eos_token_id": 1,
        "unknown_token_id": 2,
        "scores": np.array(scores, np.float32),
        "token_type": np.array([3, 3, 2] + [1] * 7, np.int32),
    }
    return built(tokens, "t5", **known | metadata)


def test_unigrams_are_chosen_by_their_sum():
    made = unigrams()
    assert pieces(made, "abc") == ["▁a", "bc", "</s>"]
    assert pieces(made, "ab ab") == ["▁", "ab", "▁", "ab", "</s>"]
    assert pieces(made, "zz") == ["▁", "<unk>", "</s>"]
    assert pieces(unigrams(add_eos_token=False), "abc") == ["▁a", "bc"]
    assert pieces(unigrams(add_space_prefix=False), "abc") == ["a", "bc", "</s>"]
    assert made.decode(made("abc ab", add_special_tokens=False).input_ids) == "abc ab"


def test_spaces_are_kept_unless_the_file_says_otherwise():
    text = "  b  b "
    assert pieces(unigrams(), text) == [*"▁▁▁", "b", *"▁▁", "b", "▁", "</s>"]
    removed = unigrams(remove_extra_whitespaces=True)
    assert pieces(removed, text) == ["▁", "b", "▁", "b", "</s>"]


def charsmap() -> np.ndarray:
    """SentencePiece's table of normalizations with one entry: A becomes b."""
    units = [0] * 512
    units[0] = 256 << 10  # the children of the root
    units[256 ^ ord("A")] = ord("A") | 1 << 8 | 1 << 10
    units[256 ^ ord("A") ^ 1] = 0  # where the result begins
    trie = struct.pack("<512I", *units)
    return np.frombuffer(struct.pack("<I", len(trie)) + trie + b"b\0", np.uint8)


def test_characters_are_normalized_by_the_file_s_table():
    assert pieces(unigrams(precompiled_charsmap=charsmap()), "A") == ["▁", "b", "</s>"]
    assert pieces(unigrams(), "A") == ["▁", "<unk>", "</s>"]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"precompiled_charsmap": np.zeros(2, np.uint8)}, "precompiled_charsmap is damaged"),
        ({"precompiled_charsmap": "x"}, "not of type ndarray"),
        ({"scores": None}, "no tokenizer.ggml.scores"),
        ({"unknown_token_id": None, "token_type": None}, "no unknown token"),
    ],
)
def test_damaged_unigrams_are_one_line(change, names):
    with pytest.raises(InputError, match=names) as found:
        unigrams(**change)
    assert "\n" not in str(found.value)
