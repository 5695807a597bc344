"""Files and folders that a command will write: refused before its work, not after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path

from longdraft.errors import InputError


def new_folder(path: Path, option: str = "--out", replaced: Collection[str] | None = ()) -> Path:
    """The absolute path of a folder that can be written, which is new or empty.

    replaced: names of files that may be in it already; None: any. Raises InputError.
    """
    folder = _named(path, option)
    if folder.exists():
        if not folder.is_dir():
            raise InputError(f"{option} is {path}, which exists and is a file: give a new folder")
        with _writable(path, option):
            names = [] if replaced is None else os.listdir(folder)
        odd = next((name for name in names if name not in (replaced or ())), None)
        if odd is not None:
            problem = f"has other files in it, such as {odd}"
            if not replaced:
                problem = "exists and is not empty"
            raise InputError(f"{option}: {path} {problem}: give a new folder, or an empty one")
    _probe(folder.parent, path, option)
    return folder


def new_file(path: Path, option: str = "--out") -> Path:
    """The absolute path of a file that can be written; one that is there may be replaced.

    Raises InputError.
    """
    file = _named(path, option)
    if file.is_dir():
        raise InputError(f"{option} is {path}, which is a folder: give a file")
    if file.exists() and not file.is_file():
        raise InputError(f"{option} is {path}, which is a device: give a file")
    _probe(file.parent, path, option)
    return file


def _named(path: Path, option: str) -> Path:
    """The absolute path, without links.

    The current folder and the folders around it are refused: they have no name to be written under.
    """
    absolute = Path(os.path.realpath(os.path.expanduser(path)))
    if Path.cwd().is_relative_to(absolute):
        raise InputError(
            f"{option} is {str(path)!r}, the current folder or one around it: give the "
            "name of a new one"
        )
    return absolute


@contextmanager
def _writable(path: Path, option: str) -> Generator[None]:
    """Turns what the system says of a path into one line."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {path} ({error.strerror or error}): give another {option}"
        ) from None


def _probe(folder: Path, path: Path, option: str) -> None:
    """Try to write where `folder` is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    with _writable(path, option), tempfile.TemporaryDirectory(prefix=".longdraft-", dir=folder):
        pass
