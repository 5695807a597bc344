"""The peers that a run compares with: `--peers llama.cpp,openvino --peer-llama-server FILE
--peer-openvino PYTHON` ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from longdraft.bench.peers import openvino
from longdraft.bench.peers.base import Absent, CannotRun, Peer
from longdraft.bench.peers.llama_binary import FLASH, NAME, Binary
from longdraft.bench.peers.llama_cpp import DRAFT, LlamaCpp
from longdraft.bench.peers.llama_server import Build
from longdraft.bench.peers.llama_wheel import WHEEL, Wheel
from longdraft.bench.peers.openvino import OpenVINO
from longdraft.bench.peers.transformers import LOOKUP, Transformers
from longdraft.bench.peers.worker import installed
from longdraft.errors import InputError
from longdraft.models.gguf import parts
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm

NOT_ITS_BEST = (
    "llama.cpp runs as a wheel, which is not built for this processor:"
    " benchmarks/build_llama_cpp.py builds one that is, and --peer-llama-server names it"
)


@dataclass
class ChosenPeers:
    """The peers that the command line names. Raises InputError when made, before any model is
    loaded.

    model: a GGUF file for llama.cpp and OpenVINO, in place of the target's own. drafts: GGUF files
    and folders of small models. server: llama.cpp's binary; without one llama.cpp is the wheel.
    python: an interpreter that has OpenVINO GenAI; without one it is this interpreter, if it has
    the package. only: labels of peers, as tables have them; without any, all that the engines
    offer.
    """

    names: str
    model: Path | None = None
    drafts: list[Path] = field(default_factory=list)
    server: Path | None = None
    python: Path | None = None
    only: str = ""

    def __post_init__(self) -> None:
        self.chosen = _split(self.names)
        self.labels = _split(self.only)
        for name in self.chosen:
            if name not in PEERS:
                raise InputError(f"unknown peer {name!r}: choose from {', '.join(PEERS)}")
        if not self.chosen:
            raise InputError(f"no engine is given: give --peers {','.join(PEERS)}")
        if self.server is not None:
            if NAME not in self.chosen:
                raise InputError("--peer-llama-server is llama.cpp's: add it to --peers")
            if not _is_program(self.server):
                raise InputError(
                    f"{self.server} is not a program: give --peer-llama-server llama.cpp's "
                    "llama-server"
                )
        if self.python is not None:
            if openvino.NAME not in self.chosen:
                raise InputError("--peer-openvino is OpenVINO's: add openvino to --peers")
            if not _is_program(self.python):
                raise InputError(
                    f"{self.python} is not a program: give --peer-openvino a Python with "
                    "openvino-genai"
                )
        if self.model is not None:
            _check(self.model, "--peer-model a GGUF file")
        for draft in self.drafts:
            if not (draft / "config.json").is_file():
                _check(draft, "--peer-draft a GGUF file or a folder with config.json")

    def find(self, target: LM) -> tuple[list[Peer], list[str]]:
        """The peers, and a line on each that cannot be had (Absent). Raises InputError for a label
        that none has.
        """
        peers: list[Peer] = []
        offered: list[str] = []
        lines = [NOT_ITS_BEST] if NAME in self.chosen and self.server is None else []
        for name in self.chosen:
            try:
                for label, make in PEERS[name](self, target):
                    offered.append(label)
                    if self.labels and label not in self.labels:
                        continue
                    try:
                        peers.append(make(label))
                    except CannotRun as why:
                        lines.append(left_out(label, why))
                        peers.append(Absent(name, label, why))
            except CannotRun as why:
                lines.append(left_out(name, why))
                peers.append(Absent(name, name, why))
                offered += [label for label in self.labels if label.startswith(name)]
        if unknown := [label for label in self.labels if label not in offered]:
            raise InputError(
                f"--peer-only has no {unknown[0]!r} to choose from: {', '.join(offered) or 'none'}"
            )
        return peers, lines

    def draft(self, is_gguf: bool) -> Path | None:
        """The small model in the form that an engine reads."""
        return next((d for d in self.drafts if d.is_file() == is_gguf), None)

    def file(self, target: LM) -> Path:
        """The GGUF file with the target's weights. Raises CannotRun."""
        if target.weights and not self.model:
            raise CannotRun(
                f"the target is quantized by --weights {target.weights}: name a GGUF file "
                "with --peer-model"
            )
        file = self.model or gguf_of(target)
        if file is None:
            raise CannotRun(
                "the model is not a GGUF file: name the same model's with --peer-model FILE.gguf"
            )
        return file


