"""The file that `generate --trace` writes."""

from __future__ import annotations

import os
from pathlib import Path

from longdraft.core.places import new_file
from longdraft.errors import InputError


def check(path: Path, rows: int) -> None:
    """Raises InputError if a trace of this run could not be written to this file."""
    if path.suffix not in (".json", ".html"):
        raise InputError(f"--trace is {path}: give a file that ends in .json or .html")
    if not path.parent.is_dir():
        raise InputError(
            f"--trace: there is no folder {path.parent}: create it, or give another file"
        )
    new_file(path, "--trace")
    if rows > 1:
        raise InputError("--trace records one prompt: give one --prompt-file")


def write(path: Path, trace: str) -> None:
    """Write a trace, given as JSON; a file that is there is replaced once the new one is
    complete.
    """
    text = trace + "\n"
    if path.suffix == ".html":
        from longdraft.server.page import page

        text, _ = page(trace)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}): give another --trace") from None
