"""A build is used where processor and system can run it; a wish that cannot be met is one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longdraft.errors import InputError
from longdraft.ops import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="the package was built without a C++ compiler")
FLAGS = Path("/proc/cpuinfo")
ASKED = {
    "_avx2": {"avx2", "fma"},
    "_avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "_amx": {"avx512f", "avx512_bf16", "amx_tile", "amx_bf16"},
}


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch):
    """What was found out about builds is forgotten before and after."""
    caches = (native._library, native._open)
    monkeypatch.delenv("LONGDRAFT_NATIVE", raising=False)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


@pytest.mark.skipif(not FLAGS.exists(), reason="not on Linux")
@pytest.mark.parametrize("kind", ASKED)
def test_the_probe_says_what_the_system_says(kind, monkeypatch):
    """An emulator shows programs another processor than /proc does, so there only what it can run is asked."""
    flags = set(re.findall(r"\w+", next((x for x in FLAGS.read_text().splitlines() if x.startswith("flags")), "")))
    monkeypatch.delenv("LONGDRAFT_CPU", raising=False)
    if os.environ.get("LONGDRAFT_EMULATED"):
        assert native.runs(kind) == (kind == "_avx2")
    else:
        assert native.runs(kind) == (ASKED[kind] <= flags)


def test_the_probe_needs_nothing_that_a_processor_may_lack():
    """It is not one of the builds that it speaks for, and none of their flags was used to compile it."""
    probe = native._probe()
    assert probe is not None and "_probe" not in native.NEEDS
    assert probe.longdraft_runs(b"_neon") == 0


def test_a_smaller_processor_gets_the_smaller_build(monkeypatch):
    monkeypatch.setenv("LONGDRAFT_CPU", "haswell")
    assert native.library() is native.opened("_avx2") is not None
    assert native.opened("_avx512") is None and "does not offer AVX-512" in native.lacking("_avx512")


def test_torchs_own_setting_is_not_ours(monkeypatch):
    """ATEN_CPU_CAPABILITY chooses torch's kernels; LONGDRAFT_NATIVE chooses these."""
    best = native.library()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    native._library.cache_clear()
    assert native.library() is best


@pytest.mark.parametrize("kind", list(native.NEEDS))
def test_a_build_that_the_processor_lacks_is_never_loaded(kind, monkeypatch):
    """Not even opened: code may run when a library is."""
    monkeypatch.setattr(native, "runs", lambda kind: False)
    monkeypatch.setattr(native.ctypes, "CDLL", lambda path: pytest.fail(f"{path} was opened"))
    assert native.opened(kind) is None and native.lacking(kind)


@pytest.mark.parametrize(
    ("wish", "names"),
    [("avx512", "does not offer AVX-512"), ("amx", "does not offer AMX"), ("avx1024", "choose amx, avx512, avx2")],
)
def test_a_wish_that_cannot_be_met_is_one_line(wish, names, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_CPU", "haswell")
    monkeypatch.setenv("LONGDRAFT_NATIVE", wish)
    with pytest.raises(InputError, match=names):
        native.library()


@pytest.mark.parametrize("wish", ["avx512", pytest.param("avx1024", marks=pytest.mark.full)])
def test_the_command_line_says_so_and_exits_with_2(wish):
    """In a process of its own: the old code died of an illegal instruction."""
    environment = {**os.environ, "LONGDRAFT_NATIVE": wish, "LONGDRAFT_CPU": "haswell"}
    words = [sys.executable, "-m", "longdraft", "generate", "hi", "--max-new-tokens", "2"]
    found = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert found.returncode == 2 and found.stdout == ""
    said = [line for line in found.stderr.splitlines() if not line.startswith("qemu")]
    assert len(said) == 1 and said[0].startswith("longdraft: LONGDRAFT_NATIVE is ")


def test_a_build_that_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("LONGDRAFT_NATIVE", "avx2")
    with pytest.raises(InputError, match="not in this installation"):
        native.library()


def test_every_structure_is_compared(monkeypatch):
    """A field more in any of them, and the build is of other sources."""
    for name in ("Linear", "Layer", "Model", "Selected", "Pass", "Copy", "Chain"):
        kind = getattr(native, name)
        longer = type(name, (native.ctypes.Structure,), {"_fields_": [("all", kind), ("more", native.ctypes.c_int64)]})
        with monkeypatch.context() as patched:
            patched.setattr(native, name, longer)
            native._open.cache_clear()
            assert native.opened("_avx2") is None and "other sources" in native.lacking("_avx2"), name


@pytest.mark.usefixtures("build")
def test_the_summary_counts_builds(request):
    import conftest

    assert conftest.RAN[request.node.callspec.params["build"]] >= 1
