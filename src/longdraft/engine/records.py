"""Where a number comes from: code, versions, machine, command. And the file that records are kept in."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import uuid
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from longdraft.core.cache import KVCache
from longdraft.core.files import parse
from longdraft.core.provenance import checkout, command, now, relative, versions
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.ops import native
from longdraft.ops.threads import are_pinned

TUNING = ("OMP_", "KMP_", "MKL_", "THP_", "MALLOC_")  # environment variables that change how fast things run


def processor(device: torch.device | str = "cpu") -> str:
    """The model name of the processor that computes."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def weights_sha256(lm: LM, limit: int = 1 << 30) -> str | None:
    """Of the safetensors in the model's folder, in order of name; None without a folder or where they are many."""
    files = sorted(Path(lm.hf.name_or_path).glob("*.safetensors")) if lm.hf.name_or_path else []
    if not files or sum(f.stat().st_size for f in files) > limit:
        return None
    digest = hashlib.sha256()
    for f in files:
        digest.update(f.read_bytes())
    return digest.hexdigest()


def provenance(lm: LM, seed: int) -> dict[str, Any]:
    """What all records of a run share; `run` tells runs apart."""
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
        "time": now(),
        "run": uuid.uuid4().hex[:12],
    }


@cache
def bandwidth(device: torch.device | str = "cpu", size: int = 1 << 28, tries: int = 7) -> float:
    """GB/s at which this machine reads `size` bytes: the best of several. Measured once for each size.

    Ask for what a step reads: of less memory, more is in the processor's own.
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
    """What one plain decoding step must read: the weights once, and each row's keys and values."""
    return lm.nbytes() + batch * cache.nbytes(round(length))


class Log:
    """Records as JSON lines, each written when it is known; without a path they are dropped."""

    def __init__(self, path: Path | None):
        self.path, self._sizes, self._end = path, [], 0
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.open("ab").close()
            except OSError as error:
                raise InputError(f"cannot write {path} ({error.strerror}): give another --out") from None

    def append(self, record: dict[str, Any]) -> None:
        if self.path is None:
            return
        line = (json.dumps(record) + "\n").encode()
        with self.path.open("ab") as f:
            f.write(line)
            self._end = f.tell()
        self._sizes.append(len(line))

    def amend(self, records: list[dict[str, Any]]) -> None:
        """Write the newest records again, now that all is known; not if somebody else has written since."""
        if self.path is None or self.path.stat().st_size != self._end:
            return
        old = self._sizes[len(self._sizes) - len(records) :]
        del self._sizes[len(self._sizes) - len(records) :]
        os.truncate(self.path, self._end - sum(old))
        for record in records:
            self.append(record)


def load(paths: list[Path]) -> list[dict[str, Any]]:
    """All records of the files. Raises InputError that names file and line."""
    records = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path} ({error}): give files that longdraft bench --out wrote") from None
        for i, line in enumerate(lines, 1):
            try:
                record = parse(line) if line.strip() else None
            except ValueError:
                raise InputError(f"{path}, line {i}: not JSON; give files that longdraft bench --out wrote") from None
            if record is None:
                continue
            if not isinstance(record, dict) or not {"task", "method", "context"} <= record.keys():
                raise InputError(f"{path}, line {i}: not a bench record (it lacks task, method or context)")
            records.append(record)
    return records
