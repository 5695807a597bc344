"""`longdraft doctor`: threads, memory, the GPU, packages and the cache."""

from __future__ import annotations

import json
import os
import warnings
from types import SimpleNamespace

import pytest
import torch
from support import examined
from support.examined import said

from longdraft.doctor import cache_folder, gpu, installed, machine, thread_count
from longdraft.host import installation, limits, memory, processor
from longdraft.host.processor import Topology
from longdraft.ops import native
from longdraft.ops.triton import self_check as triton_check
from longdraft.tuning import kept

PROBLEMS = thread_count.problems
calm = pytest.fixture(autouse=True)(examined.calm)
run = pytest.fixture(examined.run)


# Threads and memory -------------------------------------------------------------------------------


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
    monkeypatch.setattr(thread_count, "problems", PROBLEMS)
    monkeypatch.setattr(thread_count.torch, "get_num_threads", lambda: 9)
    monkeypatch.setattr(processor, "topology", lambda which=None: Topology(2, 2, 1))
    status, lines = run()
    assert status == 0 and "9 on 2 allowed processors (2 cores)" in said(lines)
    assert (
        "9 threads share 2 processors, so they wait for each other what to do: set "
        "OMP_NUM_THREADS=2" in said(lines)
    )


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


# The GPU ------------------------------------------------------------------------------------------


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
    ("check", "words", "status"),
    [(lambda: 1, "kernels: ok", 0), (refuse, "FAILED: Triton kernels are not used", 1)],
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


# Packages and the cache ---------------------------------------------------------------------------


def test_versions_outside_the_bounds(monkeypatch):
    monkeypatch.setattr(installation, "bounds", lambda: {"torch": ">=99", "numpy": ">=1"})
    assert [(p.do, p.fails) for p in installed.versions().problems] == [
        ("pip install 'torch>=99'", False)
    ]


def test_a_missing_package_fails(run, monkeypatch):
    version = installation.version
    monkeypatch.setattr(
        installation, "version", lambda name: None if name == "tokenizers" else version(name)
    )
    status, lines = run()
    assert (
        status == 1
        and "tokenizers is not installed what to do: pip install 'tokenizers'" in said(lines)
    )


def test_a_folder_that_cannot_be_written_fails(run, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "file" / "x"))
    status, lines = run()
    assert (
        status == 1
        and "what to do: set LONGDRAFT_CACHE to a folder that can be written" in said(lines)
    )


def test_the_cache_is_described_and_left_as_it_was(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    part = cache_folder.cache()
    assert (
        not folder.exists() and part.facts["writable"] and part.lines[0].endswith("0 MB: no models")
    )
    name, model = next(iter(cache_folder.fetch.SOURCES.items()))
    (folder / name).mkdir(parents=True)
    with (folder / name / model.file).open("wb") as file:
        file.truncate(model.size)
    part = cache_folder.cache()
    assert part.facts["models"] == [name] and part.lines[0].endswith(
        f"{model.size / 1e6:.0f} MB: {name}"
    )


def test_measured_costs_of_this_build():
    assert "longdraft tune" in cache_folder.costs().lines[0]
    lib = native.library()
    ours = {"machine": kept.machine_name(), "kernels": None if lib is None else native.name_of(lib)}
    ours |= {"threads": torch.get_num_threads(), "version": cache_folder.__version__}
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
    part = cache_folder.costs()
    assert part.facts == {"these": 1, "others": 1}
    assert part.lines[0].startswith("measured for 1 model by this build (1 of other")
