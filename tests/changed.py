"""Prints which slow parts of `make test-all` a change needs, by the files that changed.

    python tests/changed.py            # since LONGDRAFT_BASE, or the commit that .ci/passed names
    python tests/changed.py COMMIT     # since this one
    python tests/changed.py --folders  # the folders whose tests marked `full` the change needs
    python tests/changed.py --weekly   # the tests marked `weekly` that it needs

The commit in .ci/passed passed `make test-all`. Where that is no commit before HEAD, the last one
that is 12 hours older counts; where none can be told (no git, a shallow clone), everything is
printed. `make test-weekly` runs it all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSED = ROOT / ".ci" / "passed"
NATIVE = (
    "src/longdraft/ops/native/*",
    "src/longdraft/backends/native/*",
    "setup.py",
    "tests/harder.py",
)
VERSIONS = ("pyproject.toml", "constraints.txt")
GPU = (
    "constraints.txt",
    "src/longdraft/ops/triton/*",
    "src/longdraft/backends/cuda/*",
    "benchmarks/gpu.py",
    "tests/support/gpu_*",
    "tests/support/scan_checks.py",
)
PARTS = {  # by patterns of paths
    "haswell": NATIVE,
    "asan": NATIVE,
    "products": (
        "src/longdraft/ops/native/*.h",
        "src/longdraft/ops/native/*.cpp",
        "tests/support/native_products.cpp",
    ),
    "gpu": GPU,
    "gpu_step": (*GPU, "src/longdraft/backends/*"),
    "kinds": (*VERSIONS, "benchmarks/coverage.py"),
    "processes": (
        "src/longdraft/backends/divided.py",
        "src/longdraft/core/processes.py",
        "src/longdraft/models/tensor_parallel.py",
        "tests/support/divided.py",
        "tests/models/test_tensor_parallel.py",
    ),
    "architectures": ("src/longdraft/backends/*",),  # with the oldest versions
    "oldest": VERSIONS,
}

# The tests marked `weekly` that each part runs.
WEEKLY = {
    "products": ["tests/ops/test_products.py"],
    "gpu": ["tests/backends/test_gpu.py", "tests/backends/test_gpu_bench.py"],
    "gpu_step": [
        "tests/backends/test_gpu.py::test_kernels_and_the_step_are_right_under_the_interpreter"
    ],
    "kinds": ["tests/models/test_coverage.py", "tests/models/test_multimodal.py"],
    "processes": ["tests/models/test_tensor_parallel.py"],
}

# Tests marked `full` run where these rooms of src/longdraft changed, or the tests of their folder.
KERNELS = {"core", "ops", "backends"}
MODELS = KERNELS | {"models"}
DRAFTS = MODELS | {"views", "drafters", "methods"}
ENGINE = DRAFTS | {"engine", "prompts", "constraints"}
FULL = {
    "audit": ENGINE | {"audit"},
    "backends": MODELS,
    "bench": {"bench", "cli"},
    "cli": {"cli"},
    "constraints": ENGINE,
    "core": KERNELS,
    "drafters": DRAFTS,
    "doctor": {"doctor", "ops"},
    "engine": ENGINE,
    "hf": ENGINE | {"hf"},
    "methods": ENGINE,
    "models": MODELS,
    "ops": KERNELS | {"drafters"},
    "project": set[str](),
    "prompts": ENGINE,
    "recording": ENGINE | {"recording"},
    "server": {"server", "engine", "prompts", "constraints"},
    "training": MODELS | {"drafters", "training"},
    "tuning": {"tuning", "costs"},
    "views": KERNELS | {"views"},
}
# concern all of them
SHARED = ("tests/support/*", "tests/conftest.py", "tests/run.py", "tests/changed.py", *VERSIONS)


def git(*words: str) -> str | None:
    """What git prints; None where it fails or is missing."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def passed() -> str | None:
    """The commit that .ci/passed names; None where it is not one before HEAD."""
    if not PASSED.exists():
        return None
    name = PASSED.read_text(encoding="utf-8").strip()
    known = re.fullmatch("[0-9a-f]{40}", name) is not None
    return name if known and git("merge-base", "--is-ancestor", name, "HEAD") is not None else None


def before() -> str | None:
    """The last commit that is 12 hours older than HEAD."""
    latest = git("log", "-1", "--format=%ct")
    if not latest:
        return None
    return git("rev-list", "-1", f"--before=@{int(latest) - 12 * 3600}", "HEAD") or None


def dependencies(text: str) -> list[object]:
    """The parts of a pyproject.toml that decide which versions are installed."""
    project = tomllib.loads(text).get("project", {})
    names = ("requires-python", "dependencies", "optional-dependencies")
    return [project.get(name) for name in names]


def files(base: str | None) -> list[str] | None:
    """The files that differ from this commit, also those that are not committed.

    None where that cannot be told. pyproject.toml counts if other versions may be installed.
    """
    listed = git("diff", "--name-only", base, "--") if base else None
    if listed is None:
        return None
    changed = listed.splitlines()
    before = git("show", f"{base}:pyproject.toml")
    if "pyproject.toml" in changed and before is not None:
        now = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        if dependencies(now) == dependencies(before):
            changed.remove("pyproject.toml")
    return changed


def needed(changed: list[str] | None) -> list[str]:
    """The parts that these files need; all of them where the files are not known."""
    if changed is None:
        return list(PARTS)
    return [
        part
        for part, patterns in PARTS.items()
        if any(fnmatch(path, pattern) for path in changed for pattern in patterns)
    ]


def weekly(parts: list[str]) -> list[str]:
    """The tests marked `weekly` of these parts."""
    return [test for part in parts for test in WEEKLY.get(part, [])]


def folders(changed: list[str] | None) -> list[str]:
    """The folders whose tests marked `full` these files need; all where the files are not known."""
    if changed is None or any(fnmatch(path, p) for path in changed for p in SHARED):
        return list(FULL)
    rooms = {path.split("/")[2] for path in changed if path.startswith("src/longdraft/")}
    tests = {path.split("/")[1] for path in changed if path.startswith("tests/")}
    return [folder for folder, of in FULL.items() if folder in tests or of & rooms]


def main(words: list[str]) -> None:
    commits = [word for word in words if not word.startswith("--")]
    base = commits[0] if commits else os.environ.get("LONGDRAFT_BASE") or passed() or before()
    changed = files(base)
    if "--folders" in words:
        print(*(f"tests/{folder}" for folder in folders(changed)))
    elif "--weekly" in words:
        print(*weekly(needed(changed)))
    else:
        print(*needed(changed))


if __name__ == "__main__":
    main(sys.argv[1:])
