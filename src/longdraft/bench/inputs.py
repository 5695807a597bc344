"""The texts of a benchmark: held-out code, a held-out book, files of the user, or random tokens to
measure cost.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from longdraft.core.files import read_bytes
from longdraft.errors import InputError
from longdraft.models.chat import chat_tokens
from longdraft.models.loading import BUNDLED
from longdraft.models.text import token_ids

BOOK = Path(__file__).parents[1] / "assets" / "text" / "great-expectations.txt"


@dataclass(frozen=True)
class Frame:
    """The tokens around a piece of text when a model is asked about it: those of its chat template
    and the question.
    """

    before: list[int]
    after: list[int]
    question: str


@dataclass(frozen=True)
class Text:
    """The tokens of a named text; sha256 is the hash of its UTF-8 bytes. frame: what each prompt
    has around them.
    """

    name: str
    tokens: list[int]
    sha256: str
    frame: Frame | None = None

    @property
    def ends(self) -> bool:
        """Whether an end token ends the output: that of a question's answer, but of no text that
        goes on.
        """
        return self.frame is not None

    def fields(self) -> dict[str, Any]:
        """The fields of a record about it, beside its name."""
        return {"question": self.frame.question} if self.frame else {}

    def prompts(self, context: int, batch: int) -> list[list[int]]:
        """`batch` prompts of `context` tokens that start at evenly spread positions. Raises
        InputError.
        """
        if self.frame is not None:
            room = context - len(self.frame.before) - len(self.frame.after)
            if room < 1:
                raise InputError(
                    f"a prompt of {context} tokens has no room for text: give a longer --context"
                )
            pieces = replace(self, frame=None).prompts(room, batch)
            return [self.frame.before + piece + self.frame.after for piece in pieces]
        spare = len(self.tokens) - context
        if spare < 0 or (batch > 1 and spare < batch - 1):
            raise InputError(
                f"the text {self.name} has {len(self.tokens)} tokens, too few for {batch} "
                f"prompt(s) of {context}:"
                " give a longer text or a shorter --context"
            )
        starts = [spare * b // max(batch - 1, 1) for b in range(batch)]
        return [self.tokens[start : start + context] for start in starts]


def read(path: Path) -> str:
    """The text of a prompt file. Raises InputError."""
    try:
        text = read_bytes(path).decode("utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read the prompt file {path} ({error.strerror}): give a UTF-8 text file"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"the prompt file {path} is not UTF-8: give a UTF-8 text file") from None
    if not text.strip():
        raise InputError(f"the prompt file {path} is empty: give a UTF-8 text file")
    return text


def texts(names: list[str], files: list[Path], tokenizer: Any) -> list[Text]:
    """The files, or the named texts (`code`, `book`) if there are none. Raises InputError."""
    named = [(f.name, read(f)) for f in files]
    for name in [] if files else names:
        if name not in ("code", "book"):
            raise InputError(f"unknown text {name!r}: choose code, book or code,book")
        parts = held_out_files() if name == "code" else [BOOK]
        named.append((name, "\n\n".join(map(read, parts))))
    return [_tokenized(name, text, tokenizer) for name, text in named]


def ask(texts: list[Text], question: str, tokenizer: Any) -> list[Text]:
    """The texts, each prompt of which asks the model this question about a piece, in its chat
    template.

    Raises InputError for a model without a template, and for one that changes what a message says.
    """
    asked = f"\n\n{question}"
    messages = [{"role": "user", "content": f"x{asked}"}]
    chat_tokens(tokenizer, messages)  # refuses a model without a template
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    before, here, after = whole.rpartition(f"x{asked}")
    if not here:
        raise InputError("the model's chat template changes messages: leave --ask out")
    first, last = (
        token_ids(tokenizer, text, True, add_special_tokens=False)
        for text in (before, asked + after)
    )
    frame = Frame(first, last, question)
    return [replace(t, frame=frame) for t in texts]


def _tokenized(name: str, text: str, tokenizer: Any) -> Text:
    tokens = token_ids(tokenizer, text, add_special_tokens=False)
    return Text(name, tokens, hashlib.sha256(text.encode()).hexdigest())


def random_text(size: int, vocab: int, seed: int) -> Text:
    """Random tokens, for measurements that depend only on shapes."""
    tokens = torch.randint(vocab, (size,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Text("random", tokens, hashlib.sha256(json.dumps(tokens).encode()).hexdigest())


def held_out_files() -> list[Path]:
    """Files of the standard library that the bundled models were not trained on, as far as this
    Python has them.
    """
    try:
        patterns = json.loads((BUNDLED / "holdout.json").read_text(encoding="utf-8"))["patterns"]
    except (OSError, ValueError, KeyError):
        raise InputError(
            "the bundled model's holdout.json is missing: reinstall longdraft"
        ) from None
    root = Path(sysconfig.get_path("stdlib"))
    files = [root / p.removeprefix("stdlib/") for p in patterns if p.startswith("stdlib/")]
    return [f for f in files if f.is_file()]


def stdlib_prompt(tokenizer: Any, tokens: int) -> tuple[list[int], list[str]]:
    """A prompt of exactly `tokens` tokens of the standard library's code -> (token ids, names of
    its files).

    Held-out files come first, smaller files before larger ones; the last is cut. Raises InputError
    if all are short.
    """
    held_out = held_out_files()
    files = {*held_out, *Path(sysconfig.get_path("stdlib")).glob("*.py")}
    ids: list[int] = []
    names: list[str] = []
    for path in sorted(files, key=lambda p: (p not in held_out, p.stat().st_size, p.name)):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        names.append(path.name)
        ids += token_ids(tokenizer, f"# {path.name}\n{text}\n\n", add_special_tokens=False)
        if len(ids) >= tokens:
            return ids[:tokens], names
    raise InputError(
        f"this Python's standard library has {len(ids)} tokens, not {tokens}: give a "
        "shorter context"
    )
