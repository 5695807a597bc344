"""The identity of a model: its sizes, a digest of its weights, and changes made on loading."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from longdraft.backends.layer_configs import values_of
from longdraft.backends.packed_linear import PackedLinear
from longdraft.models.lm import LM
from longdraft.ops.in_threads import in_threads

SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
# numbers read of each tensor: nearly all of them differ between two models of one shape
SAMPLE = 1 << 12


def fingerprint(target: LM) -> dict[str, Any]:
    """Identifies a drafter's target by sizes, a digest of its weights, and any `rope`.

    Of a target that was quantized on loading it also has the kind of its weights, and the digest of
    those that were `stored`, by which drafters know it; and the kinds of its keys and of its
    layers' inputs, if these are quantized.
    """
    c = target.config
    values = {k: values_of(c, k) for k in SIZES}  # more than one of what differs by layer
    facts: dict[str, Any] = {"model_type": c.model_type}
    for name, numbers in values.items():
        facts[name] = numbers[0] if len(numbers) == 1 else numbers
    facts["digest"] = target.digest or digest(target.hf)
    chosen = {
        "rope": target.rope,
        "weights": target.weights,
        "stored": target.stored,
        "kv": target.kv,
        "activations": target.activations,
    }
    return facts | {name: value for name, value in chosen.items() if value is not None}


def digest(hf: Any) -> str:
    """A digest of a sample of every weight, read as bfloat16.

    So it does not depend on the dtype of loading. Packed weights count as the numbers that they
    stand for, and an output matrix that repeats the
    embeddings does not count: a model is the same target in any kind of file.
    """
    total = sha256()
    table = _sample(hf.get_input_embeddings().weight)[1]
    head = {f"{name}.weight" for name, m in hf.named_modules() if m is hf.get_output_embeddings()}
    weights = sorted(_weights(hf), key=lambda item: item[0])
    # processes that hold parts of a weight gather it, all in the same order
    divided = any(isinstance(weight, DTensor) for _, weight in weights)
    compute = map if divided else in_threads
    samples = compute(_sample, [weight for _, weight in weights])
    for (name, _), (shape, some) in zip(weights, samples, strict=True):
        if name in head and torch.equal(some, table):
            continue
        total.update(f"{name} {shape} ".encode())
        total.update(some.numpy().tobytes())
    return total.hexdigest()[:32]


def _weights(hf: Any) -> Iterator[tuple[str, Tensor | PackedLinear]]:
    packed = {name: m for name, m in hf.named_modules() if isinstance(m, PackedLinear)}
    parts = set[str]()
    for name, m in packed.items():
        parts |= {f"{name}.{leaf}" for leaf in m.parts}
    yield from ((name, p) for name, p in hf.named_parameters() if name not in parts)
    yield from ((f"{name}.weight", m) for name, m in packed.items())


def _sample(weight: Tensor | PackedLinear) -> tuple[list[int], Tensor]:
    """The shape, and some numbers as the bits of bfloat16."""
    is_packed = isinstance(weight, PackedLinear)
    shape = (weight.out_features, weight.in_features) if is_packed else tuple(weight.shape)
    step = max(1, prod(shape) // SAMPLE)
    if isinstance(weight, PackedLinear):
        device = weight.stored.low.device
        some = weight.entries(torch.arange(0, prod(shape), step, device=device))
    else:
        full = weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()
        some = full.reshape(-1)[::step]
    return list(shape), some.to("cpu", torch.bfloat16).view(torch.int16)
