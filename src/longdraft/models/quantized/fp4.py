"""Matrices of numbers of 4 bits (E2M1): MXFP4 has a power of 2 for each 32 inputs, NVFP4 a number
of FP8 for each 16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.models.quantized.forms import NARROW, SUMS, PackedForm
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import FP4, Packed, pack
from longdraft.ops.scales import PlainScales

MXFP4 = PackedForm(4, levels=FP4)
# No kernel knows levels in groups of 16: there they become codes of 8 bits.
NVFP4 = PackedForm(8, NARROW, has_offset=True)
NVFP4_DIVIDED = SUMS[8]  # by a number of the matrix, so scales are no halves
NOT_A_NUMBER = 255


def with_powers(files: Checkpoint, name: str, codes: Tensor, powers: Tensor) -> Packed:
    """MXFP4: codes uint8 [outputs,inputs], powers uint8 [outputs,inputs/32], which begin at -127.

    name: of the powers.
    """
    if (powers == NOT_A_NUMBER).any():
        raise files.error(f"{name[:80]} contains numbers that are not finite")
    scale = torch.exp2(powers.double() - 128).float()  # levels are twice the numbers
    return pack(4, codes, PlainScales(scale, None).shortest(), levels=FP4)


def with_numbers(files: Checkpoint, name: str, codes: Tensor, scale: Tensor) -> Packed:
    """NVFP4: codes uint8 [outputs,inputs], scale float32 [outputs,inputs/16].

    name: of the scales.
    """
    if not scale.isfinite().all():
        raise files.error(f"{name[:80]} contains numbers that are not finite")
    levels = torch.tensor(FP4, dtype=torch.int8)[codes.int()]
    half = scale / 2  # levels are twice the numbers
    return pack(8, levels, PlainScales(half, torch.zeros_like(half)).shortest(), NARROW)
