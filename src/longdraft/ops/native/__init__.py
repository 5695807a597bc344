"""Loads the best build of the native kernels that can run here, if any.

They are C functions over pointers: interface.h.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from longdraft.errors import InputError
from longdraft.ops.native.interface import Interface

FOLDER = Path(__file__).parent  # of the builds
NEEDS = {  # what each build needs, best build first
    "_amx": "AMX tiles of bfloat16",
    "_avx512bf16": "AVX-512 with bfloat16",
    "_avx512vnni": "AVX-512 with VNNI",
    "_avx512": "AVX-512 (F, DQ, BW, VL)",
    "_avxvnni": "AVX2 with AVX-VNNI",
    "_avx2": "AVX2 and FMA",
    "_neon": "Arm's NEON",
}
WITHOUT_INT8 = ("neon",)  # builds that cannot round inputs to 8 bits (interleaved.h)
INTERFACE = Interface((Path(__file__).parent / "interface.h").read_text())
STRUCTS = INTERFACE.structs
ENUMS = INTERFACE.enums
Linear = STRUCTS["Linear"]
Experts = STRUCTS["Experts"]
Layer = STRUCTS["Layer"]
Model = STRUCTS["Model"]
LayerCache = STRUCTS["LayerCache"]
Selected = STRUCTS["Selected"]
Pass = STRUCTS["Pass"]
Warpers = STRUCTS["Warpers"]
Chain = STRUCTS["Chain"]
Growth = STRUCTS["Growth"]
Copy = STRUCTS["Copy"]
Scan = STRUCTS["Scan"]
Code = ENUMS["Code"]
Activation = ENUMS["Activation"]
Scoring = ENUMS["Scoring"]
GateFunction = ENUMS["GateFunction"]
LayerKind = ENUMS["LayerKind"]
Start = ENUMS["Start"]
Format = ENUMS["Format"]
ScaleForm = ENUMS["ScaleForm"]
WRONG = {
    "BAD_MODEL": "the model's shapes contradict each other",
    "BAD_NODES": "nodes, positions or lengths are not those of a tree over this cache",
    "BAD_TOKEN": "a token is outside the model's vocabulary",
    "BAD_SLOTS": "the cache has too few slots",
    "BAD_VIEW": "a view's selected keys or its tail are outside the cache",
    "BAD_SCORES": "scores are to be kept of nodes or slots that do not exist",
    "BAD_STATES": "a state is to be kept of a layer that does not exist",
    "BAD_DRAW": "a draw's settings or count are out of range",
    "BAD_COPY": "slots to be copied do not exist",
    "BAD_SCAN": "the shapes of a recurrence contradict each other",
}


def library() -> ctypes.CDLL | None:
    """The best build that can run here, or None.

    LONGDRAFT_NATIVE: 0 for none; or its name, else InputError.
    """
    return _library(os.environ.get("LONGDRAFT_NATIVE", ""))


@cache
def _library(choice: str) -> ctypes.CDLL | None:
    if not choice:
        return next((lib for kind in NEEDS if (lib := opened(kind)[0]) is not None), None)
    if choice == "0":
        return None
    if f"_{choice}" not in NEEDS:
        raise InputError(
            f"LONGDRAFT_NATIVE is {choice!r}: choose {', '.join(k[1:] for k in NEEDS)}, or "
            "0 for none"
        )
    lib, why_not = opened(f"_{choice}")
    if lib is None:
        raise InputError(
            f"LONGDRAFT_NATIVE is {choice!r}, but {why_not}: unset it to use the best "
            "build that can run"
        )
    return lib


def name_of(lib: ctypes.CDLL) -> str:
    """The name of a library's build, such as "avx512bf16", "avx2" or "neon"."""
    return Path(lib._name).name.split(".")[0].lstrip("_")


@cache
def opened(kind: str) -> tuple[ctypes.CDLL | None, str]:
    """The build of this name, or None and the reason why it cannot be used here."""
    file = FOLDER / f"{kind}.so"
    if not file.exists() and (runs(kind) or _probe() is None):
        return None, f"the build {kind[1:]} is not in this installation"
    if not runs(kind):
        return None, f"{_lacking(kind)} does not offer {NEEDS[kind]}"
    try:
        lib = ctypes.CDLL(str(file))  # it uses the OpenMP runtime that torch has loaded
    except OSError as error:
        return None, f"the build {kind[1:]} cannot be loaded ({error})"
    if difference := INTERFACE.difference(lib):
        why_not = f"the build {kind[1:]} was made from other sources ({difference})"
        return None, f"{why_not}: build the package again"
    INTERFACE.declare(lib, _raise)
    return lib, ""


def runs(kind: str) -> bool:
    """Whether this processor and operating system can run a build.

    The probe tells, which any processor can run. With LONGDRAFT_CPU=haswell it answers for a
    processor that has AVX2 and nothing above it.
    """
    if _as_haswell(kind):
        return False
    probe = _probe()
    return probe is not None and bool(probe.longdraft_runs(kind.encode()))


def _as_haswell(kind: str) -> bool:
    return os.environ.get("LONGDRAFT_CPU") == "haswell" and kind != "_avx2"


def _lacking(kind: str) -> str:
    """The processor or operating system that does not offer what a build needs, in words."""
    if _as_haswell(kind):
        return "LONGDRAFT_CPU is haswell, which"
    probe = _probe()
    lacks = getattr(probe, "longdraft_lacks", None)  # an older probe does not say
    who = {1: "this processor", 2: "the operating system"}
    return who.get(lacks(kind.encode()) if lacks else 0, "this processor or its operating system")


@cache
def _probe() -> ctypes.CDLL | None:
    if not (FOLDER / "_probe.so").exists():
        return None
    probe = ctypes.CDLL(str(FOLDER / "_probe.so"))
    probe.longdraft_runs.argtypes = [ctypes.c_char_p]
    probe.longdraft_runs.restype = ctypes.c_int
    return probe


def _raise(code: int, function: Any, arguments: Any) -> int:
    """Raise the error that a Code stands for: the errcheck of functions that return one."""
    if code == 0:
        return code
    name = Code(code).name
    if name == "NO_MEMORY":
        raise MemoryError(
            "not enough memory for this pass: use a shorter prompt, fewer rows or narrower drafts"
        )
    if name == "BAD_TOKEN":
        raise InputError(WRONG[name])
    raise RuntimeError(f"the native kernels refused a call: {WRONG[name]}")
