"""The texts of a benchmark: held-out code, a held-out book, files of the user, or random tokens to measure cost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longdraft.bench.texts import held_out_code
from longdraft.errors import InputError
from longdraft.models.loading import token_ids

BOOK = Path(__file__).parents[1] / "assets" / "text" / "great-expectations.txt"


@dataclass(frozen=True)
class Text:
    """The tokens of a named text; sha256 is the hash of its UTF-8 bytes."""

    name: str
    tokens: list[int]
    sha256: str

    def prompts(self, context: int, batch: int) -> list[list[int]]:
        """`batch` prompts of `context` tokens that start at evenly spread positions. Raises InputError."""
        spare = len(self.tokens) - context
        if spare < 0 or (batch > 1 and spare < batch - 1):
            raise InputError(
                f"the text {self.name} has {len(self.tokens)} tokens, too few for {batch} prompt(s) of {context}:"
                " give a longer text or a shorter --context"
            )
        starts = [spare * b // max(batch - 1, 1) for b in range(batch)]
        return [self.tokens[at : at + context] for at in starts]


def read(path: Path) -> str:
    """The text of a prompt file. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the prompt file {path} ({error.strerror}): give a UTF-8 text file") from None
    except UnicodeDecodeError:
        raise InputError(f"the prompt file {path} is not UTF-8: give a UTF-8 text file") from None
    if not text.strip():
        raise InputError(f"the prompt file {path} is empty: give a UTF-8 text file")
    return text


def texts(names: list[str], files: list[Path], tokenizer: Any) -> list[Text]:
    """The files, or the named texts (`code`, `book`) if there are none. Raises InputError."""
    found = [(f.name, read(f)) for f in files]
    for name in [] if files else names:
        if name not in ("code", "book"):
            raise InputError(f"unknown text {name!r}: choose code, book or code,book")
        found.append((name, held_out_code() if name == "code" else read(BOOK)))
    return [_tokenised(name, text, tokenizer) for name, text in found]


def _tokenised(name: str, text: str, tokenizer: Any) -> Text:
    tokens = token_ids(tokenizer, text, add_special_tokens=False)
    return Text(name, tokens, hashlib.sha256(text.encode()).hexdigest())


def random_text(size: int, vocab: int, seed: int) -> Text:
    """Random tokens, for measurements that depend only on shapes."""
    tokens = torch.randint(vocab, (size,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Text("random", tokens, hashlib.sha256(json.dumps(tokens).encode()).hexdigest())
