"""The report on one part of the examination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A fault, and what to do about it.

    fails: the installation is broken, and not only slower.
    """

    what: str
    do: str
    fails: bool = False


@dataclass(frozen=True)
class PartReport:
    """The lines for a person to read, and the facts from which they were made."""

    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    problems: Sequence[Finding] = ()

    def json(self) -> dict[str, Any]:
        problems = [asdict(problem) for problem in self.problems]
        return {**self.facts, "text": list(self.lines), "problems": problems}


def count(number: float, noun: str) -> str:
    """ "1 core", "2 cores"."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def short(path: Path | str) -> str:
    """A path with ~ for the user's folder: a report need not say whose it is."""
    try:
        inside = Path(path).relative_to(Path.home())
    except (ValueError, RuntimeError):  # elsewhere; a user without a folder
        return str(path)
    return str("~" / inside)
