"""Selects the best keys by score and copies them side by side.

By native kernels where they exist, on a CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from longdraft.ops import coded, native
from longdraft.ops.stored import StoredRow


def spread(scores: Tensor, reach: int, share: float) -> Tensor:
    """Scores [...,S] of which each position has passed a share on to the next `reach` positions."""
    if not reach:
        return scores
    passed = torch.zeros_like(scores)
    for back in range(1, min(reach, scores.shape[-1] - 1) + 1):
        passed[..., back:] += scores[..., :-back]
    return scores + share * passed


def choose(scores: Sequence[Tensor], count: int, reach: int = 0, share: float = 0.0) -> Tensor:
    """The [L,count] indices of the best of L scores [S] after `spread`, ascending.

    Scores are float32 and finite. Of equal ones the earlier is better.
    The scores need not be adjacent in memory: joining them would cost as much as choosing.
    """
    lib = native.library()
    if lib is None or not scores[0].is_cpu or not count:
        passed_on = spread(torch.stack(list(scores)), reach, share)
        best = passed_on.sort(stable=True, dim=-1, descending=True)
        return best.indices[..., :count].sort(-1).values
    rows = [s.contiguous() for s in scores]
    if any(len(s) != len(rows[0]) or s.dtype != torch.float32 for s in rows):
        raise ValueError("scores must be float32 and of equal length")
    indices = torch.empty(len(rows), count, dtype=torch.long)
    pointers = (ctypes.c_void_p * len(rows))(*[s.data_ptr() for s in rows])
    lib.longdraft_choose(pointers, len(rows), len(rows[0]), reach, share, count, indices.data_ptr())
    return indices


def room_for(slots: int) -> int:
    """The slots that a compact copy of `slots` is allocated for.

    A copy that grows is then seldom allocated again.
    """
    return slots + max(64, slots // 8)


class Compact:
    """Keys and values of selected slots side by side, in any order.

    A new selection copies only the slots that it adds.
    bits: 4 or 8 for codes of the numbers (ops/coded.py), uint8 [K,P,width]; 0: as they are stored.
    The contents of a slot must not change between selections.
    """

    def __init__(self, bits: int = 0) -> None:
        self.bits = bits
        # the slots held, ascending, and their positions
        self._slots = torch.empty(0, dtype=torch.long)
        self._places = self._slots
        self._k = torch.empty(0, 0, 0)
        self._v = self._k

    def change(self, row: StoredRow, slots: Tensor) -> tuple[native.Copy, Tensor, Tensor]:
        """The kernel's job, and the slots and positions to `hold` once it is done."""
        k, v = row.k, row.v
        K, S, D = k.shape
        n = len(slots)
        size = k.element_size()
        bits = self._bits_of(row)
        width, dtype = (coded.width(row.dim, bits), torch.uint8) if bits else (D, k.dtype)
        if self._k.shape[::2] != (K, width) or self._k.shape[1] < n or self._k.dtype != dtype:
            self._k = k.new_empty(K, room_for(n), width, dtype=dtype)
            self._v = v.new_empty(K, room_for(n), width if row.value_dim else 0, dtype=dtype)
            self._slots = slots[:0]
            self._places = self._slots
        places = torch.empty_like(slots)
        slots = slots.contiguous()
        job = native.Copy(
            k=k.data_ptr(),
            v=v.data_ptr() if row.value_dim else None,
            heads=K,
            size=S,
            stride=k.stride(0) * size,
            slot_bytes=D * size,
            bits=bits,
            half=row.dtype == torch.bfloat16,
            dim=row.dim if bits and row.bits else 0,
            key_offset=row.offset_address if bits else None,
            wanted=slots.data_ptr(),
            count=n,
            held=self._slots.data_ptr(),
            held_at=self._places.data_ptr(),
            held_count=len(self._slots),
            out_k=self._k.data_ptr(),
            out_v=self._v.data_ptr(),
            room=self._k.shape[1],
            out_stride=self._k.stride(0) * self._k.element_size(),
            place=places.data_ptr(),
        )
        return job, slots, places

    def forget(self) -> None:
        """Hold nothing, since the kernel may have stopped half-way."""
        self._slots = self._slots[:0]
        self._places = self._slots

    def hold(self, slots: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values that the kernel has copied."""
        self._slots = slots
        self._places = places
        return self._k[:, : len(slots)], self._v[:, : len(slots)]

    def _bits_of(self, row: StoredRow) -> int:
        """The bits of the codes that must be made of what is stored; 0: it is copied unchanged."""
        return 0 if self.bits == row.bits else self.bits

    def taken(self, row: StoredRow, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The slots of a row that the kernel would copy, copied by torch."""
        copied = row.at(slots)
        bits = self._bits_of(row)
        if not bits:
            return copied.k, copied.v
        offset = row.coding.key_offset if row.coding else None
        keys = coded.encode_keys(copied.keys(), bits, offset)
        return keys, coded.encode_values(copied.values(), bits)

    def is_compiled(self, row: StoredRow, slots: Tensor) -> bool:
        """Whether the kernel can write what this copy holds."""
        k, v = row.k, row.v
        alike = k.shape == v.shape and k.stride() == v.stride() and row.dim == row.value_dim
        alike = alike or (not row.value_dim and not self.bits)  # latents
        packed = k.stride()[1:] == (k.shape[2], 1)
        if native.library() is None or slots.dim() != 1 or not (k.is_cpu and alike and packed):
            return False
        return not self._bits_of(row) or row.can_be_encoded


def refill(requests: Sequence[tuple[Compact, StoredRow, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The keys and values that each copy holds of (copy, row, slots).

    Slots are ascending, [P], or [K,P] for each head. They are valid until the copy is filled again.
    One kernel call copies all, where possible.
    """
    jobs = list[tuple[native.Copy, Tensor, Tensor] | None]()
    for copy, row, slots in requests:
        jobs.append(copy.change(row, slots) if copy.is_compiled(row, slots) else None)
    lib = native.library()
    ready = [job[0] for job in jobs if job]
    if lib is not None and ready:
        try:
            lib.longdraft_retake((native.Copy * len(ready))(*ready), len(ready))
        except BaseException:
            for copy, *_ in requests:
                copy.forget()
            raise
    copies = list[tuple[Tensor, Tensor]]()
    for (copy, row, slots), job in zip(requests, jobs, strict=True):
        copies.append(copy.hold(*job[1:]) if job else copy.taken(row, slots))
    return copies
