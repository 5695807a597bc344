"""GGUF files that llama.cpp, Ollama and LM Studio keep on this machine. They are only read.

Ollama names its files by manifests, which are checked before they are used.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longdraft.errors import InputError
from longdraft.models.gguf import parts

PREFIX = "ollama:"
WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
NAME = re.compile(rf"{PREFIX}(?:(?:({WORD})/)?({WORD})/)?({WORD})(?::({WORD}))?")
REGISTRY = "registry.ollama.ai"
LIBRARY = "library"
LATEST = "latest"
MODEL = "application/vnd.ollama.image.model"
DIGEST = re.compile("sha256:([0-9a-f]{64})")
PROJECTOR = "mmproj"  # in the names of files with the vision tower of a model


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache of another program. name: what `-m` accepts."""

    name: str
    program: str
    size: int  # bytes, of all parts


def file_of(name: str) -> Path:
    """The file of ollama:NAME[:TAG], where Ollama keeps it. Raises InputError."""
    match = NAME.fullmatch(name)
    if match is None:
        raise InputError(
            f"{name[:80]!r} is not the name of a model of Ollama: give ollama:NAME, "
            "ollama:NAME:TAG or ollama:ORG/NAME:TAG"
        )
    pull = f"run `ollama pull {name.removeprefix(PREFIX)}`"
    host, space, model, tag = match.groups()
    where = (host or REGISTRY, space or LIBRARY, model, tag or LATEST)
    manifest = _ollama().joinpath("manifests", *where)
    if not _is_file(manifest):
        raise InputError(
            f"{name} is not in {_ollama()}: {pull}, choose a model that `longdraft fetch` lists, "
            "or set OLLAMA_MODELS to the folder of Ollama's models"
        )
    blob = _ollama() / "blobs" / f"sha256-{_digest(manifest, pull)}"
    if not _is_file(blob):
        raise InputError(f"{manifest} names {blob}, which is missing: {pull}")
    return blob


def models() -> list[CachedModel]:
    """The models in the caches of these programs."""
    studio = [Path("~/.lmstudio/models"), Path("~/.cache/lm-studio/models")]
    in_studio = (f for folder in studio for f in folder.expanduser().glob("*/*/*.gguf"))
    return [
        *_of_ollama(),
        *_of_files("llama.cpp", _llama().glob("*.gguf")),
        *_of_files("LM Studio", in_studio),
    ]


def _ollama() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()


def _llama() -> Path:
    if own := os.environ.get("LLAMA_CACHE"):
        return Path(own).expanduser()
    usual = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME")
    return Path(usual or "~/.cache").expanduser() / "llama.cpp"


def _digest(manifest: Path, pull: str) -> str:
    """The sha256 of the model's file, in hexadecimal digits. Raises InputError."""
    from longdraft.core.files import read_json  # `core` loads Transformers, which `doctor` does not

    layers = read_json(manifest).get("layers")
    digests = [
        layer.get("digest")
        for layer in (layers if isinstance(layers, list) else [])
        if isinstance(layer, dict) and layer.get("mediaType") == MODEL
    ]
    only = digests[0] if len(digests) == 1 else None
    match = DIGEST.fullmatch(only) if isinstance(only, str) else None
    if match is None:
        raise InputError(f"{manifest} does not name one model file by its sha256: {pull}")
    return match[1]


def _of_ollama() -> Iterator[CachedModel]:
    """Models whose manifests and files are there, by the shortest name of each."""
    root = _ollama() / "manifests"
    for manifest in sorted(root.glob("*/*/*/*")):
        *where, tag = manifest.relative_to(root).parts
        short = "/".join(where).removeprefix(f"{REGISTRY}/").removeprefix(f"{LIBRARY}/")
        name = f"{PREFIX}{short}:{tag}"
        with suppress(InputError, OSError):
            yield CachedModel(name, "Ollama", file_of(name).stat().st_size)


def _of_files(program: str, files: Iterable[Path]) -> Iterator[CachedModel]:
    """Whole models: of split ones the first parts, if no part is missing."""
    for file in sorted(files):
        each = parts.files_of(file)
        is_model = each[0] == file and PROJECTOR not in file.name.lower()
        if is_model and str(file).isprintable() and all(map(_is_file, each)):
            with suppress(OSError):
                size = sum(part.stat().st_size for part in each)
                yield CachedModel(shlex.quote(str(file)), program, size)


def _is_file(path: Path) -> bool:
    """Whether a file is there and its folder is readable."""
    try:
        return path.is_file()
    except OSError:
        return False
