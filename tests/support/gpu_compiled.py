"""Triton's kernels as a GPU would get them: types and sizes of an 8B model's passes, compiled to
cubins without one.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from longdraft.ops.scan import Terms
from longdraft.ops.triton import functions as gpu
from longdraft.ops.triton import kernels, row_kernels, scan_kernels, scans, slots

SHARED = {80: 163, 90: 227, 100: 227}  # KiB of shared memory that a program may have
HALF = "*bf16"
FLOAT = "*fp32"
LONG = "*i64"
BYTE = "*u8"
INT = "*i32"
DTYPES = {HALF: torch.bfloat16, FLOAT: torch.float32}
STRIDES = (
    "q_row",
    "q_head",
    "q_node",
    "k_row",
    "k_head",
    "k_node",
    "v_row",
    "v_head",
    "v_node",
    "k_slot",
    "v_slot",
)


def build(
    kernel: Any, capability: int, warps: int, types: dict[str, str], constants: dict[str, Any]
) -> Any:
    """Compiles with every pointer and stride a multiple of 16, as torch's are."""
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    even = [n for n, kind in signature.items() if kind.startswith("*") or n in STRIDES]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(n),): v for n, v in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in even},
    )
    built = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    assert len(built.asm["cubin"]) > 1000
    assert built.metadata.shared <= SHARED[capability] * 1024, built.metadata.shared
    return built


def attention(capability: int, nodes: int, kind: str = HALF, dim: int = 128) -> None:
    """Over segments: four query heads to a key head, masked, scores kept."""
    types = dict.fromkeys(("q", "k", "v"), kind) | dict.fromkeys(("out", "lse", "logits"), FLOAT)
    types |= {"visible": BYTE, "place": INT, "scale": "fp32", "softcap": "fp32"}
    constants = gpu.sizes(DTYPES[kind], 4 * nodes, nodes, dim, dim, 2, True, False)
    build(
        kernels.attend_split,
        capability,
        gpu.tiling(4 * nodes, dim, DTYPES[kind])[1],
        types,
        constants,
    )


def over_slots(capability: int, nodes: int, kind: str = HALF, dim: int = 128) -> None:
    """Over a cache: as it is, with scores kept, with picks, a window and a soft cap."""
    types = dict.fromkeys(("cache", "selected", "bounds", "depth"), LONG) | dict.fromkeys(
        ("out", "lse", "logits"), FLOAT
    )
    types |= {"q": kind, "visible": BYTE, "place": INT, "scale": "fp32", "softcap": "fp32"}
    kinds = (
        [(0, True, 0, False)]
        if nodes > 1
        else [(0, False, 0, False), (2, False, 0, False), (0, True, 4096, True)]
    )
    for options in kinds:
        constants = slots.sizes(
            DTYPES[kind], 8, 4 * nodes, nodes, 16 if nodes <= 16 else 128, dim, *options
        )
        build(
            kernels.attend_slots,
            capability,
            gpu.tiling(4 * nodes, dim, DTYPES[kind])[1],
            types,
            constants,
        )


def other_sizes(capability: int, nodes: int) -> None:
    """In float32, and heads of 256."""
    over_slots(capability, nodes, FLOAT)
    over_slots(capability, nodes, HALF, 256)


def around(capability: int, nodes: int) -> None:
    """What writes keys, joins splits and averages scores."""
    types = dict.fromkeys(("k", "v"), HALF) | {"cache": LONG, "bounds": LONG}
    build(kernels.write_slots, capability, 4, types, {"D": 128, "WIDE": 128})
    types = dict.fromkeys(("out", "lse", "sink", "total"), FLOAT) | {"mixed": HALF}
    constants = {"R": 4 * nodes, "W": nodes, "DV": 128, "WIDE_V": 128, "SPLITS": 64, "SINK": True}
    build(kernels.merge_splits, capability, 4, types, constants)
    types = dict.fromkeys(("logits", "total", "scores"), FLOAT) | {
        "keep": LONG,
        "place": INT,
        "bounds": LONG,
    }
    for weights, pooled in ((True, True), (True, False), (False, False)):
        constants = {
            "W": nodes,
            "KEPT": 2,
            "PER": 32,
            "WEIGHTS": weights,
            "POOLED": pooled,
            "BLOCK": slots.BLOCK,
            "SIDE": 16,
        }
        build(kernels.mean_scores, capability, 4, types, constants)


RECURRENT = {  # heads, groups, N, P, delta rule, a gate for each channel
    "Qwen3.5-27B": (48, 16, 128, 128, True, False),
    "Kimi-Linear": (32, 32, 128, 128, True, True),
    "Nemotron-3-Nano": (64, 8, 128, 64, False, False),
}


def recurrent(capability: int, name: str) -> None:
    """A scan of such a layer."""
    heads, groups, N, P, delta, channels = RECURRENT[name]
    types = dict.fromkeys(("k", "v", "q", "beta"), HALF) | {"order": INT, "scale": "fp32"}
    types |= dict.fromkeys(("gate", "state", "out", "saved"), FLOAT)
    types |= {} if delta else {"v": FLOAT}  # inputs times their time steps
    k = torch.empty(1, groups, N, device="meta")
    v = torch.empty(1, heads, P, device="meta")
    gate = torch.empty(1, heads, *[N] * channels, device="meta")
    terms = Terms(k, v, gate, gate if delta else None, normalized=delta)
    build(scan_kernels.scan_steps, capability, 4, types, scans.sizes(terms))


def convolution(capability: int) -> None:
    types = dict.fromkeys(("state", "x", "taps", "bias", "out"), HALF) | {"windows": LONG}
    constants = {"K": 4, "HELD": True, "BIASED": True, "BLOCK": scans.CHANNELS}
    build(scan_kernels.convolve_paths, capability, 4, types, constants)


def rows(capability: int) -> None:
    """What has neither heads nor nodes: noise, and a model's norms."""
    types = {"x": HALF, "weight": HALF, "out": HALF, "eps": "fp32"}
    build(row_kernels.rms_rows, capability, 4, types, {"D": 4096, "WIDE": 4096})
    types = dict.fromkeys(("x", "cos", "sin", "out"), HALF)
    build(row_kernels.rotate_heads, capability, 4, types, {"W": 8, "HALF": 64, "WIDE": 64})
    build(
        row_kernels.gate_values,
        capability,
        4,
        dict.fromkeys(("gate", "up", "out"), HALF),
        {"WIDE": 1024},
    )
    types = {"seed": LONG, "position": LONG, "out": FLOAT}
    build(row_kernels.gumbel_noise, capability, 4, types, {"WIDE": 1024})
