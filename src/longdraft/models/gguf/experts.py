"""Experts of GGUF files: the matrices of all experts of a layer lie in three tensors, for gates, up
and down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longdraft.backends.packed_experts import (
    PackedExperts,
    joined,
    matrices_of,
    without_matrices,
)
from longdraft.backends.packed_linear import layer_of, replace
from longdraft.models.gguf.joined import InParts, parts_of
from longdraft.ops.interleaved import Interleaved, apart
from longdraft.ops.packed import Packed

MATRICES = ("gate", "up", "down")
OF_EXPERTS = {f"ffn_{n}_exps": f"mlp.experts.{n}" for n in MATRICES}
HOLDER = ".experts"


def is_matrix(name: str) -> bool:
    """Whether a file's tensor has the matrices of all experts."""
    part, _, leaf = name.rpartition(".")
    return leaf == "weight" and part.rpartition(".")[2] in OF_EXPERTS


def separate(hf: Any, in_parts: Mapping[str, InParts]) -> dict[str, tuple[int, ...]]:
    """A model's parameters, its buffers that files have and their shapes: those of experts, and of
    matrices that files have in parts, as a file has them.
    """
    found = dict[str, tuple[int, ...]]()
    for name, p in hf.state_dict(keep_vars=True).items():
        holder, _, leaf = name.rpartition(".")
        if rule := parts_of(name, in_parts):
            shapes = rule.shapes(hf.config, *p.shape)
            found |= {f"{holder}.{part}.weight": shape for part, shape in shapes.items()}
            continue
        if not holder.endswith(HOLDER):
            found[name] = tuple(p.shape)
            continue
        of_bias = leaf.endswith("_bias")
        turned = hf.get_submodule(holder).is_transposed and not of_bias
        count, rows, *inputs = p.mT.shape if turned else p.shape
        parts = ("gate", "up") if leaf.startswith("gate") else (leaf.partition("_")[0],)
        for part in parts:
            full = f"{holder}.{part}.{'bias' if of_bias else 'weight'}"
            found[full] = (count, rows // len(parts), *inputs)
    return found


@torch.no_grad()
def put(hf: Any, packed: dict[str, Packed | Interleaved], plain: dict[str, Tensor]) -> None:
    """Move the matrices of experts from both into the model: packed if all three of a layer are."""
    for holder in [name for name, _ in hf.named_modules() if name.endswith(HOLDER)]:
        own: Any = hf.get_submodule(holder)
        count = len(own.down_proj)
        names = [f"{holder}.{n}" for n in (MATRICES if own.has_gate else MATRICES[1:])]
        biases = [plain.pop(f"{name}.bias", None) for name in names]
        if all(name in packed for name in names):
            layers = [
                layer_of(packed.pop(name), None if bias is None else bias.flatten())
                for name, bias in zip(names, biases, strict=True)
            ]
            *gates, up, down = layers
            gate = gates[0] if gates else None
            replace(hf, holder, PackedExperts(without_matrices(own), count, gate, up, down))
            continue
        *first, down = (_numbers(own, name, packed, plain) for name in names)
        together = joined(own, first, 1), down
        for name, matrix in zip(matrices_of(own), together, strict=True):
            turned = matrix.mT.contiguous() if own.is_transposed else matrix
            setattr(own, name, nn.Parameter(turned, requires_grad=False))
        *first, down = biases
        if down is not None:
            of_first = joined(own, [bias for bias in first if bias is not None], 1)
            for name, bias in zip(matrices_of(own), (of_first, down), strict=True):
                setattr(own, f"{name}_bias", nn.Parameter(bias, requires_grad=False))


def _numbers(
    own: Any, name: str, packed: dict[str, Packed | Interleaved], plain: dict[str, Tensor]
) -> Tensor:
    """[count,outputs,inputs]."""
    if name not in packed:
        return plain.pop(f"{name}.weight")
    weights = packed.pop(name)
    if isinstance(weights, Interleaved):
        weights = apart(weights.stored)
    return weights.dequantized(own.down_proj.dtype).unflatten(0, (len(own.down_proj), -1))
