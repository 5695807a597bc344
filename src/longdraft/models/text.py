"""From tokens to text."""

from __future__ import annotations

from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Turns tokens into text piece by piece; an incomplete character is held back until it is complete."""

    def __init__(self, tokenizer: Any):
        self.tokenizer, self.stream = tokenizer, DecodeStream(skip_special_tokens=True)
        self.backend = getattr(tokenizer, "backend_tokenizer", None)  # without it, all text comes at the end
        self.ids: list[int] = []
        self.shown = 0  # characters

    def push(self, tokens: list[int]) -> str:
        self.ids += tokens
        pieces = [self.stream.step(self.backend, token) or "" for token in tokens if self.backend is not None]
        self.shown += len(text := "".join(pieces))
        return text

    def flush(self) -> str:
        """The rest of the text, even if its last character is incomplete."""
        rest = text_of(self.tokenizer, self.ids)[self.shown :]
        self.shown += len(rest)
        return rest


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def token_text(tokenizer: Any, token: int) -> str:
    """A token by itself; part of a character is shown as a replacement character."""
    return tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
