"""Prompts that fill in the middle of a text, with the control tokens of the tokenizer itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longdraft.errors import FieldError, InputError
from longdraft.models.control import OPEN, Control, control_of
from longdraft.models.text import token_ids
from longdraft.server.http.long_texts import check_length

# llama-server's names of what a request does not name
REPOSITORY = "myproject\n"
FILE = "filename\n"
BORDER = "\n\n--- snippet ---\n\n"  # between files, where no token separates them
# SentencePiece vocabularies begin a text with a space, but not a text behind this character
BEFORE = "☺"


@dataclass(frozen=True)
class FillForm:
    """The texts of a family's control tokens; empty ones for those that the family lacks.

    repository, file: written before a repository's name and a file's name. more_ends: others that
    end a text. suffix_first: the suffix comes before the prefix. is_bare: the suffix has no space
    that the tokenizer would add.
    """

    prefix: str
    suffix: str
    middle: str = ""
    repository: str = ""
    file: str = ""
    more_ends: tuple[str, ...] = ()
    suffix_first: bool = False
    is_bare: bool = False

    @property
    def needed(self) -> tuple[str, ...]:
        """The tokens without which a model does not have this form."""
        return tuple(token for token in (self.prefix, self.suffix, self.middle) if token)


FORMS = (
    # Qwen2.5-Coder, CodeGemma and Granite 4
    FillForm(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|repo_name|>",
        "<|file_sep|>",
        ("<|fim_pad|>", "<|file_separator|>"),
    ),
    # StarCoder and Granite
    FillForm(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        "<repo_name>",
        "<file_sep>",
        ("<fim_pad>", "<filename>", "<reponame>"),
    ),
    # SantaCoder
    FillForm("<fim-prefix>", "<fim-suffix>", "<fim-middle>", more_ends=("<fim-pad>",)),
    # DeepSeek-Coder
    FillForm("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # CodeLlama
    FillForm("▁<PRE>", "▁<SUF>", "▁<MID>", more_ends=("▁<EOT>",), is_bare=True),
    # Codestral
    FillForm("[PREFIX]", "[SUFFIX]", suffix_first=True, is_bare=True),
)


@dataclass(frozen=True)
class Gap:
    """A text with a gap.

    between: text that ends the prefix and has tokens of its own, so that a cached prefix stays
    equal while it grows. files: names and texts of other files.
    """

    prefix: str | list[int]
    suffix: str
    between: str = ""
    files: Sequence[tuple[str, str]] = ()

    @property
    def texts(self) -> list[str]:
        prefix = [self.prefix] if isinstance(self.prefix, str) else []
        files = [part for file in self.files for part in file]
        return [*files, *prefix, self.between, self.suffix]


class FillMiddle:
    """A tokenizer's form, and prompts in it.

    Texts of a request are read as plain text, whatever control tokens they spell.
    ends: the tokens that end an answer, beside the model's end tokens.
    """

    def __init__(self, tokenizer: Any, form: FillForm, control: Control):
        self.form = form
        self._tokenizer = tokenizer
        self._control = control
        names = (*form.needed, form.repository, form.file, *form.more_ends)
        self._ids = {name: _id(control, name) for name in names if name in control.spelling}
        self.ends = tuple(sorted(self._ids.values()))

    def prompt(self, gap: Gap, most: int) -> list[int]:
        """The tokens of a text with a gap.

        Raises Problem for a text that surely has more tokens than `most`.
        """
        for text in gap.texts:
            check_length(self._tokenizer, text, most)
        prefix = gap.prefix if isinstance(gap.prefix, list) else self._read(gap.prefix)
        before = [*self._mark(self.form.prefix), *prefix, *self._read(gap.between)]
        after = [*self._mark(self.form.suffix), *self._suffix(gap.suffix)]
        parts = after + before if self.form.suffix_first else before + after
        files = self._files(gap.files) if gap.files else []
        return [*self._first(), *files, *parts, *self._mark(self.form.middle)]

    def _first(self) -> list[int]:
        """The token with which the tokenizer begins every text, if it does."""
        first = token_ids(self._tokenizer, "")[:1]
        return first if first == [self._tokenizer.bos_token_id] else []

    def _files(self, files: Sequence[tuple[str, str]]) -> list[int]:
        """Other files, and the beginning of the one with the gap."""
        if self.form.file not in self._ids:
            return [id for _, text in files for id in self._read(BORDER) + self._read(text)]
        tokens = list[int]()
        if self.form.repository in self._ids:
            tokens += self._mark(self.form.repository) + self._read(REPOSITORY)
        for name, text in files:
            tokens += self._mark(self.form.file) + self._read(f"{name}\n") + self._read(text)
        return tokens + self._mark(self.form.file) + self._read(FILE)

    def _mark(self, name: str) -> list[int]:
        return [self._ids[name]] if name else []

    def _read(self, text: str) -> list[int]:
        """A text's tokens; control tokens that it spells are text."""
        if OPEN in text:
            raise InputError(
                f"the text contains U+{ord(OPEN):X}, which is not a character: leave it out"
            )
        return self._control.read(text)

    def _suffix(self, text: str) -> list[int]:
        if not self.form.is_bare:
            return self._read(text)
        before = self._read(BEFORE)
        both = self._read(BEFORE + text)
        is_apart = both[: len(before)] == before
        return both[len(before) :] if is_apart else self._read(text)


def fill_middle_of(tokenizer: Any, field: str) -> FillMiddle:
    """The form that a tokenizer has.

    Raises FieldError, about this field of a request, for a tokenizer that has none.
    """
    control = control_of(tokenizer)
    for form in FORMS:
        if all(name in control.spelling for name in form.needed):
            return FillMiddle(tokenizer, form, control)
    raise FieldError(
        f"{field}: this model's tokenizer has no tokens to fill in the middle: use a model that "
        "was trained for this",
        field,
    )


def _id(control: Control, name: str) -> int:
    return control.names[control.spelling[name]]
