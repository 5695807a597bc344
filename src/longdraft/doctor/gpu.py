"""The GPU, if torch can use one, and a check of its kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch

from longdraft.doctor.part import Finding, PartReport, gigabytes
from longdraft.ops.triton import self_check

DRIVER = Path("/proc/driver/nvidia/version")
QUERY = ("--query-gpu=driver_version", "--format=csv,noheader")


def driver() -> str | None:
    """The version of NVIDIA's driver; None without one."""
    program = shutil.which("nvidia-smi")
    try:
        if program is not None:
            done = subprocess.run([program, *QUERY], capture_output=True, text=True, timeout=20)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.split()[0]
        return DRIVER.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return None


def gpu() -> PartReport:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    version = driver()
    if not usable:
        why = f"torch {torch.__version__} cannot use a GPU"
        if said:
            why = " ".join(str(said[0].message).split())[:160]
        do = "install a build of torch for this driver (pytorch.org)"
        problems = [Finding(f"NVIDIA's driver is installed, but {why}", do)] if version else []
        return PartReport(["none"], {"name": None, "driver": version}, problems)
    card = torch.cuda.get_device_properties(0)
    facts = {
        "name": card.name,
        "count": torch.cuda.device_count(),
        "memory": card.total_memory,
        "capability": f"{card.major}.{card.minor}",
        "driver": version,
        "cuda": torch.version.cuda,
    }
    more = f" (and {facts['count'] - 1} more)" if facts["count"] > 1 else ""
    line = (
        f"{card.name}{more}, {gigabytes(card.total_memory)}, capability {facts['capability']}, "
        f"driver {version}"
    )
    state, problems = kernels()
    return PartReport([f"{line}; kernels: {state}"], facts | {"kernels": state}, problems)


def kernels() -> tuple[str, list[Finding]]:
    """The state of Triton's kernels in a word or two, and the problems with them."""
    if os.environ.get("LONGDRAFT_TRITON") == "0":
        why = "LONGDRAFT_TRITON=0 turns the GPU's kernels off"
        return "turned off", [Finding(why, "unset LONGDRAFT_TRITON")]
    if find_spec("triton") is None:
        why = "Triton is not installed, so torch computes all"
        return "none", [Finding(why, "pip install 'longdraft[gpu]'")]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        works = [check() is not None for check in (self_check.kernels, self_check.scans)]
    if all(works):
        return "ok", []
    warned = "; ".join(" ".join(str(warning.message).split()) for warning in said)
    why = warned or "a kernel differs from the reference"
    do = "report this with the whole output; until then torch computes"
    return "FAILED", [Finding(why[:300], do, fails=True)]
