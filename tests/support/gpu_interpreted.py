"""Runs gpu_checks.py and scan_checks.py under the interpreter, also with planted faults:
test_gpu.py starts it.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from support import gpu_checks, scan_checks

from longdraft.backends import cuda
from longdraft.backends.cuda import static_pass
from longdraft.ops.triton import functions as gpu
from longdraft.ops.triton import kernels, row_kernels, scans, slots

KERNELS, ROWS, STEP = (Path(m.__file__) for m in (kernels, row_kernels, static_pass))
CHECKS = [*gpu_checks.CHECKS, *scan_checks.CHECKS]
FAULTS = {
    "a block reaches into the tree": (
        KERNELS,
        "// STEP * STEP\n",
        "// STEP * STEP + STEP\n",
        gpu_checks.attention,
    ),
    "a rotation turns the wrong way": (
        ROWS,
        "float32) - (right",
        "float32) + (right",
        gpu_checks.first_use,
    ),
    "the gate is left open": (ROWS, "1.0 + tl.exp(-x)", "1.0", gpu_checks.first_use),
    "the scale is left out": (KERNELS, "* scale\n", "\n", gpu_checks.attention),
    "a masked tail starts one key late": (
        KERNELS,
        "tail = n - first",
        "tail = n - first - 1",
        gpu_checks.attention,
    ),
    "old values are not shrunk": (
        KERNELS,
        "mixed * shrink[:, None]",
        "mixed",
        gpu_checks.attention,
    ),
    "keys beyond the end are read": (
        KERNELS,
        "there = n < end",
        "there = n < end + 3",
        gpu_checks.attention,
    ),
    "a tile is folded twice": (
        KERNELS,
        "% tiles\n    head = tl.program_id(1)\n    r = ",
        "* 0\n    head = tl.program_id(1)\n    r = ",
        gpu_checks.attention,
    ),
    "the noise forgets the token": (
        ROWS,
        "token.to(tl.uint64)",
        "(token * 0).to(tl.uint64)",
        gpu_checks.gumbel,
    ),
    "the trial's kernel forgets the sink": (
        KERNELS,
        "+ tl.exp(extra - top)",
        "",
        gpu_checks.first_use,
    ),
    "the norm forgets its width": (
        ROWS,
        "tl.sum(row * row, 0) / D",
        "tl.sum(row * row, 0)",
        gpu_checks.first_use,
    ),
    "a view reads what it does not show": (
        KERNELS,
        "tl.load(bounds + b * 4 + 3)",
        "n * 0",
        gpu_checks.passes,
    ),
    "new keys go one slot too far": (
        KERNELS,
        "+ n + start + w)",
        "+ n + start + w + 1)",
        gpu_checks.passes,
    ),
    "padding is written": (KERNELS, "tl.where(w < size - start, D, 0)", "D", gpu_checks.passes),
    "all rows read the first's keys": (
        KERNELS,
        "(b * K + head) * tl.load",
        "head * tl.load",
        gpu_checks.passes,
    ),
    "a split that saw nothing is merged": (
        KERNELS,
        "(shares > 0)[:, None] & ",
        "",
        gpu_checks.passes,
    ),
    "a window is a slot too long": (
        KERNELS,
        "other=0) - WINDOW + 1",
        "other=0) - WINDOW",
        gpu_checks.features,
    ),
    "weights forget the other splits": (
        KERNELS,
        "    s - tl.load",
        "    s + 0 * tl.load",
        gpu_checks.captured,
    ),
    "a split skips a key": (
        KERNELS,
        "split * span\n    mean",
        "split * span + 1\n    mean",
        gpu_checks.attention,
    ),
    "the root is not scored": (KERNELS, "slot <= tl.load", "slot < tl.load", gpu_checks.captured),
    "a pooled row is left out": (
        KERNELS,
        "low = 0 if POOLED",
        "low = 1 if POOLED",
        gpu_checks.captured,
    ),
    "a window forgets the tree": (STEP, "(apart < w)", "(apart <= w)", gpu_checks.features),
    "a step waits for the host": (
        STEP,
        "self.logits =",
        "logits.sum().item(); self.logits =",
        gpu_checks.fixed,
    ),
    "a launch follows the length": (STEP, "bucket(tail, 1024)", "1024 + tail", gpu_checks.fixed),
}
FAULTS |= scan_checks.FAULTS


def plant(file: Path, good: str, bad: str, folder: Path) -> None:
    """Load a changed copy of the file in place of what the checks use."""
    source = file.read_text()
    assert source.count(good) == 1, f"{good!r} is there {source.count(good)} times"
    copy = folder / f"{file.stem}.py"
    copy.write_text(source.replace(good, bad))
    spec = importlib.util.spec_from_file_location("broken", copy)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["broken"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    if file is STEP:
        cuda.Shape = module.Shape
        cuda.StaticPass = module.StaticPass
        return
    for user in (gpu, slots, scans):
        for name in vars(user).keys() & vars(module).keys():
            if type(vars(module)[name]).__name__ == "InterpretedFunction":
                setattr(user, name, vars(module)[name])


def main(part: str) -> None:
    """Run the checks, or plant the faults, and print a line for each."""
    torch.set_num_threads(1)
    gpu.PROGRAMS = 4  # each costs the interpreter its time
    slots.BLOCK = 1024
    torch.empty = gpu_checks.poisoned
    with torch.inference_mode():
        {"checks": run_checks, "faults": plant_faults}[part]()


def run_checks() -> None:
    for check in CHECKS:
        check()
        print(f"right: {check.__name__}", flush=True)


def plant_faults() -> None:
    modules = gpu, slots, scans, cuda, gpu_checks
    good = {(m, n): v for m in modules for n, v in vars(m).items() if not n.startswith("__")}
    for name, fault in FAULTS.items():
        print(f"{'caught' if caught(*fault) else 'NOT CAUGHT'}: {name}", flush=True)
        for (module, key), value in good.items():
            setattr(module, key, value)


def caught(file: Path, before: str, after: str, check: Callable[[], None]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        plant(file, before, after, Path(folder))
        try:
            check()
        except (AssertionError, ArithmeticError):
            return True
    return False


if __name__ == "__main__":
    main(sys.argv[1])
