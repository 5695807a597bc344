"""Describes the parts that layers are made of: linear layers, norms and MLPs; see describe.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from longdraft.backends.decoder_layer import GatedMLP, Linear, LinearRows, Norm, Rotation
from longdraft.backends.known_modules import Unknown, check, class_of, name_of, reads, unchanged
from longdraft.backends.packed_linear import EightBitInputs, PackedLinear, PackedRows
from longdraft.families import ModelFamily

PACKED = {PackedLinear, EightBitInputs}
# How the names of classes of norms end, and what the norms compute.
NORM_KINDS: Mapping[str, Literal["rms", "layer"]] = {
    "RMSNorm": "rms",
    "TextRMSNorm": "rms",
    "LayerNorm": "layer",
    "LayerNorm1P": "layer",
}
EPSILONS = ("variance_epsilon", "eps")
FIXED_EPSILON = 1e-5  # of norms that have no weights and no attribute of it
# Of an MLP: the names of gate, up and down; the first two side by side; or without a gate.
GATED = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
TOGETHER = (("gate_up_proj", "down_proj"), ("input_linear", "output_linear"))
UNGATED = (
    ("up_proj", "down_proj"),
    ("c_fc", "c_proj"),
    ("fc1", "fc2"),
    ("dense_h_to_4h", "dense_4h_to_h"),
)
IDLE = "dropout"
ACTIVATIONS = ("act_fn", "activation_fn", "act", "activation")
# Attributes that are read below, or change nothing in a pass without gradients.
OF_MLP = {
    *("config", "layer_idx", "layer_type", "hidden_size", "intermediate_size", "input_size"),
    *("residual_dropout", "hidden_dropout"),
}


def first_of(names: Collection[str], module: Any) -> str:
    """The first of these names that a module has. Raises Unknown."""
    found = next((name for name in names if getattr(module, name, None) is not None), None)
    if found is None:
        raise Unknown(f"{type(module).__name__} has none of {', '.join(names)}")
    return found


@dataclass(frozen=True)
class PartFinder:
    """Describes parts of one family's layers, whose sizes a config implies. Its methods raise
    Unknown.

    rotations: by kind of layer, see `rotations_of`.
    """

    family: ModelFamily
    config: Any
    rotations: Mapping[Any, Rotation] = field(default_factory=dict)

    def linear(self, module: Any, name: str, shape: tuple[int, int]) -> Linear:
        if type(module) in PACKED:
            unchanged(module)
        elif type(module) is Conv1D:  # GPT-2's linear layers, whose matrices are turned
            check(module, Conv1D, {"weight", "bias"}, {"nf", "nx"})
            return Linear(LinearRows(module.weight.detach().mT, module.bias), name, shape)
        else:
            own = class_of(self.family, self.family.linear)
            cls = own if own is not None and type(module) is own else nn.Linear
            check(module, cls, {"weight"}, {"in_features", "out_features"}, {"bias"})
        return Linear(module, name, shape)

    def rows(self, module: Any, outputs: Mapping[str, int], heads: int = 1) -> list[Linear]:
        """Projections whose rows are side by side in one linear layer, or with several `heads` in
        each part of it, which then are copied.
        """
        width = self.config.hidden_size
        if type(module) in PACKED:
            unchanged(module)
            parts = _packed_rows(module, list(outputs.values()), heads)
            found = zip(parts, outputs.items(), strict=True)
            return [Linear(part, name, (size, width)) for part, (name, size) in found]
        total = sum(outputs.values())
        whole = self.linear(module, "", (total, width)).module
        if tuple(whole.weight.shape) != (total, width):
            raise Unknown(f"{', '.join(outputs)} are not side by side in one matrix")
        sizes = list(outputs.values())
        weights = _divided(whole.weight, sizes, heads)
        biases = [None] * len(sizes) if whole.bias is None else _divided(whole.bias, sizes, heads)
        parts = zip(outputs.items(), weights, biases, strict=True)
        return [Linear(LinearRows(w, b), name, (size, width)) for (name, size), w, b in parts]

    def stacked(self, parts: Sequence[Linear], name: str) -> Linear:
        """Projections of the same numbers as one, which is a copy."""
        if any(isinstance(part.module, PackedRows | PackedLinear) for part in parts):
            raise Unknown(f"{name}: packed projections are not stacked")
        weight = torch.cat([part.module.weight for part in parts])
        given = [part.module.bias for part in parts]
        bias = None if given[0] is None else torch.cat(given)
        return Linear(LinearRows(weight, bias), name, tuple(weight.shape))

    def norm(self, module: Any, name: str, size: int) -> Norm:
        """A norm of `size` numbers, which may have no weights."""
        cls = type(module)
        stem, parts = self.family.stem, self.family.parts
        kind = NORM_KINDS.get(cls.__name__.removeprefix(stem))
        kind = kind or NORM_KINDS.get(cls.__name__.removeprefix(parts))
        of_family = cls is nn.LayerNorm or cls is class_of(self.family, cls.__name__)
        if kind is None or not of_family:
            raise Unknown(f"{cls.__name__} is no norm of this family")
        if isinstance(module, nn.LayerNorm):
            known = {"normalized_shape", "eps", "elementwise_affine"}
            check(module, cls, {"weight"}, known, {"bias"})
        else:
            weight = {"weight"} if hasattr(module, "weight") else set[str]()
            check(module, cls, weight, {*EPSILONS, "normalized_shape"})
        eps = [getattr(module, name) for name in EPSILONS if hasattr(module, name)]
        return Norm(
            module,
            name,
            (size,),
            eps[0] if eps else FIXED_EPSILON,
            kind,
            self.family.plus_one,
        )

    def mlp(self, module: Any, inner: int | None = None) -> GatedMLP:
        """inner: how many numbers it has inside, unless the config's."""
        width = self.config.hidden_size
        size = int(inner or self.config.intermediate_size)
        named, activation = self._parts_of(module)
        gate = None
        if named in TOGETHER:
            whole = getattr(module, named[0])
            gate, up = self.rows(whole, {"gate_proj": size, "up_proj": size})
        else:
            up = self.linear(getattr(module, named[-2]), named[-2], (size, width))
        if named in GATED:
            gate = self.linear(getattr(module, named[0]), named[0], (size, width))
        down = self.linear(getattr(module, named[-1]), named[-1], (width, size))
        return GatedMLP(gate, up, down, activation, self._slopes(module))

    def activation(self, module: Any) -> str:
        """That of an MLP, whose linear layers may be of any class."""
        return self._parts_of(module)[1]

    def _parts_of(self, module: Any) -> tuple[tuple[str, ...], str]:
        """The names of an MLP's linear layers, and its activation."""
        children = {child for child, _ in module.named_children()}
        function = next((name for name in ACTIVATIONS if name in children), None)
        known = (*GATED, *TOGETHER, *UNGATED)
        named = next((n for n in known if set(n) == children - {function, IDLE}), None)
        if named is None:
            raise Unknown(f"{type(module).__name__} has other projections than are known")
        check(module, class_of(self.family, self.family.mlp), children, OF_MLP)
        if IDLE in children:
            check(getattr(module, IDLE), nn.Dropout, set())
        if function is not None:
            return named, name_of(getattr(module, function))
        if not reads(module, "silu"):
            raise Unknown(f"{type(module).__name__} has no activation that is known")
        return named, "silu"

    @staticmethod
    def _slopes(module: Any) -> tuple[float, float, float] | None:
        """The numbers of an xIELU, see GatedMLP; None: of another activation."""
        found = (getattr(module, name, None) for name in ACTIVATIONS)
        activation: Any = next((a for a in found if a is not None), None)
        if not hasattr(activation, "alpha_p"):
            return None
        linear = float(activation.beta)
        positive = float(F.softplus(activation.alpha_p.detach().float()))
        return positive, linear + float(F.softplus(activation.alpha_n.detach().float())), linear


def _packed_rows(layer: PackedLinear, sizes: list[int], heads: int) -> list[PackedRows]:
    """The same of packed weights. Raises Unknown for parts that are no whole sixteens of rows."""
    if sum(sizes) != layer.out_features:
        raise Unknown("several projections are not side by side in one packed matrix")
    if isinstance(layer, EightBitInputs) and any(size // heads % 16 for size in sizes):
        raise Unknown("several projections are packed together")
    places = _divided(torch.arange(layer.out_features), sizes, heads)
    if heads > 1:
        return [PackedRows(layer, rows) for rows in places]
    return [PackedRows(layer, slice(int(rows[0]), int(rows[-1]) + 1)) for rows in places]


def _divided(x: Tensor, sizes: list[int], heads: int) -> list[Tensor]:
    """Parts of these many rows of x; with several heads each has its share of every part."""
    if heads == 1:
        return list(x.detach().split(sizes))
    by_head = x.detach().unflatten(0, (heads, -1))
    return [p.flatten(0, 1).contiguous() for p in by_head.split([s // heads for s in sizes], 1)]
