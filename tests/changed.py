"""Prints which slow parts of `make test-all` a change needs: those whose files changed since a
commit.

python tests/changed.py            # since LONGDRAFT_BASE, or else since the last commit 12 hours
older than HEAD python tests/changed.py COMMIT     # since this one

Where the commit cannot be told (no git, a shallow clone), every part is printed. `make test-weekly`
runs them all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = (
    "src/longdraft/ops/native/",
    "src/longdraft/backends/native/",
    "setup.py",
    "tests/harder.py",
)
PARTS = {
    "haswell": NATIVE,
    "asan": NATIVE,
    "products": ("src/longdraft/ops/native/", "tests/support/native_products.cpp"),
    "gpu": (
        "constraints.txt",
        "src/longdraft/ops/triton/",
        "src/longdraft/backends/",
        "benchmarks/gpu.py",
        "tests/support/gpu_",
    ),
    "kinds": (
        "pyproject.toml",
        "constraints.txt",
        "src/longdraft/backends/",
        "src/longdraft/models/",
        "benchmarks/coverage.py",
    ),
    "oldest": ("pyproject.toml", "constraints.txt", "src/longdraft/backends/", "tests/oldest.py"),
}


def git(*words: str) -> str | None:
    """What git prints; None where it fails or is missing."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def before() -> str | None:
    """The last commit that is 12 hours older than HEAD."""
    latest = git("log", "-1", "--format=%ct")
    if not latest:
        return None
    return git("rev-list", "-1", f"--before=@{int(latest) - 12 * 3600}", "HEAD") or None


def files(base: str | None) -> list[str] | None:
    """The files that differ from this commit, also those that are not committed; None where that
    cannot be told.
    """
    listed = git("diff", "--name-only", base, "--") if base else None
    return None if listed is None else listed.splitlines()


def needed(changed: list[str] | None) -> list[str]:
    """The parts that these files need; all of them where the files are not known."""
    if changed is None:
        return list(PARTS)
    return [
        part
        for part, prefixes in PARTS.items()
        if any(path.startswith(prefixes) for path in changed)
    ]


if __name__ == "__main__":
    print(
        *needed(
            files(sys.argv[1] if sys.argv[1:] else os.environ.get("LONGDRAFT_BASE") or before())
        )
    )
