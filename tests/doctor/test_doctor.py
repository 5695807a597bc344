"""`longdraft doctor`: what it prints where all is well, and what it says of each planted fault."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import examined
from support.examined import said

from longdraft.cli import doctor as command
from longdraft.cli import main
from longdraft.doctor import cache_folder, examine, native_builds
from longdraft.doctor.part import Finding, PartReport
from longdraft.errors import InputError
from longdraft.ops import native
from longdraft.ops.native import self_check

with (
    pytest.MonkeyPatch.context() as environment
):  # the tests may run as on a smaller processor, which `calm` ends
    environment.delenv("LONGDRAFT_CPU", raising=False)
    native.opened.cache_clear()
    BUILDS = [kind[1:] for kind in native.NEEDS if native.opened(kind)[0] is not None]
    native.opened.cache_clear()
with_kernels = pytest.mark.skipif(not BUILDS, reason="the package was built without a C++ compiler")
calm = pytest.fixture(autouse=True)(examined.calm)
run = pytest.fixture(examined.run)


# The screen ---------------------------------------------------------------------------------------


@with_kernels
def test_all_is_well(run):
    status, lines = run()
    assert status == 0 and lines[-1] == "All is well."
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [
        name for name in examine.PARTS if not any(line.startswith(name) for line in lines)
    ] == []
    assert f"ok: {BUILDS[0]} computes" in said(lines) and "read at 40 GB/s" in said(lines)


@pytest.mark.full
def test_json_has_the_same(run, capsys):
    status, lines = run()
    assert main(["doctor", "--json"]) == status
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] == (status == 0) and list(printed["parts"]) == list(examine.PARTS)
    for part in printed["parts"].values():
        assert all(said([line]) in said(lines) for line in part["text"])
        assert all(problem["do"] in said(lines) for problem in part["problems"])
    assert printed["parts"]["kernels"]["used"] == (BUILDS[0] if BUILDS else None)
    assert printed["parts"]["memory"]["bandwidth_gb_s"] == 40.0


@pytest.mark.parametrize("width", [60, 80, 100])
def test_lines_fit(width):
    problems = [Finding("a word " * 40, "another word " * 40, fails=True)]
    lines = list(
        command.lines(
            "huge pages", PartReport(["long " * 40, "  indented " * 20], {}, problems), width
        )
    )
    assert max(map(len, lines)) <= width
    assert (
        lines[0].startswith("huge pages  long")
        and sum("what to do: " in line for line in lines) == 1
    )
    assert list(command.lines("GPU", PartReport([""]), 80)) == ["GPU"]


def test_the_verdict_counts():
    assert command.verdict(0, 0) == "All is well."
    assert command.verdict(2, 1) == "2 failed checks and 1 note: see above."


# Kernels ------------------------------------------------------------------------------------------


class Crooked:
    """A build whose attention has another scale."""

    def __init__(self, lib):
        self._lib = lib

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def longdraft_step(self, model, p, work, half):
        model.scale *= 1.1
        return self._lib.longdraft_step(model, p, work, half)


@with_kernels
def test_a_broken_kernel_fails(run, monkeypatch):
    lib = native.library()
    monkeypatch.setattr(native, "library", lambda: Crooked(lib))
    status, lines = run()
    assert status == 1 and lines[-1] == "1 failed check: see above."
    assert (
        "something else than the reference FAILED: attention weights of float32 differ by"
        in said(lines)
    )
    assert f"what to do: set LONGDRAFT_NATIVE=0 to decode without {BUILDS[0]}" in said(lines)


@pytest.mark.skipif(len(BUILDS) < 2, reason="only one build can run here")
def test_a_build_that_is_turned_off(run, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_NATIVE", BUILDS[-1])
    status, lines = run()
    assert (
        status == 0
        and "LONGDRAFT_NATIVE turns better builds off what to do: unset LONGDRAFT_NATIVE"
        in said(lines)
    )
    assert f"{BUILDS[0]} turned off by LONGDRAFT_NATIVE={BUILDS[-1]}" in said(lines)
    assert f"{BUILDS[-1]} in use" in said(lines)


@with_kernels
def test_kernels_that_are_turned_off(run, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_NATIVE", "0")
    status, lines = run()
    assert status == 0 and "kernels none: torch computes everything" in said(lines)
    assert "nothing to check" in said(lines) and "unset LONGDRAFT_NATIVE" in said(lines)


def test_a_build_that_does_not_exist_is_one_problem(run, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_NATIVE", "avx1024")
    status, lines = run()
    assert status == 1 and said(lines).count("LONGDRAFT_NATIVE is 'avx1024'") == 1
    assert (
        "what to do: choose amx, avx512bf16" in said(lines)
        and lines[-1] == "1 failed check: see above."
    )


@pytest.mark.skipif("avx512" not in BUILDS, reason="a processor without AVX-512")
def test_a_processor_that_is_hidden(run, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_CPU", "haswell")
    status, lines = run()
    assert status == 0 and "what to do: unset LONGDRAFT_CPU" in said(lines)
    assert "avx512 LONGDRAFT_CPU is haswell, which does not offer AVX-512" in said(lines)


@pytest.mark.parametrize(
    ("platform", "do"),
    [("linux", "install g++"), ("darwin", "xcode-select"), ("win32", "not built on Windows")],
)
def test_an_installation_without_kernels(platform, do, run, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native_builds, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(native_builds.platform, "machine", lambda: "x86_64")
    status, lines = run()
    assert status == 0 and lines[-1] == "1 note: see above."
    assert "(the eager backend)" in said(lines) and do in said(lines)


def test_a_processor_without_kernels(run, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native_builds.platform, "machine", lambda: "riscv64")
    assert "there are no kernels for riscv64" in said(run()[1])


@with_kernels
def test_a_build_that_was_not_compiled(run, monkeypatch, tmp_path):
    for file in native.FOLDER.glob("_*.so"):
        if not file.name.startswith(f"_{BUILDS[0]}."):
            (tmp_path / file.name).symlink_to(file)
    other = "_avx512.so" if BUILDS[0] != "avx512" else "_avx2.so"
    if not (tmp_path / other).exists():  # else there would be no build at all
        (tmp_path / other).touch()
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    status, lines = run()
    assert status == 0 and f"not compiled, but could run: {BUILDS[0]} what to do: install " in said(
        lines
    )


@with_kernels
def test_a_build_of_another_version_fails(run, monkeypatch):
    monkeypatch.setattr(
        native, "INTERFACE", SimpleNamespace(difference=lambda lib: "it differs in Model")
    )
    status, lines = run()
    assert (
        status == 1
        and "compiled for another version" in said(lines)
        and "made from other sources" in said(lines)
    )


@with_kernels
@pytest.mark.parametrize(
    ("lacks", "who"),
    [
        (1, "this processor does not"),
        (2, "the operating system does not"),
        (0, "this processor or"),
    ],
)
def test_who_does_not_offer_it(lacks, who, run, monkeypatch):
    monkeypatch.setattr(native, "runs", lambda kind: False)
    monkeypatch.setattr(
        native, "_probe", lambda: SimpleNamespace(longdraft_lacks=lambda kind: lacks)
    )
    assert f"{BUILDS[0]} {who}" in said(run()[1])


@with_kernels
def test_the_probe_says_what_is_lacking():
    probe = native._probe()
    if not hasattr(probe, "longdraft_lacks"):
        pytest.skip("the probe of an earlier version")
    for kind in native.NEEDS:
        assert (probe.longdraft_lacks(kind.encode()) == 0) == bool(
            probe.longdraft_runs(kind.encode())
        )


# Never a traceback --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "do"),
    [
        (ImportError("No module named 'torch'"), "what to do: install longdraft again"),
        (InputError("X is 3: choose 4"), "X is 3 what to do: choose 4"),
        (ZeroDivisionError("a\nb"), "ZeroDivisionError: a b what to do: report this"),
    ],
)
def test_a_part_that_cannot_be_examined_says_so(error, do, run, monkeypatch):
    def fail() -> None:
        raise error

    monkeypatch.setattr(self_check, "fault", lambda lib: fail())
    monkeypatch.setattr(cache_folder, "models", fail)
    status, lines = run()
    assert status == 1 and do in said(lines) and "not examined" in said(lines)
    assert sum("FAILED" in line for line in lines) == 1  # the same problem, met twice
    assert lines[-1] == "1 failed check: see above."


@pytest.mark.full
def test_an_installation_without_its_checkout(tmp_path):
    """In a process of its own, from a copy of the package alone; it loads no model, and
    Transformers is not needed.
    """
    copy = tmp_path / "site-packages"
    shutil.copytree(
        Path(native.__file__).parents[2],
        copy / "longdraft",
        ignore=shutil.ignore_patterns("assets"),
    )
    code = (
        "import sys; from longdraft.cli import main; status = main(['doctor', '--json'])\n"
        "print(sorted({'transformers', 'longdraft.models.lm'} & sys.modules.keys()), "
        "file=sys.stderr); sys.exit(status)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "LONGDRAFT_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert json.loads(done.stdout)["parts"]["package"]["kind"] != "checkout"
