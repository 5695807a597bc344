"""A build is used where it can run and has this interface; otherwise the reason is one line."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longdraft.cli import main
from longdraft.errors import InputError
from longdraft.ops import native
from longdraft.ops.native.interface import Interface

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)
FLAGS = Path("/proc/cpuinfo")
ASKED = {
    "_avx2": {"avx2", "fma"},
    "_avxvnni": {"avx2", "fma", "avx_vnni"},
    "_avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "_avx512vnni": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"},
    "_avx512bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni"},
    "_amx": {"avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16"},
}


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch):
    """Clears what is cached about builds, before and after each test."""
    caches = (native._library, native.opened)
    monkeypatch.delenv("LONGDRAFT_NATIVE", raising=False)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


@pytest.mark.skipif(not FLAGS.exists(), reason="not on Linux")
@pytest.mark.parametrize("kind", ASKED)
def test_the_probe_agrees_with_the_system(kind, monkeypatch):
    """Under an emulator, /proc shows another processor than the one that programs see."""
    flags = set(
        re.findall(
            r"\w+", next((x for x in FLAGS.read_text().splitlines() if x.startswith("flags")), "")
        )
    )
    monkeypatch.delenv("LONGDRAFT_CPU", raising=False)
    if os.environ.get("LONGDRAFT_EMULATED"):
        assert native.runs(kind) == (kind == "_avx2")
    else:
        assert native.runs(kind) == (ASKED[kind] <= flags)


def test_any_processor_can_run_the_probe():
    """It was compiled without the flags of the builds."""
    probe = native._probe()
    assert probe is not None and "_probe" not in native.NEEDS
    assert probe.longdraft_runs(b"_neon") == 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("saved", "lacks"), [("0x2", 2), ("~0", 0)])
def test_the_probe_says_whether_the_system_is_to_blame(saved, lacks, tmp_path, monkeypatch):
    """Here the system saves SSE's registers alone, or all: what the processor offers is lacking or
    not.
    """
    monkeypatch.delenv("LONGDRAFT_CPU", raising=False)  # the probe knows nothing of that mask
    code = (
        (SOURCES / "probe.cpp")
        .read_text()
        .replace("static_cast<uint64_t>(high) << 32 | low;", f"uint64_t({saved});")
    )
    assert saved in code
    (tmp_path / "probe.cpp").write_text(code)
    words = [
        "g++",
        "-shared",
        "-fPIC",
        "-o",
        str(tmp_path / "probe.so"),
        str(tmp_path / "probe.cpp"),
    ]
    subprocess.run(words, check=True)
    probe = ctypes.CDLL(str(tmp_path / "probe.so"))
    for kind in ("_avx2", "_avx512"):
        assert probe.longdraft_lacks(kind.encode()) == (lacks if native.runs(kind) else 1)


def test_a_smaller_processor_gets_the_smaller_build(monkeypatch):
    monkeypatch.setenv("LONGDRAFT_CPU", "haswell")
    assert native.library() is native.opened("_avx2")[0] is not None
    assert (
        native.opened("_avx512")[0] is None
        and "does not offer AVX-512" in native.opened("_avx512")[1]
    )


def test_torchs_setting_chooses_no_build(monkeypatch):
    """ATEN_CPU_CAPABILITY chooses torch's kernels; LONGDRAFT_NATIVE chooses these."""
    best = native.library()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    native._library.cache_clear()
    assert native.library() is best


@pytest.mark.parametrize("kind", list(native.NEEDS))
def test_a_build_that_the_processor_lacks_is_never_loaded(kind, monkeypatch):
    """It is not even opened, because opening a library may run code."""
    monkeypatch.setattr(native, "runs", lambda kind: False)
    monkeypatch.setattr(native.ctypes, "CDLL", lambda path: pytest.fail(f"{path} was opened"))
    assert native.opened(kind)[0] is None and native.opened(kind)[1]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("avx512", "does not offer AVX-512"),
        ("amx", "does not offer AMX"),
        ("avx1024", "choose amx, avx512bf16, avx512vnni, avx512, avxvnni, avx2"),
    ],
)
def test_a_build_that_cannot_run_is_an_error(choice, names, monkeypatch, capsys):
    monkeypatch.setenv("LONGDRAFT_CPU", "haswell")
    monkeypatch.setenv("LONGDRAFT_NATIVE", choice)
    with pytest.raises(InputError, match=names):
        native.library()
    assert main(["generate", "hi", "--max-new-tokens", "2"]) == 2
    out, err = capsys.readouterr()
    assert (
        out == ""
        and len(err.splitlines()) == 1
        and err.startswith("longdraft: LONGDRAFT_NATIVE is ")
    )


@pytest.mark.full
@pytest.mark.parametrize("choice", [pytest.param("avx512", marks=pytest.mark.weekly), "avx1024"])
@pytest.mark.weekly
def test_the_command_line_reports_it_in_one_line(choice):
    """In a process of its own, which an illegal instruction would end."""
    environment = {**os.environ, "LONGDRAFT_NATIVE": choice, "LONGDRAFT_CPU": "haswell"}
    words = [sys.executable, "-m", "longdraft", "generate", "hi", "--max-new-tokens", "2"]
    found = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert found.returncode == 2 and found.stdout == ""
    said = [line for line in found.stderr.splitlines() if not line.startswith("qemu")]
    assert len(said) == 1 and said[0].startswith("longdraft: LONGDRAFT_NATIVE is ")


