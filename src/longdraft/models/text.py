"""From text to tokens, from any thread, and from tokens to text, whole or piece by piece."""

from __future__ import annotations

import codecs
import json
import re
from copy import deepcopy
from functools import lru_cache
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a token of one byte, where a vocabulary falls back to bytes
KEPT = 4  # tokens before a piece with which it is decoded: decoders treat the first token of a text in another way
OPEN = 1 << 10  # tokens: longer rows of bytes have no `open` text, which is decoded anew for each token


def token_ids(tokenizer: Any, text: str, control: bool = False, **options: Any) -> list[int]:
    """The ids of a text. Special tokens written in it, such as <|im_end|>, are read as plain text unless `control`.

    The tokenizer decides which tokens are special; it still adds its own, such as the beginning-of-text token. May be
    called from several threads.
    """
    if type(tokenizer).__name__ == "MistralCommonBackend":  # it never reads them from text and has no such option
        return list(tokenizer(text, verbose=False, **options)["input_ids"])
    reader = _reader(tokenizer, control)
    return list(reader(text, verbose=False, split_special_tokens=not control, **options)["input_ids"])


_READERS: WeakKeyDictionary[Any, dict[tuple[bool, int], Any]] = WeakKeyDictionary()
_READERS_LOCK = Lock()


def _reader(tokenizer: Any, control: bool) -> Any:
    """A copy of the tokenizer that is only ever asked for one value of split_special_tokens.

    Transformers sets this flag on the tokenizer and reads it later, so two threads with one tokenizer would read
    each other's. The copy is made anew if tokens were added to the original.
    """
    key = control, len(tokenizer)
    with _READERS_LOCK:
        readers = _READERS.setdefault(tokenizer, {})
        if key not in readers:
            for old in [k for k in readers if k[0] == control]:
                del readers[old]
            readers[key] = deepcopy(tokenizer)
            readers[key]("", split_special_tokens=not control)  # sets the flag before another thread has it
        return readers[key]


class Detokenizer:
    """Its pieces together are the decoded text of all tokens; a piece is given out once no later token can change it.

    So an incomplete character is held back. Where single bytes are tokens (byte fallback), all bytes in a row are: a
    wrong one among them turns each of them into a replacement character.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.backend = getattr(tokenizer, "backend_tokenizer", None)  # without it, all text comes at the end
        self.ids: list[int] = []
        self.shown = 0  # characters
        if self.backend is not None:
            self._skipped = _special(tokenizer, len(tokenizer))
            self._pieces = _pieces(self.backend)

    @property
    def open(self) -> str:
        """The complete characters that are held back: what the text would end with if no token followed."""
        return "" if self.backend is None else self._pieces.open

    def push(self, tokens: list[int]) -> str:
        self.ids += tokens
        if self.backend is None:
            return ""
        names = ((token, self.backend.id_to_token(token)) for token in tokens if token not in self._skipped)
        text = "".join(self._pieces.push(token, name) for token, name in names if name is not None)
        self.shown += len(text)
        return text

    def flush(self) -> str:
        """The rest of the text, even if its last character is incomplete."""
        rest = text_of(self.tokenizer, self.ids)[self.shown :]
        self.shown += len(rest)
        return rest


@lru_cache(4)
def _special(tokenizer: Any, size: int) -> frozenset[int]:
    """The special tokens of a tokenizer with this many tokens. Some have thousands: kept, not listed for each reply."""
    return frozenset(i for i, token in tokenizer.backend_tokenizer.get_added_tokens_decoder().items() if token.special)


class _Pieces(Protocol):
    @property
    def open(self) -> str:
        """See Detokenizer."""
        ...

    def push(self, token: int, name: str) -> str:
        """The text that is settled now. name: the token as the vocabulary has it."""
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
    """Tokens are bytes, each written as one character: the text is their UTF-8, however tokens divide it."""

    open = ""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int, name: str) -> str:
        known = [CHARACTERS.get(c) for c in name]
        whole = [b for b in known if b is not None]
        return self._utf8.decode(bytes(whole) if len(whole) == len(known) else name.encode())


class _Window:
    """Decodes a few tokens at a time: what the newest add to the text of those before them."""

    def __init__(self, backend: Any, kinds: set[str]):
        self._decode, self._kinds = backend.decode, kinds
        self._ids: list[int] = []
        self._settled = 0  # of these tokens, whose text was given out

    @property
    def open(self) -> str:
        count = len(self._ids) - self._settled
        text = self._new() if 0 < count <= OPEN else ""
        return "" if "\ufffd" in text else text

    def push(self, token: int, name: str) -> str:
        self._ids.append(token)
        if "ByteFallback" in self._kinds and BYTE.fullmatch(name):
            return ""
        new = self._new()
        if "ByteLevel" in self._kinds and new.endswith("\ufffd"):
            return ""
        del self._ids[:-KEPT]
        self._settled = len(self._ids)
        return new

    def _new(self) -> str:
        settled = self._decode(self._ids[: self._settled], skip_special_tokens=False)
        return self._decode(self._ids, skip_special_tokens=False)[len(settled) :]


def _characters() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies: its own where that is visible."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (b for b in range(256) if b not in visible)
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(others)}


CHARACTERS = _characters()


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def token_text(tokenizer: Any, token: int) -> str:
    """A token by itself; part of a character is shown as a replacement character."""
    return tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
