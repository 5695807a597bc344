"""Linear layers with packed weights, in place of a Transformers model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longdraft.ops import interleaved
from longdraft.ops.in_threads import in_threads
from longdraft.ops.interleaved import Interleaved
from longdraft.ops.packed import Packed

FEWEST_OUTPUTS = 16  # that the kernels compute at once


class PackedLinear(nn.Module):
    """Computes x W^T + bias with W = packed.dequantized(). The native backend reads the packed
    weights themselves.
    """

    def __init__(self, packed: Packed, bias: Tensor | None = None):
        super().__init__()
        self.bits = packed.bits
        # copies of no rows: slices would keep the memory of all rows
        self._kind = packed.of({name: x[:0].clone() for name, x in packed.parts.items()})
        self.out_features, self.in_features = packed.shape
        for name, part in packed.parts.items():
            self.register_parameter(name, nn.Parameter(part, requires_grad=False))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._unpacked: Tensor | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parameters that hold the packed weights."""
        return tuple(self._kind.parts)

    @property
    def stored(self) -> Packed:
        """The parameters as they lie in memory."""
        return self._kind.of({name: getattr(self, name).data for name in self.parts})

    @property
    def packed(self) -> Packed:
        return self.stored

    def entries(self, places: Tensor) -> Tensor:
        """float32: the weights at these places of the matrix, counted row by row."""
        return self.packed.entries(places)

    @property
    def weight(self) -> Tensor:
        """float32 [outputs,inputs], computed anew at each call."""
        return self.packed.dequantized()

    def unpack(self, dtype: torch.dtype) -> None:
        """Keep the weights in this dtype too, for a layer that torch computes in every step:
        unpacking takes longer.
        """
        kept = self._unpacked
        fits = kept is not None and kept.dtype == dtype
        if (
            kept is None or not fits or (kept.is_inference() and torch.is_grad_enabled())
        ):  # else training cannot use it
            self._unpacked = self.weight.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        kept = self._unpacked
        return F.linear(
            x, self.weight.to(x.dtype) if kept is None or kept.dtype != x.dtype else kept, bias
        )


class EightBitInputs(PackedLinear):
    """Computes rounded(x) W^T + bias: inputs have 8 bits, and the weights lie in the order of
    ops/interleaved.py.
    """

    def __init__(self, weights: Interleaved, bias: Tensor | None = None):
        super().__init__(weights.stored, bias)

    @staticmethod
    def of(layer: PackedLinear, in_place: bool = False) -> EightBitInputs:
        """in_place: the layer's own weights are reordered, and it must not be used any more."""
        if in_place:
            interleaved.put_together(layer.packed)
        stored = layer.packed if in_place else interleaved.together(layer.packed)
        return EightBitInputs(Interleaved(stored), layer.bias)

    @property
    def packed(self) -> Packed:
        return interleaved.apart(self.stored)

    def entries(self, places: Tensor) -> Tensor:
        return interleaved.entries(self.stored, places)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(interleaved.rounded(x).to(x.dtype))


def layer_of(weights: Packed | Interleaved, bias: Tensor | None = None) -> PackedLinear:
    """The layer of these weights, which rounds its inputs if they are interleaved."""
    if isinstance(weights, Interleaved):
        return EightBitInputs(weights, bias)
    return PackedLinear(weights, bias)


class PackedRows:
    """Some outputs of a layer of packed weights, in its memory or copied.

    rounds: whether inputs have 8 bits. rows: a slice, or numbers; if it rounds, whole sixteens.
    """

    def __init__(self, layer: PackedLinear, rows: slice | Tensor):
        self.stored = layer.stored.rows(rows)
        self.bias = None if layer.bias is None else layer.bias.detach()[rows]
        self.rounds = isinstance(layer, EightBitInputs)
        self.in_features = layer.in_features
        self.out_features = self.stored.shape[0]

    @property
    def weight(self) -> Tensor:
        """float32 [outputs,inputs], computed anew at each call."""
        return (interleaved.apart(self.stored) if self.rounds else self.stored).dequantized()


def round_inputs(
    hf: Any, report: Callable[[float], None] = lambda fraction: None, in_place: bool = False
) -> int:
    """Make every layer of packed weights, if its outputs are a multiple of 16, round its inputs ->
    how many do. report: called with the fraction that is done. in_place: only if no other model
    shares the weights.
    """
    names = [
        name
        for name, m in hf.named_modules()
        if isinstance(m, PackedLinear) and interleaved.fits(m.stored)
    ]

    def round_those_of(name: str) -> None:
        # the last reference to it: memory holds few layers twice
        layer = hf.get_submodule(name)
        if not isinstance(layer, EightBitInputs):
            replace(hf, name, EightBitInputs.of(layer, in_place))

    for done, _ in enumerate(in_threads(round_those_of, names), 1):
        report(done / len(names))
    return len(names)


def replace(hf: nn.Module, name: str, new: nn.Module) -> None:
    """Put another module in this one's place."""
    parent, _, leaf = name.rpartition(".")
    module = hf.get_submodule(parent)
    # The hooks join the parts of several processes; torch has no public way to hand them on.
    new._forward_hooks = getattr(module, leaf)._forward_hooks  # pyright: ignore[reportPrivateUsage]
    setattr(module, leaf, new)


@torch.no_grad()
def rows_of(layer: Any, rows: Tensor) -> Any:
    """A linear layer, packed or not, with these outputs of another."""
    bias = None if layer.bias is None else layer.bias.detach()[rows]
    if isinstance(layer, PackedLinear):
        return PackedLinear(layer.packed.rows(rows), bias)
    some = nn.Linear(layer.weight.shape[1], len(rows), bias is not None, device="meta")
    some.weight = nn.Parameter(layer.weight.detach()[rows], requires_grad=False)
    if bias is not None:
        some.bias = nn.Parameter(bias, requires_grad=False)
    return some


def part_of(layer: PackedLinear, rows: slice, x: Tensor) -> Tensor:
    """Some outputs of a layer, whose rows begin and end with whole sixteens if it rounds inputs."""
    packed = layer.stored.rows(rows)
    if isinstance(layer, EightBitInputs):
        packed = interleaved.apart(packed)
        x = interleaved.rounded(x).to(x.dtype)
    bias = None if layer.bias is None else layer.bias[rows].to(x.dtype)
    return F.linear(x, packed.dequantized().to(x.dtype), bias)


@torch.no_grad()
def replace_linears(hf: nn.Module, packed: Iterable[tuple[str, Packed | Interleaved]]) -> None:
    """Put packed weights in place of the linear layers of these names. A tied output matrix becomes
    a separate one.
    """
    for name, weights in packed:
        old: Any = hf.get_submodule(name)
        replace(hf, name, layer_of(weights, old.bias))
