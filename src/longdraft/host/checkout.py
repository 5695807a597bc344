"""The checkout from which this package runs, if it is one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]


def checkout() -> dict[str, Any]:
    """git_sha and git_dirty of the checkout from which this package runs.

    They are None if it is installed without one.
    """

    def git(*words: str) -> str | None:
        try:
            completed = subprocess.run(
                ["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return completed.stdout.strip() if completed.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / "longdraft" != PACKAGE:
        return {"git_sha": None, "git_dirty": None}
    return {
        "git_sha": git("rev-parse", "HEAD"),
        "git_dirty": bool(git("status", "--porcelain", "--", ":/src")),
    }
