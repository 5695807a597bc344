"""Which peers a run compares with, from `--peers llama.cpp,transformers --peer-model FILE --peer-draft FILE`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from longdraft.bench.peers.base import CannotRun, Peer
from longdraft.bench.peers.llama_cpp import DRAFT, NGRAMS, LlamaCpp
from longdraft.bench.peers.llama_server import package
from longdraft.bench.peers.transformers import LOOKUP, Transformers
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm


@dataclass
class Choice:
    """The peers that the command line names. Raises InputError when made, before any model is loaded.

    model: a GGUF file for llama.cpp, in place of the target's own. drafts: GGUF files and folders of small models.
    """

    names: str
    model: Path | None = None
    drafts: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chosen = list(dict.fromkeys(name.strip() for name in self.names.split(",") if name.strip()))
        for name in self.chosen:
            if name not in PEERS:
                raise InputError(f"unknown peer {name!r}: choose from {', '.join(PEERS)}")
        if not self.chosen and (self.model or self.drafts):
            raise InputError("--peer-model and --peer-draft are for other engines: add --peers llama.cpp,transformers")
        if self.model is not None:
            _check(self.model, "--peer-model a GGUF file")
        for draft in self.drafts:
            if not (draft / "config.json").is_file():
                _check(draft, "--peer-draft a GGUF file or a folder with config.json")

    def find(self, target: LM) -> tuple[list[Peer], list[str]]:
        """The peers that can run, and a line on each that cannot."""
        found: list[Peer] = []
        lines: list[str] = []
        for name in self.chosen:
            try:
                for label, make in PEERS[name](self, target):
                    try:
                        found.append(make(label))
                    except CannotRun as why:
                        lines.append(left_out(label, why))
            except CannotRun as why:
                lines.append(left_out(name, why))
        return found, lines

    def draft(self, is_gguf: bool) -> Path | None:
        """The small model in the form that an engine reads."""
        return next((d for d in self.drafts if d.is_file() == is_gguf), None)


def left_out(label: str, why: CannotRun) -> str:
    return f"{label} is left out: {why}"


Kinds = Iterator[tuple[str, Callable[[str], Peer]]]


def _llama_cpp(choice: Choice, target: LM) -> Kinds:
    package()
    if target.weights and not choice.model:
        raise CannotRun(f"the target is quantised by --weights {target.weights}: name a GGUF file with --peer-model")
    file = choice.model or gguf_of(target)
    if file is None:
        raise CannotRun("the model is not a GGUF file: name the same model's with --peer-model FILE.gguf")
    draft = choice.draft(is_gguf=True)
    yield "llama.cpp", lambda label: LlamaCpp(label, file)
    for kind in NGRAMS:
        yield f"llama.cpp {kind}", lambda label, kind=kind: LlamaCpp(label, file, kind)
    if choice.drafts:
        yield "llama.cpp draft model", lambda label: LlamaCpp(label, file, DRAFT, _given(draft, "GGUF file"))


def _transformers(choice: Choice, target: LM) -> Kinds:
    folder = choice.draft(is_gguf=False)
    yield "transformers", Transformers
    yield "transformers static cache", lambda label: Transformers(label, "static")
    yield "transformers prompt lookup", lambda label: Transformers(label, lookup=LOOKUP)
    if choice.drafts:
        name = str(target.dtype).removeprefix("torch.")
        yield (
            "transformers assisted",
            lambda label: Transformers(label, draft=load_lm(str(_given(folder, "folder")), name)),
        )


PEERS: dict[str, Callable[[Choice, LM], Kinds]] = {"llama.cpp": _llama_cpp, "transformers": _transformers}


def _check(file: Path, what: str) -> None:
    try:
        with file.open("rb") as f:
            magic = f.read(4)
    except OSError as error:
        raise InputError(f"cannot read {file} ({error.strerror}): give {what}") from None
    if magic != b"GGUF":
        raise InputError(f"{file} is not a GGUF file: give {what}")


def _given(draft: Path | None, form: str) -> Path:
    if draft is None:
        raise CannotRun(f"its draft model must be a {form}: name it with --peer-draft")
    return draft


def gguf_of(target: LM) -> Path | None:
    """The GGUF file that a model was loaded from."""
    names = (target.name, target.hf.name_or_path)
    files = [Path(name).expanduser() for name in names if name.endswith(".gguf")]
    return next((f for f in files if f.is_file()), None)
