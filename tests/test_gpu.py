"""What can be known of the GPU's kernels without one: right under the interpreter, and they compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed: the GPU's kernels are not checked")

HERE = Path(__file__).parent


def interpreted(program: str) -> subprocess.CompletedProcess:
    """Triton reads the variable when kernels are defined: a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=HERE)


def test_kernels_are_right_under_the_interpreter():
    done = interpreted("import gpu_interpreted")
    assert done.returncode == 0 and "right" in done.stdout, done.stderr[-2000:]


FAULTS = {
    "the scale is left out": ("* scale\n", "\n"),
    "a masked tail starts one key late": ("tail = n - (keys - masked)", "tail = n - (keys - masked) - 1"),
    "old values are not shrunk": ("mixed = mixed * shrink[:, None]", "mixed = mixed"),
    "keys beyond the end are read": ("there = n < keys", "there = n < keys + 3"),
    "the noise forgets the token": ("token.to(tl.uint64)", "(token * 0).to(tl.uint64)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_kernel_is_caught(fault, tmp_path):
    from longdraft.ops import gpu

    source = Path(gpu.__file__).read_text()
    good, bad = FAULTS[fault]
    assert source.count(good) == 1
    (tmp_path / "broken_gpu.py").write_text(source.replace(good, bad))
    load = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import broken_gpu, longdraft.ops"
    done = interpreted(
        f"{load}; longdraft.ops.gpu = sys.modules['longdraft.ops.gpu'] = broken_gpu; import gpu_interpreted"
    )
    assert done.returncode != 0 and "Error" in done.stderr


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("rows", [1, 69])
def test_attention_compiles(capability, rows):
    """To a cubin whose shared memory the chip has: grouped heads of 128 in bfloat16, masked, with scores kept."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from longdraft.ops import gpu

    constants = gpu.sizes(4 * rows if rows <= 32 else rows, rows, 128, 128, 2, True, True, False)
    names = gpu.attend_split.arg_names
    kinds = dict.fromkeys(("q", "k", "v"), "*bf16") | {"slots": "*i64", "visible": "*u8", "kept": "*i32"}
    kinds |= dict.fromkeys(("out", "lse", "logits", "scale", "softcap"), "*fp32") | {"scale": "fp32", "softcap": "fp32"}
    signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names}
    source = ASTSource(
        fn=gpu.attend_split, signature=signature, constexprs={(names.index(n),): v for n, v in constants.items()}
    )
    built = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert len(built.asm["cubin"]) > 1000
    assert built.metadata.shared <= {80: 163, 90: 227, 100: 227}[capability] * 1024


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_noise_compiles(capability):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from longdraft.ops import gpu

    kinds = {"seed": "*i64", "position": "*i64", "out": "*fp32", "nodes": "i32", "vocab": "i32", "WIDE": "constexpr"}
    source = ASTSource(fn=gpu.gumbel_noise, signature=kinds, constexprs={(5,): 1024})
    assert len(compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]) > 1000
