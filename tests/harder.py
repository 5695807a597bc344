"""The native tests where it is harder: `haswell`, a processor with AVX2 and no more; `asan`, under
AddressSanitizer.

Each says what it used. What a machine has no tools for is left out with a line that says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "src" / "longdraft" / "ops" / "native"
ASAN = ROOT / "build" / "asan"
# Haswell, without what the emulator does not have and would warn of.
EMULATOR = ("qemu-x86_64", "-cpu", "Haswell-noTSX,pcid=off,x2apic=off,tsc-deadline=off,invpcid=off")
# An emulated test takes some twenty times as long: choosing a build, a step, a chain, a tree, a
# method.
EMULATED = [
    "tests/ops/test_builds.py",
    "tests/ops/test_native.py::test_equals_transformers[llama-None-logits]",
    "tests/ops/test_native.py::test_a_chain_is_bit_for_bit_plain_decoding[1-qwen3-dtype1]",
    "tests/ops/test_native_trees.py::test_in_every_build",
    "tests/ops/test_chain.py::test_one_call_drafts_what_node_by_node_does[guided-llama-T=1]",
    "tests/ops/test_draft_layers.py::test_in_every_build[_avx2-tree, window-eagle3, 40 tokens]",
    "tests/ops/test_select.py::test_a_copy_follows_its_choices",
    "tests/ops/test_bounds.py::test_a_call_that_does_not_fit_is_refused",
]
MASKED = ["builds", "native", "native_trees", "chain", "draft_layers", "select", "bounds"]
MASKED = [f"tests/ops/test_{name}.py" for name in MASKED]
SANITIZED = ["asan", "bounds", "out_of_memory", "select", "native", "native_trees", "draft_layers"]
SANITIZED = [f"tests/ops/test_{name}.py" for name in SANITIZED]
SANITIZED += [
    "tests/models/test_kv8.py",
    "tests/ops/test_chain.py::test_one_call_drafts_what_node_by_node_does",
]


def pytest(tests: list[str], before: tuple[str, ...] = (), **environment: str) -> int:
    """Run these tests in parallel processes, or in one where an emulator stands `before` Python."""
    several = [] if before else ["-n", "logical", "--maxprocesses", "8", "--dist", "worksteal"]
    words = [*before, sys.executable, "-m", "pytest", "--timeout", "900", *several, *tests]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}).returncode


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def emulates_avx2() -> bool:
    """Whether the emulator is here, and its Haswell has AVX2: older ones have not."""
    probe = NATIVE / "_probe.so"
    if shutil.which(EMULATOR[0]) is None or not probe.exists():
        return False
    code = f"import ctypes, sys; sys.exit(not ctypes.CDLL({str(probe)!r}).longdraft_runs(b'_avx2'))"
    return (
        subprocess.run([*EMULATOR, sys.executable, "-c", code], capture_output=True).returncode == 0
    )


def haswell() -> int:
    if platform.machine() not in ("x86_64", "AMD64"):
        say("AVX2 alone: left out, this is no x86 machine")
        return 0
    if builds_that_run() == "avx2":
        say("AVX2 alone: left out, this processor has no more, so every test ran on it")
        return 0
    if emulates_avx2():
        say(f"AVX2 alone: emulated by {' '.join(EMULATOR)}")
        return pytest(EMULATED, EMULATOR, LONGDRAFT_EMULATED="1")
    say(
        f"AVX2 alone: MASKED by LONGDRAFT_CPU=haswell, for want of {EMULATOR[0]}; wider "
        "code would run unseen"
    )
    return pytest(MASKED, LONGDRAFT_CPU="haswell", **masks_of_torch())


def masks_of_torch() -> dict[str, str]:
    """Settings that keep torch to AVX2 too. With AMX, torch packs keys in bfloat16 all the same,
    and then fails.
    """
    cpuinfo = Path("/proc/cpuinfo")
    has_amx = cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text()
    return {} if has_amx else {"ATEN_CPU_CAPABILITY": "avx2"}


def library(compiler: str, name: str) -> Path | None:
    """Where the compiler has this library."""
    asked = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True)
    path = Path(asked.stdout.strip())
    return path if path.is_absolute() else None


def builds_that_run() -> str:
    """The builds that this processor can run, with commas between: tests of the others skip."""
    code = (
        "from longdraft.ops import native\nprint(*(k[1:] for k in native.NEEDS if native.runs(k)))"
    )
    words = [sys.executable, "-c", code]
    path = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    asked = subprocess.run(words, cwd=ROOT, env=path, capture_output=True, text=True, check=True)
    return ",".join(asked.stdout.split())


def sanitized_builds() -> str:
    """Those that run, but for one whose code is in the others: wide vectors, VNNI."""
    kinds = builds_that_run().split(",")
    if "avx512bf16" in kinds and "avx512vnni" in kinds:
        kinds.remove("avx512vnni")
    return ",".join(kinds)


def asan() -> int:
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        say(f"AddressSanitizer: left out, there is no compiler {compiler}")
        return 0
    # With libstdc++ before anything is loaded, or the sanitizer does not find the function that
    # throws.
    runtimes = [library(compiler, name) for name in ("libasan.so", "libstdc++.so.6")]
    if None in runtimes:
        say(f"AddressSanitizer: left out, {compiler} has no libasan.so")
        return 0
    kinds = sanitized_builds()
    say(f"AddressSanitizer: building {kinds} into {ASAN.relative_to(ROOT)}")
    flags = (
        "-fsanitize=address -fno-omit-frame-pointer -g1 -DLONGDRAFT_PLANTED -Wno-uninitialized "
        "-Wno-maybe-uninitialized"
    )
    words = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(ASAN),
        "--build-temp",
        f"{ASAN}-objects",
    ]
    # setuptools reads the first or the second for C++, by its version; test_asan.py asserts that it
    # did
    told = {"CFLAGS": flags, "CXXFLAGS": flags, "LDFLAGS": "-fsanitize=address"}
    told["LONGDRAFT_BUILDS"] = kinds
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **told})
    builds = ASAN / NATIVE.relative_to(ROOT / "src")
    if done.returncode or not (builds / "_probe.so").exists():
        say("AddressSanitizer: the build failed")
        return 1
    options = "detect_leaks=0:allocator_may_return_null=1"
    preload = " ".join(map(str, runtimes))
    # --capture=sys: a report must reach the terminal, though the process that wrote it is gone
    return pytest(
        ["--capture=sys", *SANITIZED],
        LD_PRELOAD=preload,
        ASAN_OPTIONS=options,
        LONGDRAFT_TEST_BUILDS=str(builds),
    )


if __name__ == "__main__":
    sys.exit({"haswell": haswell, "asan": asan}[sys.argv[1]]())
