"""The origin of a measured number: code, versions, machine and command."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path
from typing import Any

import torch

from longdraft.core.cache import KVCache
from longdraft.core.provenance import checkout, command, now, processor, relative, versions
from longdraft.host import environment
from longdraft.models.gguf import parts
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import weights_of
from longdraft.ops.threads import are_pinned


def weights_sha256(lm: LM, limit: int = 1 << 30) -> str | None:
    """The hash of the model's GGUF file (all its parts) or of the safetensors in its folder.

    None: there are none, or they have more than `limit` bytes.
    """
    where = Path(lm.hf.name_or_path or "-")
    is_gguf = where.is_file()
    files = parts.files_of(where) if is_gguf else sorted(where.glob("*.safetensors"))
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
        "environment": environment.tuning(os.environ),
        "seed": seed,
        "versions": versions(),
        **checkout(),
        "command": command(),
        "time": now(),
        "run": uuid.uuid4().hex[:12],
    }


def bytes_per_step(lm: LM, cache: KVCache, length: float, batch: int) -> int:
    """The bytes that one step of plain decoding reads: the weights once, of experts those that are
    needed, and each row's cache.
    """
    return round(weights_of(lm).read(batch)) + batch * cache.nbytes(round(length))
