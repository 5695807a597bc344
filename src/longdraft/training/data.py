"""Turns text on this machine into one array of tokens with documents and groups.

The boundaries of both are stored with it. A group is a book, or the files of one package in path
order. A training row is consecutive tokens of one group.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longdraft.core.files import parse
from longdraft.errors import InputError
from longdraft.training import hub

TEXT_KINDS = ("code", "book")
HOLDOUT = "holdout.json"  # in a model's folder: patterns of the files that it was not trained on
# Vendored packages are near-copies of held-out or installed files.
SKIP_PARTS = {
    "_vendor",
    "test",
    "tests",
    "testing",
    "idle_test",
    "lib2to3",
    "__pycache__",
    "site-packages",
}
SKIP_PARTS |= {"ensurepip", "msilib", "_click"}
LEAST_TOKENS = 2000
LONGEST_LINE = 600  # files with longer lines are data or generated code


@dataclass
class Document:
    """One file's text. kind: code or book. Files of one group may share a row."""

    name: str
    group: str
    kind: str
    text: str


@dataclass
class Corpus:
    """Tokens of all documents, with their boundaries.

    Groups are contiguous, each document ends with eos, offsets ascend to len(tokens).
    """

    tokens: np.ndarray  # [N] uint16, or uint32 for a large vocabulary
    starts: np.ndarray  # int64 [documents + 1]
    groups: np.ndarray  # int64 [groups + 1]: token offsets
    names: list[str]
    group_names: list[str]
    kinds: list[str]  # of the groups

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for field in ("tokens", "starts", "groups"):
            np.save(folder / f"{field}.npy", getattr(self, field))
        meta = {field: getattr(self, field) for field in ("names", "group_names", "kinds")}
        (folder / "corpus.json").write_text(json.dumps(meta))

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        try:
            arrays = {
                f: np.load(folder / f"{f}.npy", mmap_mode="r")
                for f in ("tokens", "starts", "groups")
            }
            return cls(**arrays, **parse((folder / "corpus.json").read_text()))
        except (OSError, ValueError, TypeError) as error:
            fault = f"{folder}: no readable tokenized data ({error})"
            raise InputError(f"{fault}; delete the folder to make it again") from None

    def count(self, kind: str) -> int:
        """Tokens of this kind of text."""
        return int(np.diff(self.groups)[np.asarray(self.kinds) == kind].sum())

    def frequent(self, count: int, vocab: int) -> np.ndarray:
        """The `count` most frequent of the tokens 0..vocab-1, ascending."""
        counts = np.bincount(np.asarray(self.tokens), minlength=vocab)[:vocab]
        return np.sort(np.argsort(-counts, kind="stable")[:count])


@dataclass(frozen=True)
class Sources:
    """Sources of text: names, this Python's library and packages, or both.

    names: folders, globs, hf: datasets.
    """

    names: list[str]
    environment: bool = True
    package_cap: int = 8_000_000  # characters of one installed package
    dataset_cap: int = 50_000_000  # characters of one Hub dataset


def load(home: Path) -> tuple[Corpus, Corpus]:
    """The corpora in home/train and home/heldout.

    Raises InputError if there is too little text to train on.
    """
    corpus, heldout = (Corpus.load(home / name) for name in ("train", "heldout"))
    if len(corpus.tokens) < LEAST_TOKENS:
        raise InputError(
            f"only {len(corpus.tokens)} tokens to train on: give at least {LEAST_TOKENS}, "
            "better millions"
        )
    return corpus, heldout


def held_out(name: str, patterns: list[str]) -> bool:
    """Whether a name matches one of the patterns, which may use *.

    Names are like `stdlib/argparse.py`, `typer/main.py` or `books/dracula.txt`.
    """
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def read(path: Path) -> str | None:
    """The file's text; None if it is not UTF-8, too short to learn from, or not written by hand."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    long_lines = max(map(len, text.splitlines()), default=0) > LONGEST_LINE
    return None if len(text) < 300 or (path.suffix == ".py" and long_lines) else text


def environment_code(cap: int) -> list[Document]:
    """The standard library, and at most `cap` characters of each installed package.

    They are spread evenly over a package's files.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    site = Path(sysconfig.get_path("purelib"))
    documents = package("stdlib", stdlib, cap=10**9)
    skipped = ("longdraft", "_distutils_hack", "__pycache__")
    for folder in sorted(site.iterdir()):
        if folder.is_dir() and "." not in folder.name and folder.name not in skipped:
            documents += package(folder.name, folder, cap)
    return documents


