"""From what a user points at to tokens; whatever is not a readable text is refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdraft.errors import InputError


@dataclass(frozen=True)
class Prompt:
    name: str
    text: str


def gather(prompt: str | None, files: Sequence[Path], tokens: int | None) -> list[Prompt]:
    """The words of the command line, or the files: one row each. Raises InputError."""
    if prompt is None and not files:
        raise InputError("no prompt: give one as an argument, or --prompt-file FILE")
    if prompt is not None and files:
        raise InputError("both a PROMPT and --prompt-file are given: give one of them")
    if prompt is None:
        return [read(f) for f in files]
    if tokens is not None:
        raise InputError("--prompt-tokens takes the first tokens of a --prompt-file: leave it out, or give a file")
    return [Prompt("PROMPT", decode(prompt.encode(errors="surrogateescape"), "the prompt"))]


def read(path: Path) -> Prompt:
    """A text file; `-` is standard input."""
    if str(path) == "-":
        return Prompt("standard input", decode(sys.stdin.buffer.read(), "standard input"))
    if path.is_dir():
        raise InputError(f"the prompt file {path} is a folder: give a text file")
    if path.exists() and not path.is_file() and not path.is_fifo():
        raise InputError(f"the prompt file {path} is a device: give a text file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the prompt file {path} ({error.strerror}): give a UTF-8 text file") from None
    return Prompt(str(path), decode(data, f"the prompt file {path}"))


def decode(data: bytes, what: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8 (byte {error.start}): give UTF-8 text") from None
    if not text:
        raise InputError(f"{what} is empty: give some text")
    if "\0" in text:
        raise InputError(f"{what} is binary (a zero byte at {data.index(0)}): give UTF-8 text")
    return text


def encode(prompts: list[Prompt], tokenizer: Any, tokens: int | None, control: bool = False) -> list[list[int]]:
    """Token ids of each prompt, the first `tokens` of them; a shorter prompt is used whole, and that is said.

    control: special tokens that a prompt spells are those tokens; otherwise they are text.
    """
    from longdraft.models.loading import token_ids

    rows = []
    for prompt in prompts:
        ids = token_ids(tokenizer, prompt.text, control)
        if not ids:
            raise InputError(f"{prompt.name} has no tokens: give some text")
        if tokens is not None and len(ids) < tokens:
            print(f"longdraft: note: {prompt.name} has {len(ids)} tokens, all of which are used", file=sys.stderr)
        rows.append(ids[:tokens])
    return rows
