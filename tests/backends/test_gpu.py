"""What can be known of the GPU's kernels without one: right under the interpreter, and they
compile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: the GPU's kernels are not checked")

HERE = Path(__file__).parents[1]
OTHERS = "Kimi-Linear", "Nemotron-3-Nano"  # of gpu_compiled.RECURRENT

# What takes minutes is run when a GPU's code changed (tests/changed.py), and weekly.
CHANGED = (pytest.mark.full, pytest.mark.weekly)


def interpreted(part: str) -> list[str]:
    """What the checks or the planted faults print. Triton reads the variable when it defines
    kernels: a new process.
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    code = f"from support import gpu_interpreted; gpu_interpreted.main({part!r})"
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, cwd=HERE)
    if "only 0-dimensional arrays" in done.stderr:
        pytest.skip("this Triton's interpreter does not run with this numpy")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.full
@pytest.mark.weekly
@pytest.mark.timeout(900)  # the interpreter takes over a minute, more on a busy machine
def test_kernels_and_the_step_are_right_under_the_interpreter():
    from support.gpu_interpreted import CHECKS

    assert interpreted("checks") == [f"right: {check.__name__}" for check in CHECKS]


@pytest.mark.full
@pytest.mark.weekly
@pytest.mark.timeout(900)  # the interpreter takes over a minute, more on a busy machine
def test_every_planted_fault_is_caught():
    from support.gpu_interpreted import FAULTS

    assert interpreted("faults") == [f"caught: {name}" for name in FAULTS]


@pytest.mark.full
@pytest.mark.parametrize(
    ("nodes", "capability"),
    [
        (1, 90),
        *(
            pytest.param(n, c, marks=CHANGED)
            for n in (1, 69)
            for c in (80, 90, 100)
            if (n, c) != (1, 90)
        ),
    ],
)
@pytest.mark.parametrize("part", ["attention", "over_slots", "around", "other_sizes"])
def test_kernels_compile(part, nodes, capability):
    """To cubins whose shared memory the chip has: heads of 128 in bfloat16, four to a key head, a
    69-node tree.
    """
    from support import gpu_compiled

    getattr(gpu_compiled, part)(capability, nodes)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_noise_and_norms_compile(capability):
    from support import gpu_compiled

    gpu_compiled.rows(capability)


@pytest.mark.parametrize("name", ["Qwen3.5-27B", *(pytest.param(n, marks=CHANGED) for n in OTHERS)])
@pytest.mark.parametrize("capability", [90, *(pytest.param(c, marks=CHANGED) for c in (80, 100))])
def test_scans_compile(name, capability):
    from support import gpu_compiled

    gpu_compiled.recurrent(capability, name)


@pytest.mark.full
@pytest.mark.weekly
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_causal_convolutions_compile(capability):
    from support import gpu_compiled

    gpu_compiled.convolution(capability)


def test_without_a_gpu_the_step_is_left_out():
    from support.tiny import target

    assert torch.cuda.is_available() or target("llama").backend.name != "cuda"
