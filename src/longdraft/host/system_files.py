"""Short files of the system, which many machines do not have."""

from __future__ import annotations

from pathlib import Path


def text(file: Path) -> str:
    """The content of a file, without white space at its ends; "" if it is absent or unreadable."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(file: Path) -> int | None:
    """The number in a file; None without one."""
    word = text(file)
    return int(word) if word.lstrip("-").isdecimal() else None