def _split(names: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


def left_out(label: str, why: CannotRun) -> str:
    return f"{label} is left out: {why}"


Kinds = Iterator[tuple[str, Callable[[str], Peer]]]


def _llama_cpp(choice: ChosenPeers, target: LM) -> Kinds:
    """A binary with each kind of speculation and each kind of attention, and the wheel as a second
    row.
    """
    builds: list[Build] = (
        [Wheel()] if choice.server is None else [Binary(choice.server, flash) for flash in FLASH]
    )
    file = choice.file(target)
    draft = choice.draft(is_gguf=True)
    for build in builds:
        options = f"@fa={build.flash}" if isinstance(build, Binary) else ""
        yield f"{build.name}{options}", lambda label, b=build: LlamaCpp(label, b, file)
        for kind in build.ngrams():
            yield (
                f"{build.name} {kind}{options}",
                lambda label, b=build, k=kind: LlamaCpp(label, b, file, k),
            )
        if choice.drafts:
            yield (
                f"{build.name} draft model{options}",
                lambda label, b=build: LlamaCpp(label, b, file, DRAFT, _given(draft, "GGUF file")),
            )
    if choice.server is not None:
        yield WHEEL, lambda label: LlamaCpp(label, Wheel(), file)


def _openvino(choice: ChosenPeers, target: LM) -> Kinds:
    """Alone and with each kind of its speculation."""
    if choice.python is None and find_spec("openvino_genai") is None:
        raise CannotRun(
            "this interpreter has no openvino-genai: name one that has it with "
            "--peer-openvino PYTHON"
        )
    python = choice.python or Path(sys.executable)
    file = choice.file(target)
    draft = choice.draft(is_gguf=True)
    installed(python, openvino.PACKAGE)
    yield openvino.NAME, lambda label: OpenVINO(label, python, file)
    yield (
        f"{openvino.NAME} prompt lookup",
        lambda label: OpenVINO(label, python, file, "prompt lookup"),
    )
    if choice.drafts:
        yield (
            f"{openvino.NAME} draft model",
            lambda label: OpenVINO(label, python, file, "draft model", _given(draft, "GGUF file")),
        )


def _transformers(choice: ChosenPeers, target: LM) -> Kinds:
    """Its draft model is a folder, or a GGUF file whose weights are unpacked like the target's."""
    small = choice.draft(is_gguf=False) or choice.draft(is_gguf=True)
    yield "transformers", Transformers
    yield "transformers static cache", lambda label: Transformers(label, "static")
    yield "transformers prompt lookup", lambda label: Transformers(label, lookup=LOOKUP)
    if choice.drafts:
        name = str(target.dtype).removeprefix("torch.")
        yield (
            "transformers assisted",
            lambda label: Transformers(
                label, draft=load_lm(str(_given(small, "folder or GGUF file")), name)
            ),
        )


PEERS: dict[str, Callable[[ChosenPeers, LM], Kinds]] = {
    NAME: _llama_cpp,
    openvino.NAME: _openvino,
    "transformers": _transformers,
}


def _is_program(file: Path) -> bool:
    return file.is_file() and os.access(file, os.X_OK)


def _check(file: Path, role: str) -> None:
    try:
        with file.open("rb") as f:
            magic = f.read(4)
    except OSError as error:
        raise InputError(f"cannot read {file} ({error.strerror}): give {role}") from None
    if magic != b"GGUF":
        raise InputError(f"{file} is not a GGUF file: give {role}")


def _given(draft: Path | None, form: str) -> Path:
    if draft is None:
        raise CannotRun(f"its draft model must be a {form}: name it with --peer-draft")
    return draft


def gguf_of(target: LM) -> Path | None:
    """The GGUF file that a model was loaded from; of a split one the first part.

    The file need not be named .gguf: one of Ollama's is not.
    """
    own = target.hf.name_or_path
    names = [target.name, own] if target.name.endswith(".gguf") else [own]
    files = [Path(name).expanduser() for name in names if name]
    there = next((f for f in files if f.is_file()), None)
    return None if there is None else parts.files_of(there)[0]
