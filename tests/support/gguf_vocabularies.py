"""Tokenizers of GGUF files from their metadata alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from longdraft.models.gguf import tokenizer as gguf_tokenizer
from longdraft.models.gguf.file import GGUF

KEY = gguf_tokenizer.KEY
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def built(tokens: list[str], model: str = "gpt2", architecture: str = "llama", **metadata: Any):
    """A tokenizer of these tokens.

    metadata: keys under tokenizer.ggml. and their values; None for those that the file lacks.
    """
    known = {f"{KEY}{name}": value for name, value in metadata.items() if value is not None}
    known |= {f"{KEY}model": model, f"{KEY}tokens": tokens, "general.architecture": architecture}
    return gguf_tokenizer.build(GGUF(Path("model.gguf"), known, {}))


def pieces(tokenizer: Any, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