def package(name: str, root: Path, cap: int) -> list[Document]:
    """Python files under root in path order.

    Each first-level folder is a group, and so are the files beside them.
    """
    documents = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIP_PARTS & set(relative.parts[:-1]) or (text := read(path)) is None:
            continue
        group = f"{name}/{relative.parts[0]}" if len(relative.parts) > 1 else name
        documents.append(Document(f"{name}/{relative.as_posix()}", group, "code", text))
    keep = min(1.0, cap / max(1, sum(len(d.text) for d in documents)))
    return [d for i, d in enumerate(documents) if int((i + 1) * keep) > int(i * keep)]


def text_of(source: str, cap: int) -> list[Document]:
    """A Hub dataset (hf:..., at most `cap` characters), or the files of a folder or a glob.

    Raises InputError.
    """
    if source.startswith(hub.PREFIX):
        rows = list[Document]()
        for i, (kind, text) in enumerate(hub.documents(source, cap)):
            rows.append(Document(f"{source}/{i}", f"{source}/{i}", kind, text))
        return rows
    documents = text_files(source)
    if not documents:
        raise InputError(
            f"no readable text matches {source!r}; give a glob of UTF-8 files such as 'books/*.txt'"
        )
    return documents


def text_files(pattern: str) -> list[Document]:
    """The files of a folder or of a glob such as `books/*.txt`, each of which is a group.

    Every line of a .jsonl file is a group too.
    """
    if not pattern.strip("/"):  # every file of this machine
        raise InputError(
            f"--text is {pattern!r}: give a folder or a glob of UTF-8 files, such as 'books/*.txt'"
        )
    if Path(pattern).is_dir():
        pattern = f"{pattern.rstrip('/')}/**/*"
    root = Path("/") if pattern.startswith("/") else Path()
    documents = []
    try:
        paths = sorted(root.glob(pattern.lstrip("/")))
    except (ValueError, NotImplementedError) as error:  # "a**b", for example
        raise InputError(
            f"--text {pattern[:80]!r} is no folder or glob ({error}): give one, such as "
            "'books/*.txt'"
        ) from None
    for path in paths:
        name = f"{path.parent.name}/{path.name}"
        if path.suffix == ".jsonl" and path.is_file():
            documents += json_lines(path, name)
        elif path.is_file() and (text := read(path)) is not None:
            documents.append(Document(name, name, "code" if path.suffix == ".py" else "book", text))
    return documents


def json_lines(path: Path, name: str) -> list[Document]:
    """The "text" field of every line. Raises InputError."""
    documents = []
    try:
        for i, line in enumerate(path.read_text(encoding="utf-8").split("\n")):
            if line.strip():
                own = f"{name}:{i + 1}"
                documents.append(Document(own, own, "book", str(parse(line)["text"])))
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f'{path}, line {len(documents) + 1}: give JSON lines like {{"text": "..."}}'
        ) from None
    return documents


def collect(sources: Sources) -> list[Document]:
    """All documents without duplicates (by content), sorted so that groups are contiguous."""
    documents = environment_code(sources.package_cap) if sources.environment else []
    for name in sources.names:
        documents += text_of(name, sources.dataset_cap)
    unique: dict[bytes, Document] = {}
    for document in documents:
        unique.setdefault(hashlib.sha256(document.text.encode()).digest(), document)
    return sorted(unique.values(), key=lambda d: (d.kind, d.group, d.name))


def split(documents: list[Document], patterns: list[str]) -> tuple[list[Document], list[Document]]:
    """-> (training documents, held-out documents)."""
    out = [d for d in documents if held_out(d.name, patterns)]
    return [d for d in documents if not held_out(d.name, patterns)], out


def tokenize(documents: list[Document], tokenizer, eos: int, vocab: int = 1 << 16) -> Corpus:
    """Encode documents; `tokenizer` is a tokenizers.Tokenizer with at most `vocab` entries."""
    pieces = []
    lengths = []
    kind = np.uint16 if vocab <= 1 << 16 else np.uint32
    for begin in range(0, len(documents), 64):
        for encoded in tokenizer.encode_batch([d.text for d in documents[begin : begin + 64]]):
            pieces.append(np.asarray([*encoded.ids, eos], kind))
            lengths.append(len(pieces[-1]))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    first = [i for i, d in enumerate(documents) if i == 0 or d.group != documents[i - 1].group]
    tokens = np.concatenate(pieces) if pieces else np.zeros(0, kind)
    groups = np.asarray([*starts[first], len(tokens)], np.int64)
    heads = [documents[i] for i in first]
    names = [d.name for d in documents]
    return Corpus(tokens, starts, groups, names, [d.group for d in heads], [d.kind for d in heads])
