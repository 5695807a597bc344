"""Where a measured number comes from: code, versions, machine and command."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

from longdraft.core.cache import KVCache
from longdraft.models.lm import LM
from longdraft.ops import native
from longdraft.ops.threads import are_pinned
from longdraft.version import __version__

TUNING = ("OMP_", "KMP_", "MKL_", "THP_", "MALLOC_")  # prefixes of environment variables that affect speed


def versions() -> dict[str, str]:
    return {
        "longdraft": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def checkout() -> dict[str, Any]:
    """git_sha and git_dirty of the checkout that this package runs from; None if it runs from no checkout."""
    package = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str | None:
        try:
            found = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return found.stdout.strip() if found.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / "longdraft" != package:
        return {"git_sha": None, "git_dirty": None}
    return {"git_sha": git("rev-parse", "HEAD"), "git_dirty": bool(git("status", "--porcelain", "--", ":/src"))}


def processor(device: torch.device | str = "cpu") -> str:
    """The model name of the processor or GPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def command() -> str:
    """The command line of this process, without the parts of paths that only mean something on this machine."""
    return shlex.join(["longdraft", *(relative(word) for word in sys.argv[1:])])


def relative(word: str) -> str:
    """A path below the working directory becomes relative to it, another absolute path its last name."""
    if not os.path.isabs(word):
        return word
    try:
        return str(Path(word).relative_to(Path.cwd()))
    except ValueError:
        return Path(word).name


def weights_sha256(lm: LM, limit: int = 1 << 30) -> str | None:
    """Hash of the safetensors files in the model's folder; None without such files or above `limit` bytes."""
    files = sorted(Path(lm.hf.name_or_path).glob("*.safetensors")) if lm.hf.name_or_path else []
    if not files or sum(f.stat().st_size for f in files) > limit:
        return None
    digest = hashlib.sha256()
    for f in files:
        digest.update(f.read_bytes())
    return digest.hexdigest()


def provenance(lm: LM, seed: int) -> dict[str, Any]:
    """Fields that all records of a run share; `run` is unique to it."""
    return {
        "model": relative(lm.name),
        "weights_sha256": weights_sha256(lm),
        "dtype": str(lm.dtype).removeprefix("torch."),
        "backend": lm.backend.name,
        "native": lm.backend.name == "native",
        "exact": lm.exact,
        "kernels": lm.backend.kernels,
        "device": processor(lm.device),
        "threads": torch.get_num_threads(),
        "pinned": are_pinned(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(TUNING)},
        "seed": seed,
        "versions": versions(),
        **checkout(),
        "command": command(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": uuid.uuid4().hex[:12],
    }


@cache
def bandwidth(device: torch.device | str = "cpu", size: int = 1 << 28, tries: int = 7) -> float:
    """GB/s at which this machine reads `size` bytes, the best of several tries, measured once per size.

    Pass the number of bytes that a decoding step reads: a smaller buffer would fit better into the processor's caches.
    """
    buffer, lib = torch.ones(max(size >> 2, 1 << 20), dtype=torch.float32, device=device), native.library()
    times = []
    for _ in range(tries):
        begin = perf_counter()
        if buffer.is_cpu and lib is not None:
            lib.longdraft_read(buffer.data_ptr(), buffer.numel() // 16)
        else:
            buffer.sum().item()
        times.append(perf_counter() - begin)
    return buffer.numel() * 4 / min(times) / 1e9


def bytes_per_step(lm: LM, cache: KVCache, length: float, batch: int) -> int:
    """Bytes that one step of plain decoding reads: the weights once, and the keys and values of each row."""
    return lm.nbytes() + batch * cache.nbytes(round(length))
