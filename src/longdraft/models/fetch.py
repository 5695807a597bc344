"""Downloads a model once into the user's cache, whole or not at all.

A model is a file of a pinned size and sha256. What has arrived of a download that ended early stays
in a folder beside the file, and the next one goes on from there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from longdraft.errors import InputError
from longdraft.models import hub_files, local
from longdraft.models.catalog import SOURCES, Model
from longdraft.models.sources import Source

PARTIAL = ".fetch-"  # how folders begin that hold what has arrived so far
LOCK = ".lock"  # held by the process that downloads
EVERY_S = 0.2  # between two looks at how much has arrived


def cache_folder() -> Path:
    """LONGDRAFT_CACHE, else longdraft in XDG_CACHE_HOME or in ~/.cache."""
    if own := os.environ.get("LONGDRAFT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "longdraft"


def place_of(name: str) -> Path:
    """The path of the file of a model in SOURCES, once it is fetched."""
    return cache_folder() / name / SOURCES[name].file


def is_there(name: str) -> bool:
    """Whether a file of the right size is in the cache; its contents are compared by `check`."""
    place = place_of(name)
    return place.is_file() and place.stat().st_size == SOURCES[name].size


def is_file(name: str | Path) -> bool:
    """Whether a model's name stands for a GGUF file.

    It is a model of `longdraft fetch`, a path, hf:ORG/REPO:TYPE or ollama:NAME.
    """
    path = Path(name).expanduser()
    is_name = name in SOURCES or str(name).startswith((hub_files.PREFIX, local.PREFIX))
    return (is_name or path.suffix.lower() == ".gguf") and not path.is_dir()


def file_of(name: str | Path) -> Path:
    """The GGUF file that a name stands for (`is_file`).

    Only hf:ORG/REPO:TYPE downloads. Raises InputError for a model that is not here.
    """
    if isinstance(name, Path):
        return name.expanduser()
    if name in SOURCES:
        return fetched(name)
    if name.startswith(hub_files.PREFIX):
        return hub_files.file_of(name)
    return local.file_of(name) if name.startswith(local.PREFIX) else Path(name).expanduser()


def fetched(name: str) -> Path:
    """The file of a model in SOURCES. Raises InputError if it has not been fetched."""
    place = place_of(name)
    if not is_there(name):
        raise InputError(f"{name} is not in {cache_folder()}: run `longdraft fetch {name}` first")
    return place


def check(name: str) -> Path:
    """Compare the file in the cache with its sha256 -> the file.

    Raises InputError if it is absent or damaged.
    """
    model = _known(name)
    place = place_of(name)
    if not place.exists():
        fetched(name)
    if not _is(place, model):
        raise InputError(
            f"{place} is damaged (another size or sha256): run `longdraft fetch {name}` to "
            "download it again"
        )
    return place


def fetch(
    name: str, report: Callable[[int], None] | None = None, say: Callable[[str], None] | None = None
) -> tuple[Path, bool]:
    """Download a model unless it is there, undamaged -> (its file, whether it was there).

    Raises InputError. The file appears once it is whole and right. A second process that fetches it
    waits for the first. report: called now and then with the bytes that have arrived. say: called
    with a line that says what is downloaded from where.
    """
    model = _known(name)
    place = place_of(name)
    say = say or (lambda line: None)
    try:
        if is_there(name) and _is(place, model):
            return place, True
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(
            place.parent / LOCK,
            lambda: say(f"Another process downloads {name}: waiting for it ..."),
        ):
            if is_there(name) and _is(place, model):
                return place, True  # that process has downloaded it
            _from_any(model, place, report, say)
    except OSError as error:
        need = model.size + max(source.extra for source in model.sources)
        raise InputError(
            f"cannot write {name} to {place.parent} ({error.strerror or error}): it takes up to "
            f"{need / 1e6:.0f} MB; free some there, or set LONGDRAFT_CACHE to another folder"
        ) from None
    return place, False


def _known(name: str) -> Model:
    if name not in SOURCES:
        raise InputError(f"there is no model {name[:40]!r} to fetch: choose {', '.join(SOURCES)}")
    return SOURCES[name]


@contextmanager
def _alone(file: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock, which ends with the process.

    wait: called if another process holds it now.
    """
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _from_any(
    model: Model, place: Path, report: Callable[[int], None] | None, say: Callable[[str], None]
) -> None:
    """Put the file in its place from the first source that has it.

    Raises InputError with the reason why each has not.
    """
    work = place.parent / f"{PARTIAL}{model.sha256[:16]}"
    for left in place.parent.glob(f"{PARTIAL}*"):
        if left != work:  # of another version of the file
            shutil.rmtree(left, ignore_errors=True)
    reasons = []
    for i, source in enumerate(model.sources):
        folder = work / str(i)
        (folder / "parts").mkdir(parents=True, exist_ok=True)
        try:
            _from_one(model, source, folder, report, say)
        except InputError as error:
            reasons.append(str(error))
            if source is not model.sources[-1]:
                say(f"{error}: trying the next source")
            continue
        finally:
            _remove_empty(folder)
        os.replace(folder / "whole", place)
        shutil.rmtree(work, ignore_errors=True)
        return
    raise InputError("; then: ".join(reasons))


def _from_one(
    model: Model,
    source: Source,
    folder: Path,
    report: Callable[[int], None] | None,
    say: Callable[[str], None],
) -> None:
    """Make `folder`/whole the model's file.

    Raises InputError, also for another file, of which nothing is kept.
    """
    whole = folder / "whole"
    parts = folder / "parts"
    held = source.resume(whole, parts)
    _check_room(folder, model.size - held + source.extra)
    known = f", of which {held / 1e6:.0f} MB are here" if held else ""
    say(
        f"Downloading {model.about} ({model.license}), {model.size / 1e6:.0f} MB{known}, "
        f"from {source.name} ..."
    )
    with _watched(lambda: source.arrived(whole, parts), report):
        source.write(whole, parts)
    if not _is(whole, model):
        shutil.rmtree(folder, ignore_errors=True)
        raise InputError(
            f"{model.file} from {source.name} is not the expected file: nothing was kept; try again"
        )
    with whole.open("rb") as file:
        os.fsync(file.fileno())  # so that not even a power failure leaves another file of this size


def _check_room(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need:
        raise OSError(
            errno.ENOSPC, f"{free / 1e6:.0f} MB are free, and {need / 1e6:.0f} MB more are needed"
        )


def _remove_empty(folder: Path) -> None:
    """Remove a source's folder if nothing in it can be used by the next download."""
    if not any(file.is_file() and file.stat().st_size for file in folder.rglob("*")):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


def _is(file: Path, model: Model) -> bool:
    """Whether a file has the model's size and sha256."""
    if file.stat().st_size != model.size:
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == model.sha256


@contextmanager
def _watched(arrived: Callable[[], int], report: Callable[[int], None] | None) -> Iterator[None]:
    """Report now and then how many bytes have arrived."""
    if report is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            with suppress(OSError):  # a file that has just been moved
                report(arrived())

    watcher = threading.Thread(target=watch, name="longdraft-fetch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
