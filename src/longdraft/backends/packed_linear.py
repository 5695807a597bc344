"""A linear layer with packed weights, in place of a Transformers model's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longdraft.ops.packed import Packed


class PackedLinear(nn.Module):
    """Computes x W^T + bias with W = packed.dequantised(). The native backend reads the packed weights themselves."""

    def __init__(self, packed: Packed, bias: Tensor | None = None):
        super().__init__()
        self.bits, self.group = packed.bits, packed.group
        self.out_features, self.in_features = packed.shape
        self.codes = nn.Parameter(packed.codes, requires_grad=False)
        self.scale = nn.Parameter(packed.scale, requires_grad=False)
        self.offset = nn.Parameter(packed.offset, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def packed(self) -> Packed:
        return Packed(self.bits, self.codes.data, self.scale.data, self.offset.data, self.group)

    @property
    def weight(self) -> Tensor:
        """float32 [outputs,inputs], computed anew at each call."""
        return self.packed.dequantised()

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


@torch.no_grad()
def replace_linears(hf: nn.Module, packed: dict[str, Packed]) -> None:
    """Put packed weights in place of the linear layers of these names. A tied output matrix becomes one of its own."""
    for name, weights in packed.items():
        parent, _, leaf = name.rpartition(".")
        module = hf.get_submodule(parent)
        setattr(module, leaf, PackedLinear(weights, getattr(module, leaf).bias))
