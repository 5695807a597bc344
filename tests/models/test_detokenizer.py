"""Text in pieces: for every kind of tokenizer the pieces together are the decoded text of all
tokens.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longdraft.engine.requests import Event
from longdraft.models import text
from longdraft.models.gguf import tokenizer as gguf_tokenizer
from longdraft.models.gguf.file import GGUF
from longdraft.models.text import Detokenizer, offsets_of, text_of, token_bytes, token_text
from longdraft.server.decode.reply import Reply

WORDS = [
    "a",
    "b",
    "x",
    " ",
    "▁",
    "▁the",
    "▁x",
    "中",
    "é",
    "\ufffd",
    "##s",
    "end</w>",
    ".",
    "'s",
    "n't",
]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def made(model, decoder, extra=("<|end|>",)) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    backend.decoder = decoder
    backend.add_special_tokens([AddedToken(token, special=True) for token in extra])
    backend.add_tokens([AddedToken("<call me>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def bpe(words: list[str], **options) -> models.BPE:
    return models.BPE({word: i for i, word in enumerate(dict.fromkeys(words))}, [], **options)


def llama(space: bool) -> PreTrainedTokenizerFast:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if space else []
    return made(bpe(WORDS + BYTES, byte_fallback=True), decoders.Sequence(steps))


def of_gguf() -> PreTrainedTokenizerFast:
    """The SentencePiece tokenizer of a GGUF file."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": np.zeros(len(tokens), np.float32),
        "token_type": np.array([2, 3, 3] + [6] * len(BYTES) + [1] * len(WORDS), np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    key = gguf_tokenizer.KEY
    return gguf_tokenizer.build(
        GGUF(Path("model.gguf"), {key + k: v for k, v in metadata.items()}, {})
    )


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
KINDS = {
    "byte level": made(bpe([*ALPHABET, "Ġthe", "ä¸Ń", "ä¸", "中"]), decoders.ByteLevel()),
    "byte level in a sequence": made(
        bpe([*ALPHABET, "Ġthe", "ä¸"]), decoders.Sequence([decoders.ByteLevel()])
    ),
    "byte fallback (Llama 2)": llama(space=True),
    "byte fallback (Gemma)": llama(space=False),
    "GGUF": of_gguf(),
    "unigram": made(
        models.Unigram([(word, -1.0) for word in ["<unk>", *WORDS]], 0), decoders.Metaspace()
    ),
    "word pieces": made(
        models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="a"), decoders.WordPiece()
    ),
    "BPE with ends of words": made(bpe(WORDS), decoders.BPEDecoder(suffix="</w>")),
    "no decoder": made(bpe(WORDS), None),
}


def ids(tokenizer, names: list[str]) -> list[int]:
    return [tokenizer.backend_tokenizer.token_to_id(name) for name in names]


def fallback(tokenizer) -> bool:
    return tokenizer.backend_tokenizer.token_to_id(BYTES[0]) is not None


def in_pieces(tokenizer, tokens: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [*(stream.push([token]) for token in tokens), stream.flush()]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_the_pieces_are_the_text(kind, data):
    tokenizer = KINDS[kind]
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=40))
    assert "".join(in_pieces(tokenizer, tokens)) == text_of(tokenizer, tokens)


@pytest.mark.parametrize("kind", ["byte fallback (Llama 2)", "byte fallback (Gemma)"])
def test_a_character_of_bytes_that_is_left_incomplete(kind):
    """E4 B8 AD is a character, and a second E4 after it makes the row of bytes invalid."""
    tokenizer = KINDS[kind]
    tokens = ids(tokenizer, ["x", "<0xE4>", "<0xB8>", "<0xAD>", "<0xE4>", "▁the", "<|end|>", "a"])
    pieces = in_pieces(tokenizer, tokens)
    assert "".join(pieces) == text_of(tokenizer, tokens) == "x\ufffd\ufffd\ufffd\ufffd thea"
    assert pieces[0] == "x" and pieces[5].endswith(" the")


