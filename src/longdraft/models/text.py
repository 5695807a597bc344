"""Converts text to tokens, from any thread, and tokens to text, whole or piece by piece."""

from __future__ import annotations

import codecs
import json
import re
from copy import deepcopy
from functools import lru_cache
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

UTF8 = codecs.getincrementaldecoder("utf-8")
# a token of one byte, where a vocabulary falls back to bytes
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# tokens before a piece with which it is decoded: decoders treat a text's first token differently
KEPT = 4
# tokens: longer rows of bytes have no `open` text, which is decoded anew for each token
OPEN = 1 << 10


def token_ids(tokenizer: Any, text: str, control: bool = False, **options: Any) -> list[int]:
    """The ids of a text.

    Special tokens written in it, such as <|im_end|>, are read as plain text unless `control`. The
    tokenizer decides which tokens are special; it still adds its own, such as the beginning-of-text
    token. May be called from several threads.
    """
    # it never reads special tokens from text and has no such option
    if type(tokenizer).__name__ == "MistralCommonBackend":
        return list(tokenizer(text, verbose=False, **options)["input_ids"])
    reader = _reader(tokenizer, control)
    encoded = reader(text, verbose=False, split_special_tokens=not control, **options)
    return list(encoded["input_ids"])


_READERS: WeakKeyDictionary[Any, dict[tuple[bool, int], Any]] = WeakKeyDictionary()
_READERS_LOCK = Lock()


def _reader(tokenizer: Any, control: bool) -> Any:
    """A copy of the tokenizer that is only ever asked for one value of split_special_tokens.

    Transformers sets this flag on the tokenizer and reads it later, so two threads with one
    tokenizer would read each other's. The copy is made anew if tokens were added to the original.
    """
    key = control, len(tokenizer)
    with _READERS_LOCK:
        readers = _READERS.setdefault(tokenizer, {})
        if key not in readers:
            for old in [k for k in readers if k[0] == control]:
                del readers[old]
            readers[key] = deepcopy(tokenizer)
            # sets the flag before another thread has it
            readers[key]("", split_special_tokens=not control)
        return readers[key]


class Detokenizer:
    """Decodes tokens piece by piece; the pieces together are the decoded text of all tokens.

    A piece is given out once no later token can change it. So an incomplete character is held back.
    Where single bytes are tokens (byte fallback), all
    bytes in a row are: a wrong one among them turns each of them into a replacement character.
    before: how many characters that earlier pieces lack come before those of the last token. A
    token that is a later part of a character begins where the character does.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.before = 0
        # without it, all text comes at the end
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        self.ids: list[int] = []
        self.shown = 0  # characters
        self._ahead = 0  # characters of tokens, where these are counted one by one
        if self.backend is not None:
            self._skipped = _special(tokenizer, len(tokenizer))
            self._pieces = _pieces(self.backend)

    @property
    def open(self) -> str:
        """The complete characters that are held back.

        The text would end with them if no token followed.
        """
        return "" if self.backend is None else self._pieces.open

    def push(self, tokens: list[int]) -> str:
        text = "".join(map(self._push, tokens))
        self.shown += len(text)
        return text

    def _push(self, token: int) -> str:
        self.ids.append(token)
        if self.backend is None:
            self.before = self._ahead
            self._ahead += len(text_of(self.tokenizer, [token]))
            return ""
        name = None if token in self._skipped else self.backend.id_to_token(token)
        if name is None:
            self.before = self._pieces.complete
            return ""
        self.before, text = self._pieces.push(token, name)
        return text

    def flush(self) -> str:
        """The rest of the text, even if its last character is incomplete."""
        rest = text_of(self.tokenizer, self.ids)[self.shown :]
        self.shown += len(rest)
        return rest


@lru_cache(4)
def _special(tokenizer: Any, size: int) -> frozenset[int]:
    """The special tokens of a tokenizer with this many tokens.

    Some have thousands: kept, not listed for each reply.
    """
    return frozenset(
        i
        for i, token in tokenizer.backend_tokenizer.get_added_tokens_decoder().items()
        if token.special
    )


class _Pieces(Protocol):
    @property
    def open(self) -> str:
        """See Detokenizer."""
        ...

    @property
    def complete(self) -> int:
        """The number of characters held back, without an incomplete one at the end."""
        ...

    def push(self, token: int, name: str) -> tuple[int, str]:
        """The characters held back that come before the token's, and the text that is settled now.

        The characters are counted.
        name: the token as the vocabulary has it.
        """
        ...


def _pieces(backend: Any) -> _Pieces:
    kinds = _kinds(backend.decoder)
    return _ByteLevel() if kinds == {"ByteLevel"} else _Window(backend, kinds)


def _kinds(decoder: Any) -> set[str]:
    """The types of a decoder's parts."""
    parts = [] if decoder is None else [json.loads(decoder.__getstate__())]
    kinds = set[str]()
    while parts:
        part = parts.pop()
        parts += part.get("decoders", [])
        if part["type"] != "Sequence":
            kinds.add(part["type"])
    return kinds


