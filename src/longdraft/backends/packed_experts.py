"""Experts with packed weights, in place of those of a Transformers model that lie in one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from longdraft.backends.packed_linear import FEWEST_OUTPUTS, PackedLinear, part_of
from longdraft.ops.packed import GROUP, Packed, quantized

MATRICES = ("gate_up_proj", "down_proj")
UNGATED = ("up_proj", "down_proj")
# What says how a module keeps its matrices.
LAYOUT = ("has_gate", "has_bias", "is_transposed", "is_concatenated")


class PackedExperts(nn.Module):
    """Computes what `own` did, with its matrices rounded to codes.

    own: the model's module without its matrices. gate, up, down: layers whose rows are those of one
    expert after the other's, [count*inner,width] and [count*width,inner]; gate None: experts have
    none. In order and orientation of its matrices `own` may differ.
    """

    def __init__(
        self,
        own: nn.Module,
        count: int,
        gate: PackedLinear | None,
        up: PackedLinear,
        down: PackedLinear,
    ):
        super().__init__()
        self.own: Any = own
        self.count = count
        self.gate = gate
        self.up = up
        self.down = down

    @staticmethod
    @torch.no_grad()
    def of(module: Any, bits: int) -> PackedExperts:
        """These experts with weights of so many bits, one expert after the other."""
        first, last = matrices_of(module)
        gate = _packed(module, first, 0, bits) if module.has_gate else None
        up, down = _packed(module, first, 1, bits), _packed(module, last, 2, bits)
        return PackedExperts(without_matrices(module), len(module.down_proj), gate, up, down)

    def _first(self) -> tuple[PackedLinear, ...]:
        """Gates, if there are some, and up."""
        return (self.up,) if self.gate is None else (self.gate, self.up)

    def _some(self, layer: PackedLinear, expert: int, x: Tensor) -> Tensor:
        """The outputs of one expert."""
        size = layer.out_features // self.count
        return part_of(layer, slice(expert * size, (expert + 1) * size), x)

    def forward(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """hidden [N,width], chosen, shares [N,k]: the experts of each node -> [N,width]."""
        out = torch.zeros_like(hidden)
        for expert in chosen.unique().tolist():
            node, rank = torch.where(chosen == expert)
            parts = [self._some(layer, expert, hidden[node]) for layer in self._first()]
            act = self.own.act_fn if self.gate is None else self.own._apply_gate
            inner = act(joined(self.own, parts, -1))
            down = self._some(self.down, expert, inner)
            out.index_add_(0, node, (down * shares[node, rank, None]).to(out.dtype))
        return out

    def matrices(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The weights as `own` would keep them, by name."""
        found = dict[str, Tensor]()
        of_both = (self._first(), (self.down,))
        for name, layers in zip(matrices_of(self.own), of_both, strict=True):
            each = [layer.weight.to(dtype).unflatten(0, (self.count, -1)) for layer in layers]
            matrix = joined(self.own, each, 1)
            found[name] = (matrix.mT if self.own.is_transposed else matrix).contiguous()
            biases = [x.unflatten(0, (self.count, -1)) for y in layers if (x := y.bias) is not None]
            if biases:
                found[f"{name}_bias"] = joined(self.own, biases, 1)
        return found


def without_matrices(module: nn.Module) -> nn.Module:
    """A copy of a module of experts that shares all else with it."""
    own = deepcopy(module, {id(x): x for x in (*module.parameters(), *module.buffers())})
    for name in [name for name, _ in own.named_parameters(recurse=False)]:
        delattr(own, name)
    return own


def matrices_of(module: Any) -> tuple[str, str]:
    """The names of the matrices of a module of experts."""
    return MATRICES if module.has_gate else UNGATED


def can_be_packed(module: Any) -> bool:
    """Whether a module keeps experts in tensors that PackedExperts understands."""
    if not all(hasattr(module, name) for name in LAYOUT):
        return False
    if not hasattr(module, "_apply_gate" if module.has_gate else "act_fn"):
        return False
    names = matrices_of(module)
    held = dict(module.named_parameters(recurse=False))
    if not all(name in held and held[name].dim() == 3 for name in names):
        return False
    if held.keys() - {*names, *(f"{name}_bias" for name in names)}:
        return False
    count = len(module.down_proj)
    fits = all(
        not inputs % GROUP and rows // count >= FEWEST_OUTPUTS
        for _, (rows, inputs) in shapes(module)
    )
    return fits and not getattr(module, "has_post_expert_norm", False)


def shapes(module: Any) -> list[tuple[Tensor, tuple[int, int]]]:
    """Its matrices, each with the shape that it has when it is packed."""
    found = []
    for name in matrices_of(module):
        matrix = getattr(module, name)
        count, outputs, inputs = matrix.mT.shape if module.is_transposed else matrix.shape
        found.append((matrix, (count * outputs, inputs)))
    return found


def _packed(module: Any, name: str, which: int, bits: int) -> PackedLinear:
    """A part of all experts, see `_part`, from the matrices of this name."""
    bias = getattr(module, f"{name}_bias", None)
    each = [_part(module, _oriented(module, w), which) for w in getattr(module, name)]
    rows = None if bias is None else torch.cat([_part(module, x, which) for x in bias])
    return PackedLinear(_stacked([quantized(w, bits) for w in each]), rows)


def _oriented(module: Any, matrix: Tensor) -> Tensor:
    """An expert's matrix as [outputs,inputs]."""
    return matrix.mT if module.is_transposed else matrix


def _part(module: Any, rows: Tensor, which: int) -> Tensor:
    """An expert's rows: those of its gate (0) or of up (1), or all of down's (2)."""
    if which == 2 or not module.has_gate:
        return rows
    return rows.chunk(2)[which] if module.is_concatenated else rows[which::2]


def joined(module: Any, parts: Sequence[Tensor], dim: int) -> Tensor:
    """The rows of gates and up, or of down alone, in the module's order, along this dimension."""
    if len(parts) == 1 or module.is_concatenated:
        return torch.cat(list(parts), dim)
    dim %= parts[0].dim()
    return torch.stack(list(parts), dim + 1).flatten(dim, dim + 1)


def _stacked(each: list[Packed]) -> Packed:
    """All rows of these matrices, one after the other."""
    parts = {name: torch.cat([p.parts[name] for p in each]) for name in each[0].parts}
    return each[0].of(parts)