def test_a_missing_build_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("LONGDRAFT_NATIVE", "avx2")
    with pytest.raises(InputError, match="not in this installation"):
        native.library()


# What may differ in another version of interface.h.
CHANGES = {
    "a field more": ("int64_t ring;", "int64_t ring, more;"),
    "a field less": ("    int64_t window;", ""),
    "a field of another type": ("double temperature;", "int64_t temperature;"),
    "a field by another name": ("int64_t reach;", "int64_t limit;"),
    "two fields of one type swapped": ("int64_t count, stride;", "int64_t stride, count;"),
    "another order of codes": ("    BAD_MODEL,\n    BAD_NODES,", "    BAD_NODES,\n    BAD_MODEL,"),
    "a kind of layer less": ("DECODER, RING, CROSS", "DECODER, CROSS"),
    "an argument more": ("Work* work, int half);", "Work* work, int half, int more);"),
    "an argument of another type": ("float share", "double share"),
    "another result": ("int64_t longdraft_read", "int longdraft_read"),
    "a function more": ("Work* longdraft_new();", "Work* longdraft_new();\nvoid longdraft_more();"),
}
SOURCES = Path(native.__file__).parent
HEADER = (SOURCES / "interface.h").read_text()


def changed(what: str) -> str:
    old, new = CHANGES[what]
    assert HEADER.count(old) >= 1
    return HEADER.replace(old, new)


@pytest.mark.parametrize("what", CHANGES)
def test_a_build_of_another_interface_is_refused(what, monkeypatch):
    """Here the header is the newer of the two."""
    monkeypatch.setattr(native, "INTERFACE", Interface(changed(what)))
    assert (
        native.opened("_avx2")[0] is None and "made from other sources" in native.opened("_avx2")[1]
    )
    assert "\n" not in native.opened("_avx2")[1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "what", ["two fields of one type swapped", "a field more", "an argument of another type"]
)
def test_the_compilers_view_is_what_is_compared(what, tmp_path, monkeypatch):
    """Here the build is the newer one: its table is compiled from a changed header."""
    (tmp_path / "layout.cpp").write_text((SOURCES / "layout.cpp").read_text())

    def built(header: str, name: str) -> ctypes.CDLL:
        (tmp_path / "interface.h").write_text(header)
        (tmp_path / "layout.inc").write_text(Interface(header).rows())
        words = [
            "g++",
            "-std=c++17",
            "-shared",
            "-fPIC",
            "-o",
            str(tmp_path / name),
            str(tmp_path / "layout.cpp"),
        ]
        subprocess.run(words, check=True)
        return ctypes.CDLL(str(tmp_path / name))

    missing = "it differs in longdraft_new"  # the first function, none of which layout.cpp contains
    assert native.INTERFACE.difference(built(HEADER, "same.so")) == missing
    assert native.INTERFACE.difference(built(changed(what), "_avx2.so")) not in ("", missing)
    for probe in native.FOLDER.glob("_probe.so"):
        (tmp_path / probe.name).write_bytes(probe.read_bytes())
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    assert (
        native.opened("_avx2")[0] is None and "made from other sources" in native.opened("_avx2")[1]
    )


def test_a_build_that_does_not_describe_itself_is_refused():
    """As in versions without such a table."""
    assert "does not describe" in native.INTERFACE.difference(ctypes.CDLL(None))


@pytest.mark.parametrize(
    "text",
    [
        "struct S { int64_t* a, b; };",
        "struct S { int64_t a[4]; };",
        "struct S { unsigned a; };",
        "struct S { int64_t a = 3; };",
        "struct S { Unknown* a; };",
        "struct S { int64_t*** a; };",
        "struct S { struct { int64_t a; } b; };",
        "enum E { A, B };",
        "enum E : int { A = 3, B };",
        "enum E : int { A, B, };",
        "int64_t f(int64_t);",
        "int64_t f(int64_t a, ...);",
        "static int64_t f(int64_t a);",
        "int64_t f(int64_t a) { return a; }",
        "template <typename T> T f(T a);",
        "#define X 3",
        "#include <vector>",
        "/* a */ struct S;",
        "using S = int64_t;",
        "int64_t x;",
        "struct S { int64_t a; }; int",
    ],
)
def test_what_the_reader_does_not_understand_is_an_error(text):
    with pytest.raises(ValueError, match="not understood"):
        Interface(text)


def test_every_code_has_a_message():
    assert set(native.WRONG) == {code.name for code in native.Code} - {"DONE", "NO_MEMORY"}


@pytest.mark.usefixtures("build")
def test_the_summary_counts_builds(request):
    import conftest

    assert conftest.RAN[request.node.callspec.params["build"]] >= 1
