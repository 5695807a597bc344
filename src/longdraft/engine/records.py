"""Where a measured number comes from: code, versions, machine and command."""

from __future__ import annotations

import hashlib
import os
import platform
import uuid
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from longdraft.core.cache import KVCache
from longdraft.core.provenance import checkout, command, now, relative, versions
from longdraft.models.lm import LM
from longdraft.ops import native
from longdraft.ops.threads import are_pinned

TUNING = ("OMP_", "KMP_", "MKL_", "THP_", "MALLOC_")  # prefixes of environment variables that affect speed


def processor(device: torch.device | str = "cpu") -> str:
    """The model name of the processor or GPU; an x86 processor's with its family and model, as names can be vague."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    pairs = (line.partition(":") for line in reversed(lines))
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    name = fields.get("model name")
    if name is None:
        return platform.processor() or platform.machine()
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else name


def weights_sha256(lm: LM, limit: int = 1 << 30) -> str | None:
    """Hash of the model's GGUF file or of the safetensors in its folder; None without those or above `limit` bytes."""
    where = Path(lm.hf.name_or_path or "-")
    files = [where] if where.is_file() else sorted(where.glob("*.safetensors"))
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
        "rope": lm.rope,
        "weights": lm.weights,
        "kv": lm.kv,
        "activations": lm.activations,
        "tensor_parallel": lm.team.size,
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
    """GB/s at which this machine reads the `size` bytes of a decoding step; the best try, kept per size."""
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