class _ByteLevel:
    """Pieces of a byte-level vocabulary, whose tokens are bytes, each written as one character.

    The text is their UTF-8, however tokens divide it.
    """

    open = ""
    complete = 0

    def __init__(self) -> None:
        self._utf8 = UTF8("replace")

    def push(self, token: int, name: str) -> tuple[int, str]:
        new = _spelled(name)
        part = self._utf8.getstate()[0]
        # a part that stays one is a replacement character
        before = int(bool(part) and not _continues(part, new))
        return before, self._utf8.decode(new)


def _spelled(name: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary.

    Added tokens may have other characters: their own.
    """
    known = [CHARACTERS.get(c) for c in name]
    whole = [b for b in known if b is not None]
    return bytes(whole) if len(whole) == len(known) else name.encode()


def _continues(part: bytes, more: bytes) -> bool:
    """Whether the first of more bytes belongs to the character of which `part` is the beginning."""
    try:
        UTF8("strict").decode(part + more[:1])
    except UnicodeDecodeError:
        return False
    return True


class _Window:
    """Decodes a few tokens at a time, and adds what the newest add to the text before them."""

    def __init__(self, backend: Any, kinds: set[str]):
        self._decode = backend.decode
        self._kinds = kinds
        self._ids: list[int] = []
        self._settled = 0  # of these tokens, whose text was given out
        self._row = _Row()

    @property
    def open(self) -> str:
        count = len(self._ids) - self._settled
        text = self._new() if 0 < count <= OPEN else ""
        return "" if "\ufffd" in text else text

    @property
    def complete(self) -> int:
        return self._row.characters

    def push(self, token: int, name: str) -> tuple[int, str]:
        if "ByteFallback" in self._kinds and BYTE.fullmatch(name):
            self._ids.append(token)
            return self._row.push(int(name[3:-1], 16)), ""
        held = self._new() if len(self._ids) > self._settled else ""
        self._ids.append(token)
        new = self._new()
        before = _equal(held, new)
        if "ByteLevel" in self._kinds and new.endswith("\ufffd"):
            return before, ""
        del self._ids[:-KEPT]
        self._settled = len(self._ids)
        self._row = _Row()
        return before, new

    def _new(self) -> str:
        settled = self._decode(self._ids[: self._settled], skip_special_tokens=False)
        return self._decode(self._ids, skip_special_tokens=False)[len(settled) :]


def _equal(a: str, b: str) -> int:
    """The number of characters that are equal from the beginning."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (left, right) in pairs if left != right), min(len(a), len(b)))


class _Row:
    """Single bytes in a row.

    characters: of the text that they are, an incomplete one at the end left out.
    """

    def __init__(self) -> None:
        self.characters = 0
        self._size = 0
        # None: a byte was wrong, so each is a character
        self._utf8: codecs.IncrementalDecoder | None = UTF8("strict")

    def push(self, byte: int) -> int:
        """The number of characters before that of this byte."""
        before = self.characters
        self._size += 1
        try:
            self.characters += len(self._utf8.decode(bytes([byte]))) if self._utf8 else 1
        except UnicodeDecodeError:
            self._utf8 = None
            before = self._size - 1
            self.characters = self._size
        return before


def _characters() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies.

    Its own where that is visible.
    """
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (b for b in range(256) if b not in visible)
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(others)}


CHARACTERS = _characters()


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def token_text(tokenizer: Any, token: int) -> str:
    """A token inside a text; part of a character is shown as a replacement character."""
    return token_bytes(tokenizer, token).decode("utf-8", "replace")


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The bytes that a token adds to the UTF-8 of a text that it does not begin.

    A special token adds its name.
    """
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        name = backend.id_to_token(token)
        kinds = _kinds_of(tokenizer)
        if name is None:
            return b""
        if "ByteLevel" in kinds:
            return _spelled(name)
        if "ByteFallback" in kinds and BYTE.fullmatch(name):
            return bytes([int(name[3:-1], 16)])
    first, both = (
        tokenizer.decode([token] * n, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        for n in (1, 2)
    )
    return (both[len(first) :] if both.startswith(first) else first).encode()


@lru_cache(4)
def _kinds_of(tokenizer: Any) -> set[str]:
    return _kinds(tokenizer.backend_tokenizer.decoder)


def offsets_of(tokenizer: Any, tokens: list[int]) -> list[int]:
    """The positions at which each token begins in the text of all of them."""
    text = Detokenizer(tokenizer)
    offsets = list[int]()
    for token in tokens:
        shown = text.shown
        text.push([token])
        offsets.append(shown + text.before)
    return offsets
