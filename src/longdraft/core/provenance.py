"""Where a record comes from: versions, checkout, command line, time."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from longdraft.version import __version__


def versions() -> dict[str, str]:
    """Versions of longdraft and of what its numbers depend on."""
    return {
        "longdraft": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def checkout() -> dict[str, Any]:
    """git_sha and git_dirty of the checkout that this package runs from; None if it is installed without one."""
    package = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str | None:
        try:
            completed = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return completed.stdout.strip() if completed.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / "longdraft" != package:
        return {"git_sha": None, "git_dirty": None}
    return {"git_sha": git("rev-parse", "HEAD"), "git_dirty": bool(git("status", "--porcelain", "--", ":/src"))}


def command() -> str:
    """This run's command line; absolute paths are shortened to what is meaningful on another machine."""
    return shlex.join(["longdraft", *(relative(word) for word in sys.argv[1:])])


def relative(word: str) -> str:
    """A path below the working directory relative to it, any other absolute path by its name, all else unchanged."""
    path, here = Path(word), Path.cwd()
    if not path.is_absolute():
        return word
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
