"""Linear layers with packed weights, in place of a Transformers model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longdraft.backends.features.latent import absorbed_linears
from longdraft.errors import InputError
from longdraft.ops import interleaved
from longdraft.ops.in_threads import in_threads
from longdraft.ops.packed import BLOCK, GROUP, Packed, quantized

BITS = {"int8": 8, "int4": 4}
FEWEST_OUTPUTS = 16  # that the kernels compute at once
SCALES = {8: 2, 4: 4}  # bytes of a group's scale, and of its offset if it has one, as halves


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

    def __init__(self, layer: PackedLinear, in_place: bool = False):
        """in_place: the layer's own weights are reordered, and it must not be used any more."""
        if in_place:
            interleaved.put_together(layer.packed)
        super().__init__(
            layer.packed if in_place else interleaved.together(layer.packed), layer.bias
        )

    @property
    def packed(self) -> Packed:
        return interleaved.apart(self.stored)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(interleaved.rounded(x).to(x.dtype))


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
            _replace(hf, name, EightBitInputs(layer, in_place))

    for done, _ in enumerate(in_threads(round_those_of, names), 1):
        report(done / len(names))
    return len(names)


def _replace(hf: nn.Module, name: str, new: nn.Module) -> None:
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


@torch.no_grad()
def replace_linears(hf: nn.Module, packed: Iterable[tuple[str, Packed]]) -> None:
    """Put packed weights in place of the linear layers of these names. A tied output matrix becomes
    a separate one.
    """
    for name, weights in packed:
        old: Any = hf.get_submodule(name)
        _replace(hf, name, PackedLinear(weights, old.bias))


@torch.no_grad()
def quantize_linears(hf: Any, kind: str) -> None:
    """Quantize a model's linear layers to "int8" or "int4"; the output matrix always has 8 bits.

    Layers that have as few bits already, whose inputs are no multiple of 32, or that have fewer
    than 16 outputs (the gate of a shared expert) stay unchanged, as do experts that are kept in one
    tensor, what expands latents, and linear layers that compute more than a product. One layer
    after the other, so that memory never holds two whole models.
    Raises InputError where a model has nothing to quantize.
    """
    head = hf.get_output_embeddings()
    if not any(_can_be_packed(m) and m is not head for m in hf.modules()):
        raise InputError(
            f"no layer of this {hf.config.model_type} can be quantized: use its weights unchanged"
        )
    bits = _finer(hf, kind)
    replace_linears(
        hf, ((name, quantized(hf.get_submodule(name).weight, b)) for name, b in bits.items())
    )


def bytes_saved(hf: Any, kind: str) -> float:
    """How many bytes of weights fewer a step reads after `quantize_linears`; computed from
    shapes.
    """
    layers = [(hf.get_submodule(name), bits) for name, bits in _finer(hf, kind).items()]
    now = sum(p.nbytes for m, _ in layers for p in m.parameters() if p is not m.bias)
    return now - sum(m.out_features * _row_bytes(m.in_features, bits) for m, bits in layers)


def _row_bytes(inputs: int, bits: int) -> float:
    """Bytes of a quantized row, which has codes and scales of whole blocks."""
    return -(-inputs // BLOCK) * BLOCK * (bits / 8 + SCALES[bits] / GROUP)


def _finer(hf: Any, kind: str) -> dict[str, int]:
    """The names of linear layers that have more bits than `kind` gives them, with those bits."""
    head = hf.get_output_embeddings()
    matrices = absorbed_linears(hf)
    layers = {name: m for name, m in hf.named_modules() if _can_be_packed(m) and m not in matrices}
    bits = {name: 8 if m is head else BITS[kind] for name, m in layers.items()}
    return {name: b for name, b in bits.items() if getattr(hf.get_submodule(name), "bits", 32) > b}


def _can_be_packed(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear) and type(module) is not nn.Linear and not _is_linear(module):
        return False
    if not isinstance(module, nn.Linear | PackedLinear):
        return False
    return module.in_features % GROUP == 0 and module.out_features >= FEWEST_OUTPUTS


@torch.no_grad()
def _is_linear(module: nn.Linear) -> bool:
    """Whether a subclass computes what nn.Linear does: routers of experts return several tensors,
    for example.
    """
    if module.weight.dim() != 2 or module.weight.shape != (module.out_features, module.in_features):
        return False
    x = torch.linspace(
        -1, 1, module.in_features, device=module.weight.device, dtype=module.weight.dtype
    )[None]
    try:
        out: Any = type(module).forward(module, x)
    except (RuntimeError, TypeError, ValueError, IndexError):  # it wants other inputs
        return False
    expected = F.linear(x, module.weight, module.bias)
    return (
        isinstance(out, Tensor)
        and out.shape == expected.shape
        and torch.allclose(out, expected, 0.02, 0.02)
    )


def quantized_copy(hf: Any, kind: str) -> Any:
    """A model with quantized linear layers that shares everything else with hf, which is not
    changed.
    """
    shared = {id(x): x for x in (*hf.parameters(), *hf.buffers())}
    copy = deepcopy(hf, shared)
    quantize_linears(copy, kind)
    return copy