def test_text_comes_as_soon_as_it_is_settled():
    tokenizer = KINDS["byte level"]
    tokens = ids(tokenizer, ["a", "ä¸", "Ń", "Ġthe"])
    assert in_pieces(tokenizer, tokens) == ["a", "", "中", " the", ""]
    tokenizer = KINDS["unigram"]
    assert in_pieces(tokenizer, ids(tokenizer, ["▁the", "▁x", "a"])) == ["the", " x", "a", ""]


# Where tokens begin, and their bytes --------------------------------------------------------------

WITH_BYTES = [kind for kind in KINDS if kind.startswith(("byte", "GGUF"))]


def bytes_of(tokenizer, said: str) -> list[int]:
    """A text in tokens of one byte each."""
    names = (
        BYTES
        if fallback(tokenizer)
        else [next(c for c, b in text.CHARACTERS.items() if b == n) for n in range(256)]
    )
    return ids(tokenizer, [names[b] for b in said.encode()])


def check_places(kind: str, tokens: list[int]) -> None:
    """Each token that is no part of a character is found where it begins; the first may lack its
    space.
    """
    tokenizer = KINDS[kind]
    special = text._special(KINDS[kind], len(KINDS[kind]))
    said = text_of(tokenizer, tokens)
    offsets = offsets_of(tokenizer, tokens)
    assert offsets == sorted(offsets) and all(0 <= offset <= len(said) for offset in offsets)
    for token, offset in zip(tokens, offsets, strict=True):
        name = tokenizer.backend_tokenizer.id_to_token(token)
        own = token_text(tokenizer, token)
        part = text.BYTE.fullmatch(name) or own.encode() != token_bytes(tokenizer, token)
        if offset and not part and token not in special:
            assert said[offset:].startswith(own), (name, offset)


# whose spaces belong to the token before them
PLACED = [kind for kind in KINDS if kind != "BPE with ends of words"]


@pytest.mark.parametrize("kind", PLACED)
@settings(max_examples=20)
@given(data=st.data())
def test_each_token_begins_where_its_text_is(kind, data):
    check_places(kind, data.draw(st.lists(st.integers(0, len(KINDS[kind]) - 1), max_size=20)))


@pytest.mark.parametrize("kind", WITH_BYTES)
@settings(max_examples=20)
@given(
    said=st.text(st.sampled_from("ab \né漢🙂\ufffd"), min_size=1, max_size=12).filter(
        lambda said: said[0] != " "
    )
)
def test_parts_of_a_character_begin_where_it_does(kind, said):
    tokenizer, [first] = KINDS[kind], ids(KINDS[kind], ["x"])
    tokens = [first, *bytes_of(tokenizer, said)]
    assert b"".join(token_bytes(tokenizer, token) for token in tokens) == ("x" + said).encode()
    whole = "x" + said
    assert offsets_of(tokenizer, tokens) == [i for i, c in enumerate(whole) for _ in c.encode()]


@pytest.mark.parametrize("kind", WITH_BYTES)
def test_a_character_that_is_broken_off(kind):
    """The token after it begins behind what is left of it."""
    tokenizer = KINDS[kind]
    tokens = [*bytes_of(tokenizer, "漢")[:2], *ids(tokenizer, ["a"])]
    said = text_of(tokenizer, tokens)
    assert said.strip("\ufffd") == "a" and offsets_of(tokenizer, tokens)[-1] == said.index("a")


def test_a_token_inside_a_text_has_its_space():
    for kind in ("byte fallback (Llama 2)", "unigram"):
        assert [token_text(KINDS[kind], token) for token in ids(KINDS[kind], ["▁x", "x", "▁"])] == [
            " x",
            "x",
            " ",
        ]
    words = KINDS["word pieces"]
    assert [token_text(words, token) for token in ids(words, ["x", "##s"])] == [" x", "s"]
    assert token_bytes(KINDS["unigram"], 10_000) == b""  # a row of the model's head without a token


