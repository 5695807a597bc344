"""`longdraft doctor`: what it prints where all is well, and what it says of each planted fault."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longdraft.cli import doctor as command
from longdraft.cli import main
from longdraft.doctor import cache, examine, gpu, installed, kernels, machine, threads
from longdraft.doctor.part import Part, Problem
from longdraft.errors import InputError
from longdraft.host import installation, limits, memory, processor
from longdraft.host.processor import Topology
from longdraft.ops import bandwidth, native
from longdraft.ops.native import self_check
from longdraft.ops.triton import self_check as triton_check
from longdraft.tuning import kept

with pytest.MonkeyPatch.context() as environment:  # the tests may run as on a smaller processor, which `calm` ends
    environment.delenv("LONGDRAFT_CPU", raising=False)
    native.opened.cache_clear()
    BUILDS = [kind[1:] for kind in native.NEEDS if native.opened(kind)[0] is not None]
    native.opened.cache_clear()
PROBLEMS = threads.problems
with_kernels = pytest.mark.skipif(not BUILDS, reason="the package was built without a C++ compiler")


@pytest.fixture(autouse=True)
def calm(monkeypatch, tmp_path):
    """An installation without any problem but those that a test plants; no memory is read."""
    caches = (native._library, native.opened)
    for name in ("LONGDRAFT_NATIVE", "LONGDRAFT_CPU", "LONGDRAFT_TRITON", machine.THP):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bandwidth, "bandwidth", lambda size: 40.0)
    monkeypatch.setattr(limits, "processors", lambda: None)
    monkeypatch.setattr(memory, "available", lambda: 8_000_000_000)
    monkeypatch.setattr(threads, "problems", lambda *_: [])
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "driver", lambda: None)
    monkeypatch.setattr(installation, "bounds", dict)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


@pytest.fixture
def run(capsys, monkeypatch):
    """run() -> (status, the lines of standard output)."""
    monkeypatch.setenv("COLUMNS", "80")

    def call() -> tuple[int, list[str]]:
        status = main(["doctor"])
        out, err = capsys.readouterr()
        assert err == ""
        return status, out.splitlines()

    return call


def said(lines: list[str]) -> str:
    """The lines without the places where they were broken."""
    return " ".join(" ".join(lines).split())


# The screen -----------------------------------------------------------------------------------------------------------


@with_kernels
def test_all_is_well(run):
    status, lines = run()
    assert status == 0 and lines[-1] == "All is well."
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [name for name in examine.PARTS if not any(line.startswith(name) for line in lines)] == []
    assert f"ok: {BUILDS[0]} computes" in said(lines) and "read at 40 GB/s" in said(lines)


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
    problems = [Problem("a word " * 40, "another word " * 40, fails=True)]
    lines = list(command.lines("huge pages", Part(["long " * 40, "  indented " * 20], {}, problems), width))
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("huge pages  long") and sum("what to do: " in line for line in lines) == 1
    assert list(command.lines("GPU", Part([""]), 80)) == ["GPU"]


def test_the_verdict_counts():
    assert command.verdict(0, 0) == "All is well."
    assert command.verdict(2, 1) == "2 failed checks and 1 note: see above."


# Kernels --------------------------------------------------------------------------------------------------------------


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
    assert "something else than the reference FAILED: attention weights of float32 differ by" in said(lines)
    assert f"what to do: set LONGDRAFT_NATIVE=0 to decode without {BUILDS[0]}" in said(lines)


@pytest.mark.skipif(len(BUILDS) < 2, reason="only one build can run here")
def test_a_build_that_is_turned_off(run, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_NATIVE", BUILDS[-1])
    status, lines = run()
    assert status == 0 and "LONGDRAFT_NATIVE turns better builds off what to do: unset LONGDRAFT_NATIVE" in said(lines)
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
    assert "what to do: choose amx, avx512bf16" in said(lines) and lines[-1] == "1 failed check: see above."


@pytest.mark.skipif("avx512" not in BUILDS, reason="a processor without AVX-512")
def test_a_processor_that_is_hidden(run, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_CPU", "haswell")
    status, lines = run()
    assert status == 0 and "what to do: unset LONGDRAFT_CPU" in said(lines)
    assert "avx512 LONGDRAFT_CPU is haswell, which does not offer AVX-512" in said(lines)


@pytest.mark.parametrize(
    ("platform", "do"), [("linux", "install g++"), ("darwin", "xcode-select"), ("win32", "not built on Windows")]
)
def test_an_installation_without_kernels(platform, do, run, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(kernels, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(kernels.platform, "machine", lambda: "x86_64")
    status, lines = run()
    assert status == 0 and lines[-1] == "1 note: see above."
    assert "(the eager backend)" in said(lines) and do in said(lines)


def test_a_processor_without_kernels(run, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(kernels.platform, "machine", lambda: "riscv64")
    assert "there are no kernels for riscv64" in said(run()[1])


@with_kernels
def test_a_build_that_was_not_compiled(run, monkeypatch, tmp_path):
    for file in native.FOLDER.glob("_*.so"):
        if not file.name.startswith(f"_{BUILDS[0]}."):
            (tmp_path / file.name).symlink_to(file)
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    status, lines = run()
    assert status == 0 and f"not compiled, but could run: {BUILDS[0]} what to do: install " in said(lines)


@with_kernels
def test_a_build_of_another_version_fails(run, monkeypatch):
    monkeypatch.setattr(native, "INTERFACE", SimpleNamespace(difference=lambda lib: "it differs in Model"))
    status, lines = run()
    assert status == 1 and "compiled for another version" in said(lines) and "made from other sources" in said(lines)


@with_kernels
@pytest.mark.parametrize(
    ("lacks", "who"), [(1, "this processor does not"), (2, "the operating system does not"), (0, "this processor or")]
)
def test_who_does_not_offer_it(lacks, who, run, monkeypatch):
    monkeypatch.setattr(native, "runs", lambda kind: False)
    monkeypatch.setattr(native, "_probe", lambda: SimpleNamespace(longdraft_lacks=lambda kind: lacks))
    assert f"{BUILDS[0]} {who}" in said(run()[1])


@with_kernels
def test_the_probe_says_what_is_lacking():
    probe = native._probe()
    if not hasattr(probe, "longdraft_lacks"):
        pytest.skip("the probe of an earlier version")
    for kind in native.NEEDS:
        assert (probe.longdraft_lacks(kind.encode()) == 0) == bool(probe.longdraft_runs(kind.encode()))


# Threads and memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("running", "found", "limit", "do"),
    [
        (4, Topology(2, 2, 1), None, "OMP_NUM_THREADS=2"),
        (4, Topology(8, 4, 1), 1.5, "OMP_NUM_THREADS=2"),
        (2, Topology(8, 4, 1), 0.5, "OMP_NUM_THREADS=1"),
        (1, Topology(8, 4, 1), None, "--threads 4"),
        (4, Topology(8, 4, 1), None, None),
        (8, Topology(8, 4, 1), None, None),
        (2, Topology(8, 4, 1), 1.5, None),
        (2, Topology(2, None, None), None, None),
    ],
)
def test_threads_and_processors(running, found, limit, do):
    problems = PROBLEMS(running, found, limit)
    assert len(problems) == (do is not None) and all(do in problem.do for problem in problems)


def test_too_many_threads_are_reported(run, monkeypatch):
    monkeypatch.setattr(threads, "problems", PROBLEMS)
    monkeypatch.setattr(threads.torch, "get_num_threads", lambda: 9)
    monkeypatch.setattr(processor, "topology", lambda which=None: Topology(2, 2, 1))
    status, lines = run()
    assert status == 0 and "9 on 2 allowed processors (2 cores)" in said(lines)
    assert "9 threads share 2 processors, so they wait for each other what to do: set OMP_NUM_THREADS=2" in said(lines)


def test_limits_are_shown(run, monkeypatch):
    monkeypatch.setattr(limits, "processors", lambda: 1.5)
    monkeypatch.setattr(limits, "memory", lambda: 2_000_000_000)
    monkeypatch.setattr(memory, "total", lambda: 8_000_000_000)
    lines = run()[1]
    assert "time of 1.5 processors by a control group" in said(lines)
    assert "8.0 GB" in said(lines) and "limited to 2.0 GB" in said(lines)


@pytest.mark.parametrize(
    ("mode", "asked", "words", "wrong"),
    [
        ("always", False, "always", False),
        ("madvise", False, "unused unless", False),
        ("madvise", True, "torch asks for them", False),
        ("never", True, "never", True),
        (None, False, "none on this system", False),
    ],
)
def test_huge_pages(mode, asked, words, wrong, monkeypatch):
    monkeypatch.setattr(memory, "huge_pages", lambda: mode)
    if asked:
        monkeypatch.setenv(machine.THP, "1")
    part = machine.huge_pages()
    assert words in part.lines[0] and len(part.problems) == wrong


def test_a_system_that_says_nothing(run, monkeypatch):
    """As on Windows: no /proc, no /sys, no affinities."""
    for module in (processor, limits, memory):
        monkeypatch.setattr(module, "text", lambda file: "", raising=True)
    for module in (processor, limits):
        monkeypatch.setattr(module, "number", lambda file: None)
    for name in ("sched_getaffinity", "sysconf"):
        monkeypatch.delattr(os, name, raising=False)
    status, lines = run()
    assert status == 0 and "unknown size" in said(lines) and "none on this system" in said(lines)
    assert "not pinned" in said(lines)


# The GPU --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def card(monkeypatch):
    """A GPU, as torch describes one."""
    made = SimpleNamespace(name="Some GPU", total_memory=80_000_000_000, major=9, minor=0)
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpu.torch.cuda, "get_device_properties", lambda n: made)
    monkeypatch.setattr(gpu, "driver", lambda: "580.1")
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())


def refuse() -> None:
    warnings.warn("Triton kernels are not used on this device: attention differs", stacklevel=2)


@pytest.mark.parametrize(
    ("check", "words", "status"), [(lambda: 1, "kernels: ok", 0), (refuse, "FAILED: Triton kernels are not used", 1)]
)
def test_kernels_of_a_gpu(check, words, status, card, run, monkeypatch):
    monkeypatch.setattr(triton_check, "kernels", check)
    monkeypatch.setattr(triton_check, "scans", lambda: 1)
    found, lines = run()
    assert found == status and words in said(lines)
    assert "Some GPU (and 1 more), 80.0 GB, capability 9.0, driver 580.1" in said(lines)


def test_triton_that_is_missing_or_turned_off(card, monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert gpu.gpu().problems[0].do == "pip install 'longdraft[gpu]'"
    monkeypatch.setenv("LONGDRAFT_TRITON", "0")
    assert gpu.gpu().problems[0].do == "unset LONGDRAFT_TRITON"


def test_a_driver_that_torch_cannot_use(run, monkeypatch):
    monkeypatch.setattr(gpu, "driver", lambda: "580.1")
    status, lines = run()
    assert status == 0 and f"but torch {torch.__version__} cannot use a GPU" in said(lines)


# Packages and the cache -----------------------------------------------------------------------------------------------


def test_versions_outside_the_bounds(monkeypatch):
    monkeypatch.setattr(installation, "bounds", lambda: {"torch": ">=99", "numpy": ">=1"})
    assert [(p.do, p.fails) for p in installed.versions().problems] == [("pip install 'torch>=99'", False)]


def test_a_missing_package_fails(run, monkeypatch):
    version = installation.version
    monkeypatch.setattr(installation, "version", lambda name: None if name == "tokenizers" else version(name))
    status, lines = run()
    assert status == 1 and "tokenizers is not installed what to do: pip install 'tokenizers'" in said(lines)


def test_a_folder_that_cannot_be_written_fails(run, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "file" / "x"))
    status, lines = run()
    assert status == 1 and "what to do: set LONGDRAFT_CACHE to a folder that can be written" in said(lines)


def test_the_cache_is_described_and_left_as_it_was(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    part = cache.cache()
    assert not folder.exists() and part.facts["writable"] and part.lines[0].endswith("0 MB: no models")
    name, model = next(iter(cache.fetch.SOURCES.items()))
    (folder / name).mkdir(parents=True)
    with (folder / name / model.file).open("wb") as file:
        file.truncate(model.size)
    part = cache.cache()
    assert part.facts["models"] == [name] and part.lines[0].endswith(f"{model.size / 1e6:.0f} MB: {name}")


def test_measured_costs_of_this_build():
    assert "longdraft tune" in cache.costs().lines[0]
    lib = native.library()
    ours = {"machine": kept.machine_name(), "kernels": None if lib is None else native.name_of(lib)}
    ours |= {"threads": torch.get_num_threads(), "version": cache.__version__}
    kept.folder().mkdir(parents=True)
    for name, content in (
        ("a", {"fingerprint": ours | {"model": "x"}}),
        ("b", {"fingerprint": ours | {"threads": 99}}),
        ("c", {"fingerprint": 3}),
        ("d", []),
    ):
        (kept.folder() / f"{name}.json").write_text(json.dumps(content))
    (kept.folder() / "e.json").write_text("[" * 100_000)
    (kept.folder() / "f.json").write_bytes(b"\xff")
    part = cache.costs()
    assert part.facts == {"these": 1, "others": 1}
    assert part.lines[0].startswith("measured for 1 model by this build (1 of other")


# Never a traceback ----------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(cache, "models", fail)
    status, lines = run()
    assert status == 1 and do in said(lines) and "not examined" in said(lines)
    assert sum("FAILED" in line for line in lines) == 1  # the same problem, met twice
    assert lines[-1] == "1 failed check: see above."


@pytest.mark.full
def test_an_installation_without_its_checkout(tmp_path):
    """In a process of its own, from a copy of the package alone; it loads no model, and Transformers is not needed."""
    copy = tmp_path / "site-packages"
    shutil.copytree(Path(native.__file__).parents[2], copy / "longdraft", ignore=shutil.ignore_patterns("assets"))
    code = (
        "import sys; from longdraft.cli import main; status = main(['doctor', '--json'])\n"
        "print(sorted({'transformers', 'longdraft.models.lm'} & sys.modules.keys()), file=sys.stderr); sys.exit(status)"
    )
    environment = {**os.environ, "PYTHONPATH": str(copy), "LONGDRAFT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert json.loads(done.stdout)["parts"]["package"]["kind"] != "checkout"
