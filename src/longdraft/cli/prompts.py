"""Reads prompts from the command line and from files. Raises InputError for anything that is not
text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdraft.errors import InputError


@dataclass(frozen=True)
class Prompt:
    """A text and the name that it is printed under."""

    name: str
    text: str


def gather(prompt: str | None, files: Sequence[Path], tokens: int | None) -> list[Prompt]:
    """The prompt of the command line, or one prompt per file. Raises InputError."""
    if prompt is None and not files:
        raise InputError("there is no prompt: give one as an argument, or --prompt-file FILE")
    if prompt is not None and files:
        raise InputError("both a PROMPT and --prompt-file are given: give one of them")
    if prompt is None:
        return [read(f) for f in files]
    if tokens is not None:
        raise InputError("--prompt-tokens cuts a --prompt-file: leave it out, or give a file")
    return [Prompt("PROMPT", decode(prompt.encode(errors="surrogateescape"), "the prompt"))]


def read(path: Path) -> Prompt:
    """The text of a file; `-` is standard input."""
    if str(path) == "-":
        return Prompt("standard input", decode(sys.stdin.buffer.read(), "standard input"))
    if path.is_dir():
        raise InputError(f"the prompt file {path} is a folder: give a text file")
    if path.exists() and not path.is_file() and not path.is_fifo():
        raise InputError(f"the prompt file {path} is a device: give a text file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the prompt file {path} ({error.strerror}): give a UTF-8 text file"
        ) from None
    return Prompt(str(path), decode(data, f"the prompt file {path}"))


def decode(data: bytes, source: str) -> str:
    """The text of a source, which messages name. Raises InputError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8 (byte {error.start}): give UTF-8 text") from None
    if not text:
        raise InputError(f"{source} is empty: give some text")
    if "\0" in text:
        raise InputError(f"{source} is binary (a zero byte at {data.index(0)}): give UTF-8 text")
    return text


def encode(
    prompts: list[Prompt], tokenizer: Any, tokens: int | None, control: bool = False
) -> list[list[int]]:
    """The first `tokens` token ids of each prompt; for a shorter prompt, all of them, with a note
    on standard error.

    control: words such as <|im_end|> in a prompt become special tokens; otherwise they are text.
    """
    from longdraft.models.text import token_ids

    rows = []
    for prompt in prompts:
        ids = token_ids(tokenizer, prompt.text, control)
        if not ids:
            raise InputError(f"{prompt.name} has no tokens: give some text")
        if tokens is not None and len(ids) < tokens:
            print(
                f"longdraft: note: {prompt.name} has {len(ids)} tokens, and all of them are used",
                file=sys.stderr,
            )
        rows.append(ids[:tokens])
    return rows
