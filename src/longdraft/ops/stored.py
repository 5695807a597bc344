"""Keys and values as a cache stores them: codes are decoded where they are read, and only there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.ops import coded, native
from longdraft.ops.take import take

Pair = tuple[Tensor, Tensor]
LONGEST = 1024  # numbers of a key that the kernels encode and decode


@dataclass(frozen=True)
class Coding:
    """How the keys and values of a layer are encoded.

    key, value: the numbers of one. dtype: theirs before. key_offset [K,1,D] float32: what the codes
    of keys leave out.
    """

    bits: int
    key: int
    value: int
    dtype: torch.dtype
    key_offset: Tensor | None = None


@dataclass(frozen=True)
class StoredRow:
    """The keys and values of one row in one layer, unchanged until they are read.

    k [K,S,D] and v [K,S,Dv], or codes of them, uint8 [K,S,width].
    """

    k: Tensor
    v: Tensor
    coding: Coding | None = None

    @property
    def bits(self) -> int:
        """Bits of a code; 0: not encoded."""
        return self.coding.bits if self.coding else 0

    @property
    def heads(self) -> int:
        return len(self.k)

    @property
    def dim(self) -> int:
        """Numbers of a key."""
        return self.coding.key if self.coding else self.k.shape[2]

    @property
    def value_dim(self) -> int:
        return self.coding.value if self.coding else self.v.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its numbers."""
        return self.coding.dtype if self.coding else self.k.dtype

    @property
    def offset_address(self) -> int | None:
        """For a kernel: what the codes of keys leave out."""
        offset = self.coding.key_offset if self.coding else None
        return None if offset is None else offset.data_ptr()

    @property
    def can_be_encoded(self) -> bool:
        """Whether the kernels can encode its numbers."""
        return _has_kernels(self.dim, self.dtype)

    def part(self, begin: int, end: int | None = None) -> StoredRow:
        """Slots [begin, end)."""
        return StoredRow(self.k[:, begin:end], self.v[:, begin:end], self.coding)

    def at(self, slots: Tensor) -> StoredRow:
        """A copy of the slots [P], or [K|1,P] for each head."""
        return StoredRow(take(self.k, slots), take(self.v, slots), self.coding)

    def keys(self) -> Tensor:
        """[K,S,D]; codes are decoded at each call."""
        c = self.coding
        if c is None:
            return self.k
        if _is_compiled(self.k, c, c.key):
            return _decoded(self.k, c, c.key, self.offset_address, keys=1)
        return coded.decode_keys(self.k, c.bits, c.key, c.dtype, c.key_offset)

    def values(self) -> Tensor:
        """[K,S,Dv]; codes are decoded at each call."""
        c = self.coding
        if c is None:
            return self.v
        if _is_compiled(self.v, c, c.value):
            return _decoded(self.v, c, c.value, None, keys=0)
        return coded.decode(self.v, c.bits, c.value, c.dtype)

    def numbers(self) -> Pair:
        """Keys and values; codes are decoded at each call."""
        return self.keys(), self.values()


def _has_kernels(dim: int, dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.bfloat16) and dim % 16 == 0 and 0 < dim <= LONGEST


def _is_compiled(codes: Tensor, coding: Coding, dim: int) -> bool:
    """Whether the kernel can decode these codes."""
    return (
        native.library() is not None
        and coding.bits == 8
        and codes.is_cpu
        and codes.stride()[1:] == (codes.shape[2], 1)
        and _has_kernels(dim, coding.dtype)
    )


def _decoded(codes: Tensor, coding: Coding, dim: int, offset: int | None, keys: int) -> Tensor:
    """`coded.decode_keys`, or `coded.decode` of values, by the kernel."""
    lib = native.library()
    assert lib is not None
    heads, slots, _ = codes.shape
    out = torch.empty(heads, slots, dim, dtype=coding.dtype)
    half = coding.dtype == torch.bfloat16
    stride = codes.stride(0)
    lib.longdraft_decode(
        codes.data_ptr(), heads, slots, stride, dim, keys, offset, half, out.data_ptr()
    )
    return out
