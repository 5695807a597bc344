"""The native kernels, if the package was built with a C++ compiler: plain C functions over pointers, loaded once.

Builds of one source lie side by side; the processor decides which is loaded. Without any, torch serves.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch

BUILDS = {"AVX512": ["_amx", "_avx512"], "AVX2": ["_avx2"]}  # torch's name of the processor's best -> ours, best first


class Linear(ctypes.Structure):
    _fields_ = [("w", ctypes.c_void_p), ("b", ctypes.c_void_p)]


class Layer(ctypes.Structure):
    _fields_ = [(n, Linear) for n in ("q", "k", "v", "o", "gate", "up", "down")]
    _fields_ += [(n, ctypes.c_void_p) for n in ("norm1", "norm2", "qnorm", "knorm")] + [
        ("window", ctypes.c_int64),
        ("kind", ctypes.c_int64),
    ]


class Model(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("layers", "d", "heads", "groups", "dim", "mlp", "vocab")]
    _fields_ += [(n, ctypes.c_float) for n in ("eps", "scale", "rope_scale")]
    _fields_ += [("inv_freq", ctypes.c_void_p), ("embed", ctypes.c_void_p), ("head", Linear)]
    _fields_ += [("norm", ctypes.c_void_p), ("layer", ctypes.POINTER(Layer))]


class Picked(ctypes.Structure):
    _fields_ = [("k", ctypes.c_void_p), ("v", ctypes.c_void_p), ("n", ctypes.c_int64), ("pitch", ctypes.c_int64)]


class Pass(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("rows", "nodes", "start")]
    _fields_ += [(n, ctypes.c_void_p) for n in ("tokens", "depth", "length", "position", "mask")]
    _fields_ += [("k", ctypes.POINTER(ctypes.c_void_p)), ("v", ctypes.POINTER(ctypes.c_void_p))]
    _fields_ += [
        ("slots", ctypes.POINTER(ctypes.c_int64)),
        ("since", ctypes.c_void_p),
        ("picks", ctypes.POINTER(Picked)),
    ]
    _fields_ += [("keep", ctypes.c_void_p)]
    _fields_ += [(n, ctypes.c_int64) for n in ("kept", "weights", "split", "pooled", "most")]
    _fields_ += [("scores", ctypes.c_void_p), ("hidden", ctypes.c_void_p), ("hiddens", ctypes.c_int64)]
    _fields_ += [("states", ctypes.c_void_p), ("logits", ctypes.c_void_p)]
    _fields_ += [("only", ctypes.c_int64), ("ring", ctypes.c_int64), ("seen", ctypes.c_void_p)]


class Copy(ctypes.Structure):
    _fields_ = [("k", ctypes.c_void_p), ("v", ctypes.c_void_p)]
    _fields_ += [(n, ctypes.c_int64) for n in ("heads", "pitch", "bytes")]
    _fields_ += [("slots", ctypes.c_void_p), ("n", ctypes.c_int64)]
    _fields_ += [("held", ctypes.c_void_p), ("held_at", ctypes.c_void_p), ("had", ctypes.c_int64)]
    _fields_ += [("out_k", ctypes.c_void_p), ("out_v", ctypes.c_void_p), ("out_pitch", ctypes.c_int64)]
    _fields_ += [("place", ctypes.c_void_p)]


class Chain(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int64), ("temperature", ctypes.c_double)]
    _fields_ += [
        ("seed", ctypes.c_void_p),
        ("at", ctypes.c_void_p),
        ("reach", ctypes.c_int64),
        ("drawn", ctypes.c_void_p),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The best build that this processor runs, or None. LONGDRAFT_NATIVE=0: none; =amx, =avx512, =avx2: that one."""
    wish = os.environ.get("LONGDRAFT_NATIVE", "")
    if wish == "0":
        return None
    kinds = [f"_{wish}"] if wish else BUILDS.get(torch.backends.cpu.get_cpu_capability(), [])
    return next((lib for kind in kinds if (lib := opened(kind)) is not None), None)


def opened(kind: str) -> ctypes.CDLL | None:
    """That build, or None where it is missing, of another version, or cannot run here."""
    found = sorted(Path(__file__).parent.glob(f"{kind}.*so"))
    if not found or (kind == "_amx" and not torch.cpu._is_amx_tile_supported()):
        return None
    try:
        lib = ctypes.CDLL(str(found[0]))  # its OpenMP is torch's own, already in the process
    except OSError:
        return None
    sizes = [ctypes.sizeof(x) for x in (Model, Layer, Pass, Chain)]
    layout: Any = getattr(lib, "longdraft_layout", lambda: 0)
    layout.restype = ctypes.c_int64
    if layout() != sum(n * 1000**i for i, n in enumerate(sizes)) or not lib.longdraft_usable():
        return None
    lib.longdraft_new.restype = ctypes.c_void_p
    lib.longdraft_free.argtypes = [ctypes.c_void_p]
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    lib.longdraft_choose.argtypes = [pointer, *[number] * 3, ctypes.c_float, number, pointer]
    lib.longdraft_choose.restype = lib.longdraft_take.restype = None
    lib.longdraft_read.argtypes = [pointer, number]
    lib.longdraft_uniform.argtypes = [pointer, pointer, *[number] * 3, pointer]
    lib.longdraft_draw.argtypes = [pointer, ctypes.c_double, pointer, pointer, *[number] * 3, pointer]
    lib.longdraft_uniform.restype = lib.longdraft_draw.restype = None
    if hasattr(lib, "longdraft_pin"):  # on Linux
        lib.longdraft_pin.argtypes, lib.longdraft_pin.restype = [number, pointer], None
    lib.longdraft_retake.argtypes, lib.longdraft_retake.restype = [ctypes.POINTER(Copy), number], None
    lib.longdraft_take.argtypes = [pointer, *[number] * 3, pointer, *[number] * 2, pointer]
    lib.longdraft_step.argtypes = [ctypes.POINTER(Model), ctypes.POINTER(Pass), ctypes.c_void_p, ctypes.c_int]
    lib.longdraft_chain.argtypes = [*lib.longdraft_step.argtypes, ctypes.POINTER(Chain)]
    return lib
