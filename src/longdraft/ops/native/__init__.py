"""The native kernels, if the package was built with a C++ compiler: plain C functions over pointers, loaded once.

Builds of one source lie side by side; the processor and the system decide which is loaded. Without any, torch serves.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from longdraft.errors import InputError

FOLDER = Path(__file__).parent  # where the builds lie
NEEDS = {  # of every build, best first
    "_amx": "AMX tiles of bfloat16",
    "_avx512": "AVX-512 (F, DQ, BW, VL)",
    "_avx2": "AVX2 and FMA",
}
MEMORY, TOKEN = 1, 4
WRONG = {  # the codes of check.h
    2: "the model's shapes contradict each other",
    3: "nodes, positions or lengths are not those of a tree over this cache",
    TOKEN: "a token is outside the model's vocabulary",
    5: "the cache has too few slots",
    6: "a view's picked keys are not where it says",
    7: "scores are asked for of nodes or slots that are not there",
    8: "a state is asked for of a layer that is not there",
    9: "a draw's temperature or count is out of range",
    10: "slots to be copied are not there",
}


class Linear(ctypes.Structure):
    _fields_ = [("w", ctypes.c_void_p), ("b", ctypes.c_void_p), ("out", ctypes.c_int64), ("in", ctypes.c_int64)]


class Layer(ctypes.Structure):
    _fields_ = [(n, Linear) for n in ("q", "k", "v", "o", "gate", "up", "down")]
    _fields_ += [(n, ctypes.c_void_p) for n in ("norm1", "norm2", "qnorm", "knorm")] + [
        ("window", ctypes.c_int64),
        ("kind", ctypes.c_int64),
    ]


class Model(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("layers", "d", "heads", "keys", "groups", "dim", "mlp", "vocab")]
    _fields_ += [("turns", ctypes.c_int64)]
    _fields_ += [(n, ctypes.c_float) for n in ("eps", "scale", "rope_scale")]
    _fields_ += [("inv_freq", ctypes.c_void_p), ("embed", ctypes.c_void_p), ("head", Linear)]
    _fields_ += [("norm", ctypes.c_void_p), ("layer", ctypes.POINTER(Layer))]


class Selected(ctypes.Structure):
    _fields_ = [("k", ctypes.c_void_p), ("v", ctypes.c_void_p), ("n", ctypes.c_int64), ("pitch", ctypes.c_int64)]


class Pass(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("rows", "nodes", "start")]
    _fields_ += [(n, ctypes.c_void_p) for n in ("tokens", "depth", "length", "position", "mask")]
    _fields_ += [("k", ctypes.POINTER(ctypes.c_void_p)), ("v", ctypes.POINTER(ctypes.c_void_p))]
    _fields_ += [
        ("slots", ctypes.POINTER(ctypes.c_int64)),
        ("tail_start", ctypes.c_void_p),
        ("indices", ctypes.POINTER(Selected)),
    ]
    _fields_ += [("keep", ctypes.c_void_p)]
    _fields_ += [(n, ctypes.c_int64) for n in ("kept", "weights", "split", "pooled", "most")]
    _fields_ += [("scores", ctypes.c_void_p), ("hidden", ctypes.c_void_p), ("hiddens", ctypes.c_int64)]
    _fields_ += [("states", ctypes.c_void_p), ("logits", ctypes.c_void_p)]
    _fields_ += [("only", ctypes.c_int64), ("ring", ctypes.c_int64), ("seen", ctypes.c_void_p)]


class Copy(ctypes.Structure):
    _fields_ = [("k", ctypes.c_void_p), ("v", ctypes.c_void_p)]
    _fields_ += [(n, ctypes.c_int64) for n in ("heads", "size", "pitch", "bytes")]
    _fields_ += [("slots", ctypes.c_void_p), ("n", ctypes.c_int64)]
    _fields_ += [("held", ctypes.c_void_p), ("held_at", ctypes.c_void_p), ("had", ctypes.c_int64)]
    _fields_ += [("out_k", ctypes.c_void_p), ("out_v", ctypes.c_void_p)]
    _fields_ += [("room", ctypes.c_int64), ("out_pitch", ctypes.c_int64)]
    _fields_ += [("place", ctypes.c_void_p)]


class Chain(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int64), ("temperature", ctypes.c_double)]
    _fields_ += [
        ("seed", ctypes.c_void_p),
        ("at", ctypes.c_void_p),
        ("reach", ctypes.c_int64),
        ("drawn", ctypes.c_void_p),
    ]


def library() -> ctypes.CDLL | None:
    """The best build that runs here, or None. LONGDRAFT_NATIVE=0: none; amx, avx512, avx2: that one, or InputError."""
    return _library(os.environ.get("LONGDRAFT_NATIVE", ""))


@cache
def _library(wish: str) -> ctypes.CDLL | None:
    if not wish:
        return next((lib for kind in NEEDS if (lib := opened(kind)) is not None), None)
    if wish == "0":
        return None
    if f"_{wish}" not in NEEDS:
        raise InputError(f"LONGDRAFT_NATIVE is {wish!r}: choose {', '.join(k[1:] for k in NEEDS)}, or 0 for none")
    if (lib := opened(f"_{wish}")) is None:
        raise InputError(
            f"LONGDRAFT_NATIVE is {wish!r}, but {lacking(f'_{wish}')}: unset it, and the best that runs is taken"
        )
    return lib


def name_of(lib: ctypes.CDLL) -> str:
    """The build that a library is: "amx", "avx512", "avx2"."""
    return Path(lib._name).name.split(".")[0].lstrip("_")


def opened(kind: str) -> ctypes.CDLL | None:
    """That build, or None where `lacking` says why not."""
    return _open(kind)[0]


def lacking(kind: str) -> str:
    """Why that build cannot be used here; empty where it can."""
    return _open(kind)[1]


@cache
def _open(kind: str) -> tuple[ctypes.CDLL | None, str]:
    found = sorted(FOLDER.glob(f"{kind}.*so"))
    if not found:
        return None, f"the build {kind[1:]} is not in this installation"
    if not runs(kind):
        return None, f"this processor or its operating system does not offer {NEEDS[kind]}"
    try:
        lib = ctypes.CDLL(str(found[0]))  # its OpenMP is torch's own, already in the process
    except OSError as error:
        return None, f"the build {kind[1:]} cannot be loaded ({error})"
    if _layout(lib) != _expected():
        return None, f"the build {kind[1:]} is of other sources than these: build the package again"
    return _declared(lib), ""


def runs(kind: str) -> bool:
    """Whether this processor and operating system can run that build: asked of a library that any can run.

    LONGDRAFT_CPU=haswell: as on a processor that has AVX2 and nothing above it.
    """
    if os.environ.get("LONGDRAFT_CPU") == "haswell" and kind != "_avx2":
        return False
    probe = _probe()
    return probe is not None and bool(probe.longdraft_runs(kind.encode()))


@cache
def _probe() -> ctypes.CDLL | None:
    found = sorted(FOLDER.glob("_probe.*so"))
    return ctypes.CDLL(str(found[0])) if found else None


def _layout(lib: Any) -> int:
    layout = getattr(lib, "longdraft_layout", lambda: 0)
    layout.restype = ctypes.c_uint64
    return layout()


def _expected() -> int:
    """What longdraft_layout says of structures laid out as these are."""
    total = 0
    for kind in (Linear, Layer, Model, Selected, Pass, Copy, Chain):
        total = (total * 1000003 + ctypes.sizeof(kind)) % (1 << 64)
    return total


def _declared(lib: Any) -> ctypes.CDLL:
    """The library with the types of its functions; what those that return a code find wrong is raised."""
    number, pointer, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
    lib.longdraft_new.restype = pointer
    lib.longdraft_bytes.argtypes, lib.longdraft_bytes.restype = [pointer], number
    lib.longdraft_free.argtypes, lib.longdraft_free.restype = [pointer], None
    lib.longdraft_fail.argtypes, lib.longdraft_fail.restype = [number], None
    lib.longdraft_read.argtypes, lib.longdraft_read.restype = [pointer, number], number
    if hasattr(lib, "longdraft_pin"):  # on Linux
        lib.longdraft_pin.argtypes = [number, pointer]
    step = [ctypes.POINTER(Model), ctypes.POINTER(Pass), pointer, ctypes.c_int]
    checked = {
        "step": step,
        "chain": [*step, ctypes.POINTER(Chain)],
        "choose": [pointer, *[number] * 3, ctypes.c_float, number, pointer],
        "take": [pointer, *[number] * 4, pointer, *[number] * 2, pointer],
        "retake": [ctypes.POINTER(Copy), number],
        "uniform": [pointer, pointer, *[number] * 3, pointer],
        "draw": [pointer, real, pointer, pointer, *[number] * 3, pointer],
    }
    for name, arguments in checked.items():
        function = getattr(lib, f"longdraft_{name}")
        function.argtypes, function.restype, function.errcheck = arguments, ctypes.c_int, _raise
    return lib


def _raise(code: int, function: Any, arguments: Any) -> int:
    if code == MEMORY:
        raise MemoryError("not enough memory for this pass: give a shorter text, fewer rows or narrower drafts")
    if code == TOKEN:
        raise InputError(WRONG[TOKEN])
    if code:
        raise RuntimeError(f"the native step was refused: {WRONG.get(code, f'code {code}')}")
    return code
