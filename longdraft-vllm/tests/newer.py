"""For tests of vLLM's newer model runner on a CPU, where Triton's interpreter runs its kernels.

Imported before vLLM; it skips the test file unless the process was started for that. The variable
that chooses a runner is not set: vLLM takes the newer one wherever Triton runs.
"""

from __future__ import annotations

import os
import sys
from functools import wraps

import pytest

if os.environ.get("TRITON_INTERPRET") != "1" or "vllm" in sys.modules:
    pytest.skip(
        "needs a process of its own: TRITON_INTERPRET=1 pytest tests/test_v2*.py",
        allow_module_level=True,
    )
pytest.importorskip("triton", reason="vLLM's newer model runner needs Triton")
import interpreter  # noqa: F401
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu import model_runner

topk_topp_sampler.HAS_TRITON = (
    False  # the interpreter cannot run this kernel; vLLM's PyTorch code takes its place
)
LONGEST = 256
SMALL = {"num_gpu_blocks_override": 11}  # too few pages for the requests that run at once


def counted(monkeypatch) -> list[int]:
    """The newer runner's batches from now on, so that no test passes on the older one."""
    found: list[int] = []
    execute = model_runner.GPUModelRunner.sample_tokens

    @wraps(execute)
    def counting(self, *args):
        found.append(1)
        return execute(self, *args)

    monkeypatch.setattr(model_runner.GPUModelRunner, "sample_tokens", counting)
    return found