def test_places_by_the_lengths_of_tokens_are_caught(monkeypatch):
    """As they were counted before: a part of a character counted as one, and special tokens too."""

    def by_length(tokenizer, tokens):
        return [sum(len(token_text(tokenizer, t)) for t in tokens[:i]) for i in range(len(tokens))]

    tokenizer = KINDS["byte level"]
    monkeypatch.setitem(globals(), "offsets_of", by_length)
    for tokens in (
        [*bytes_of(tokenizer, "漢"), *ids(tokenizer, ["a"])],
        ids(tokenizer, ["a", "<|end|>", "b"]),
    ):
        with pytest.raises(AssertionError):
            check_places("byte level", tokens)


def test_a_broken_variant_is_caught(monkeypatch):
    """Without holding back rows of bytes, a piece is given out that a later token changes."""
    monkeypatch.setattr(text, "BYTE", re.compile("no token"))
    tokenizer = KINDS["byte fallback (Llama 2)"]
    tokens = ids(tokenizer, ["x", "<0xE4>", "<0xB8>", "<0xAD>", "<0xE4>", "a"])
    assert "".join(in_pieces(tokenizer, tokens)) != text_of(tokenizer, tokens)


def replied(tokenizer, tokens: list[int], stops: list[str]) -> tuple[str, int, str | None]:
    """A reply's text, how many tokens count, and why it ended, if the tokens come one at a time."""
    reply = Reply(tokenizer, stops)
    said = ""
    for i, token in enumerate(tokens):
        said += reply.take(Event(1, [token], "length" if i == len(tokens) - 1 else None)).text
    return said, reply.tokens, reply.finish


def expected(tokenizer, tokens: list[int], stops: list[str]) -> tuple[str, int, str | None]:
    """The same from the decoded text of the first k tokens, for each k."""
    for k in range(1, len(tokens) + 1):
        said = text_of(tokenizer, tokens[:k])
        cuts = [said.index(stop) for stop in stops if stop in said]
        if cuts:
            return said[: min(cuts)], k, "stop"
    return text_of(tokenizer, tokens), len(tokens), "length" if tokens else None


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_reply_ends_at_the_token_that_completes_a_stop_string(kind, data):
    tokenizer = KINDS[kind]
    common = (
        st.sampled_from(ids(tokenizer, BYTES[9:14] + BYTES[0xC3:0xC4] + BYTES[0xA9:0xAA]))
        if fallback(tokenizer)
        else None
    )
    any_token = st.integers(0, len(tokenizer) - 1)
    tokens = data.draw(st.lists(any_token if common is None else any_token | common, max_size=20))
    stops = data.draw(
        st.lists(st.text(st.sampled_from("ab \n\té中xt"), min_size=1, max_size=3), max_size=3)
    )
    assert replied(tokenizer, tokens, stops) == expected(tokenizer, tokens, stops)


def test_a_stop_string_of_bytes_is_not_waited_for(monkeypatch):
    """Llama 2 writes a new line as a byte. Without `open`, the reply ends one token later than it
    has to.
    """
    tokenizer = KINDS["byte fallback (Llama 2)"]
    tokens = ids(tokenizer, ["x", "<0x0A>", "▁the", "a"])
    assert replied(tokenizer, tokens, ["\n"]) == ("x", 2, "stop")
    monkeypatch.setattr(Detokenizer, "open", "")
    assert replied(tokenizer, tokens, ["\n"]) == ("x", 3, "stop")


def test_the_table_of_bytes_is_the_published_one():
    assert sorted(text.CHARACTERS) == ALPHABET and sorted(text.CHARACTERS.values()) == list(
        range(256)
    )


def test_a_long_row_of_wrong_bytes_takes_linear_time():
    for kind, name in (("byte level", "ÿ"), ("byte fallback (Llama 2)", "<0xFF>")):
        tokenizer = KINDS[kind]
        pieces = in_pieces(tokenizer, ids(tokenizer, [name]) * 20_000)
        assert "".join(pieces) == "\ufffd" * 20_000
