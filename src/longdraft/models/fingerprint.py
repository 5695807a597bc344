"""Identifies the target that a drafter was trained for."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from longdraft.models.lm import LM

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
SAMPLE = 1 << 12  # numbers read of each tensor: nearly all of them differ between two models of one shape


def fingerprint(target: LM) -> dict[str, Any]:
    """The target's sizes, and a digest of a sample of every weight.

    Weights are read as bfloat16, so the digest does not depend on the dtype in which the target was loaded.
    """
    if target.known is not None:
        return target.known
    c, digest = target.config, sha256()
    for name, p in sorted(target.hf.named_parameters()):
        digest.update(f"{name} {list(p.shape)} ".encode())
        digest.update(_sample(p.detach()))
    sizes = {k: getattr(c, k, None) for k in SIZES}
    return {"model_type": c.model_type, **sizes, "digest": digest.hexdigest()[:32]}


def _sample(p: Tensor) -> bytes:
    """At most about 2 * SAMPLE evenly spaced numbers as bfloat16."""
    flat = p.reshape(-1)[:: max(1, p.numel() // SAMPLE)]
    return flat.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes()
