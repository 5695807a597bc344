"""A check of the Triton kernels on this device, run on small shapes before their first use."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from longdraft.ops import noise, reference, scan
from longdraft.ops.reference import Segment

# Largest norm of the difference, relative to the norm of the reference.
ERROR = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}


@cache
def kernels() -> ModuleType | None:
    """triton.functions, or None to use torch.

    None without Triton, with LONGDRAFT_TRITON=0, or if a kernel fails (one warning).
    """
    return _checked("functions", "Triton kernels", compare)


@cache
def scans() -> ModuleType | None:
    """triton.scans, or None, for the same reasons."""
    return _checked("scans", "Triton kernels of recurrent layers", compare_scans)


def _checked(name: str, kernels: str, check: Callable[[torch.device], None]) -> ModuleType | None:
    if os.environ.get("LONGDRAFT_TRITON") == "0" or find_spec("triton") is None:
        return None
    try:
        module = import_module(f"longdraft.ops.triton.{name}")
        check(torch.device("cuda"))
    # from the compiler, the driver, or a wrong number: torch still works
    except Exception as error:
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        warnings.warn(f"{kernels} are not used on this device: {why[:200]}", stacklevel=3)
        return None
    return module


def compare(
    device: torch.device, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
) -> None:
    """Compare every kernel with the reference.

    Raises ArithmeticError where one differs.
    """
    from longdraft.ops.triton import functions, slots

    for dtype in dtypes:
        _attention(functions, device, dtype)
        _slots(slots, device, dtype)
        x, weight = _draw(device, dtype, (3, 2, 96), (96,))
        wanted = torch.nn.functional.rms_norm(x.float(), (96,), weight.float(), 1e-6)
        _near("norm", functions.rms_norm(x, weight, 1e-6), wanted, ERROR[dtype])
        _near(
            "gate",
            functions.gated(x, 2 * x),
            torch.nn.functional.silu(x.float()) * 2 * x.float(),
            ERROR[dtype],
        )
        q, cos, sin = _draw(device, dtype, (2, 3, 5, 48), (2, 5, 48), (2, 5, 48))
        turned = torch.cat([-q[..., 24:], q[..., :24]], -1).float()
        wanted = q.float() * cos[:, None].float() + turned * sin[:, None].float()
        _near("rotation", functions.rotate(q, cos, sin), wanted, ERROR[dtype])
    seed = torch.tensor([3, 1 << 40], device=device)
    position = torch.tensor([[5], [9]], device=device)
    _near("noise", functions.gumbel(seed, position, 300), noise.gumbel(seed, position, 300), 1e-5)


def compare_scans(device: torch.device) -> None:
    """Compare the kernels of recurrent layers with torch.

    Raises ArithmeticError where one differs. Delta rules and a decaying sum over a tree, with and
    without an earlier state, and a convolution.
    """
    from longdraft.ops.triton import scans

    order = scan.depth_first(
        [(-1, [0, 1]), (0, [2, 4]), (0, [3]), (-1, [5])], 6, device, keep=(1, 2)
    )
    k, v, q, state = _draw(device, torch.bfloat16, (6, 2, 24), (6, 4, 40), (5, 2, 24), (4, 24, 40))
    gate, each, beta = _draw(device, torch.float32, (6, 4), (6, 4, 24), (6, 4))
    for held in (state.float(), None):
        for terms in (
            scan.Terms(k, v, -gate.abs(), beta.sigmoid(), q, 0.2, normalized=True),
            scan.Terms(k, v, -each.abs(), beta.sigmoid(), q, 0.2, normalized=True),
            scan.Terms(k, v, -gate.abs(), None, q),
        ):
            for computed, wanted in zip(
                scans.along(terms, held, order), scan.along(terms, held, order), strict=True
            ):
                _near("scan", computed, wanted, ERROR[torch.float32])
    x, before, taps, bias = _draw(device, torch.float32, (6, 300), (3, 300), (300, 4), (300,))
    windows = torch.tensor(
        [[0, 1, 2, 3], [1, 2, 3, 8], [5, 6, 7, 8]], dtype=torch.int32, device=device
    )
    wanted = (torch.cat([before, x])[windows] * taps.T).sum(1) + bias
    _near(
        "convolution", scans.convolve(before, x, windows, taps, bias), wanted, ERROR[torch.float32]
    )


def _near(name: str, computed: Tensor, wanted: Tensor, error: float) -> None:
    apart = float((computed.float() - wanted.float()).norm() / wanted.float().norm())
    if not apart <= error:  # NaN is not
        raise ArithmeticError(
            f"{name} differs from the reference by {apart:.1e} of its norm (at most {error:.0e})"
        )


def _draw(device: torch.device, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g).to(device, dtype) for s in shapes]


def _attention(gpu: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Two segments, a mask, grouped heads, a sink, kept scores."""
    q, k, v, sink = _draw(device, dtype, (4, 5, 64), (2, 150, 64), (2, 150, 64), (4,))
    mask = torch.ones(5, 5, dtype=torch.bool, device=device).tril()
    options = {"sink": sink.float(), "keep": [0, 4]}
    computed = gpu.attend(
        q, [Segment(k[:, :99], v[:, :99]), Segment(k[:, 99:], v[:, 99:], mask)], 0.125, **options
    )
    parts = [
        Segment(k[:, :99].float(), v[:, :99].float()),
        Segment(k[:, 99:].float(), v[:, 99:].float(), mask),
    ]
    wanted = reference.attend(q.float(), parts, 0.125, **options)
    _near("attention", computed.out, wanted.out, ERROR[dtype])
    assert computed.weights is not None and wanted.weights is not None
    _near("kept weights", computed.weights, wanted.weights, ERROR[dtype])


def _slots(slots: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Check three new nodes after 90 slots of a cache.

    The first 40 slots are replaced by 20 selected keys.
    """
    new = (1, 2, 3, 64)
    cached = (1, 2, 128, 64)
    q, new_k, new_v, k, v = _draw(device, dtype, (1, 4, 3, 64), new, new, cached, cached)
    own_k = k[0, :, :40:2].contiguous()
    own_v = v[0, :, :40:2].contiguous()
    whole = [
        torch.cat([own_k.float(), k[0, :, 40:90].float(), new_k[0].float()], 1),
        torch.cat([own_v.float(), v[0, :, 40:90].float(), new_v[0].float()], 1),
    ]
    mask = torch.ones(3, 3, dtype=torch.bool, device=device).tril()
    wanted = reference.attend(q[0].float(), [Segment(whole[0], whole[1], mask)], 0.125)

    def table(*numbers: int) -> Tensor:
        return torch.tensor(numbers, device=device)

    visible = torch.zeros(1, 3, 16, dtype=torch.uint8, device=device)
    visible[0, :, :3] = mask
    keys = slots.SlotKeys(
        table(k.data_ptr(), v.data_ptr(), 128, 0), table(own_k.data_ptr(), own_v.data_ptr(), 20,
        20)[None],
        table(90, 0, 3, 40)[None], visible, table(0, 1, 2)[None], 1024, 64,
    )  # fmt: skip
    slots.write(new_k, new_v, keys.cache, keys.bounds)
    out, _, _ = slots.attend(q, 2, keys, 0.125)
    _near("attention over slots", out[0], wanted.out, ERROR[dtype])
