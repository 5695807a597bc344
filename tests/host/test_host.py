"""What is read of a machine and an installation: made up here as files below a folder, and absent
on other systems.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from longdraft.host import environment, installation, limits, memory, processor
from longdraft.host.processor import Topology

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def machine(tmp_path):
    """machine({file: text}) -> a root folder with these files."""

    def make(files: dict[str, str]) -> Path:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return tmp_path

    return make


def place(number: int, socket: int, core: int) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{number}/topology"
    return {f"{folder}/physical_package_id": f"{socket}\n", f"{folder}/core_id": f"{core}\n"}


# The processor ------------------------------------------------------------------------------------


def test_hyperthreads_share_a_core(machine):
    places = [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 0, 0), (4, 0, 1), (5, 1, 0)]
    root = machine({name: text for each in places for name, text in place(*each).items()})
    assert processor.topology(root=root) == Topology(6, 3, 2)
    assert processor.topology([0, 3], root) == Topology(2, 1, 1)
    assert processor.topology([0, 2], root) == Topology(2, 2, 2)


def test_a_system_that_says_nothing(tmp_path, monkeypatch):
    """As on macOS and Windows."""
    monkeypatch.setattr(processor.platform, "processor", lambda: "")
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    assert processor.topology([0, 1], tmp_path) == Topology(2, None, None)
    assert processor.name(tmp_path) == "riscv64" and processor.fields(tmp_path) == {}
    assert (limits.processors(tmp_path), limits.memory(tmp_path)) == (None, None)
    assert (memory.total(tmp_path), memory.available(tmp_path), memory.huge_pages(tmp_path)) == (
        None,
        None,
        None,
    )
    monkeypatch.delattr(processor.os, "sched_getaffinity", raising=False)
    assert processor.allowed() is None


def test_names_can_be_vague(machine):
    block = "processor : 0\ncpu family : 26\nmodel : 2\nmodel name : AMD EPYC\n\n"
    assert processor.name(machine({"proc/cpuinfo": 2 * block})) == "AMD EPYC (family 26, model 2)"
    assert processor.name(machine({"proc/cpuinfo": "model name : Some Arm\n"})) == "Some Arm"


# Control groups -----------------------------------------------------------------------------------

CPU2 = "sys/fs/cgroup/a/b/cpu.max"
MEMORY2 = "sys/fs/cgroup/a/memory.max"
CPU1 = "sys/fs/cgroup/cpu/a"
MEMORY1 = "sys/fs/cgroup/memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", CPU2: "150000 100000\n", MEMORY2: "max\n"}, (1.5, None)),
        (
            {"proc/self/cgroup": "0::/a/b\n", CPU2: "max 100000\n", MEMORY2: "1000000\n"},
            (None, 1000000),
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, (2.0, None)),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n1:cpu,cpuacct:/a\n0::/\n",
                f"{CPU1}/cpu.cfs_quota_us": "50000\n",
                f"{CPU1}/cpu.cfs_period_us": "100000\n",
                MEMORY1: "9223372036854771712\n",
            },
            (0.5, None),
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/../../a\n1:cpu:/a\n",
                f"{CPU1}/cpu.cfs_quota_us": "-1\n",
                f"{CPU1}/cpu.cfs_period_us": "100000\n",
                MEMORY1: "5000\n",
            },
            (None, 5000),
        ),
        ({"proc/self/cgroup": "damaged\n\n::\n", CPU2: "x y\n"}, (None, None)),
    ],
)
def test_limits_of_both_versions(machine, files, wanted):
    root = machine(files)
    assert (limits.processors(root), limits.memory(root)) == wanted


def test_a_group_around_may_have_the_smaller_limit(machine):
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        CPU2: "400000 100000\n",
        "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
    }
    assert limits.processors(machine(files)) == 1.0


def test_memory(machine):
    files = {"proc/meminfo": "MemTotal:   2 kB\nMemFree: 7 kB\nMemAvailable:  1 kB\n"}
    root = machine(
        files | {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"}
    )
    assert (memory.total(root), memory.available(root), memory.huge_pages(root)) == (
        2048,
        1024,
        "madvise",
    )


# The installation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direct", "tag", "wanted"),
    [
        (None, "py3-none-manylinux_2_28_x86_64", ("wheel", "py3-none-manylinux_2_28_x86_64")),
        (None, "py3-none-linux_x86_64", ("sdist", "py3-none-linux_x86_64")),
        (None, "py3-none-macosx_14_0_arm64", ("sdist", "py3-none-macosx_14_0_arm64")),
        (
            {"url": "file:///x/longdraft-0.1.0-py3-none-any.whl", "archive_info": {}},
            "py3",
            ("wheel", None),
        ),
        ({"url": "file:///x/longdraft-0.1.0.tar.gz", "archive_info": {}}, "py3", ("sdist", None)),
        ({"url": "file:///x", "dir_info": {}}, "py3", ("folder", "file:///x")),
        (None, None, ("unknown", "no tag")),
    ],
)
def test_where_an_installation_comes_from(direct, tag, wanted):
    kind, where = wanted
    text = json.dumps(direct) if direct else None
    found = installation._installed(text, f"Wheel-Version: 1.0\nTag: {tag}\n" if tag else None)
    assert found == {"kind": kind, "where": where or direct["url"]}


def test_a_checkout_and_an_unpacked_sdist(tmp_path):
    package = tmp_path / "src" / "longdraft"
    package.mkdir(parents=True)
    assert installation.origin(package)["kind"] != "checkout"
    (tmp_path / "pyproject.toml").touch()
    assert installation.origin(package)["kind"] == "checkout"
    (tmp_path / "PKG-INFO").touch()
    assert installation.origin(package)["kind"] == "unpacked sdist"
    assert installation.origin()["kind"] in ("checkout", "wheel", "unpacked sdist", "folder")


@pytest.mark.parametrize(
    ("version", "bound"),
    [
        ("2.11", ">=2.11"),
        ("2.11.0+cpu", ">=2.11"),
        ("2.13.0+cpu", ">=2.11"),
        ("2.9.1", ">=2.11"),
        ("5.24", ">=5.17,<5.24"),
        ("5.23.9", ">=5.17,<5.24"),
        ("5.16", "<5.24,>=5.17"),
        ("2026.10.1", ">=2026.10"),
        ("1", ">=1.0.0"),
        ("1", ""),
    ],
)
def test_versions_are_compared_as_pip_does(version, bound):
    assert installation.within(version, bound) == (version in SpecifierSet(bound))


def test_bounds_are_those_of_the_project():
    """And have no other form than `within` understands."""
    found = installation.bounds(ROOT / "src" / "longdraft")
    assert {"torch", "transformers", "llguidance", "triton", "jsonschema"} <= found.keys()
    assert all(re.fullmatch(r"(>=|<)[\d.]+(,(>=|<)[\d.]+)*", bound) for bound in found.values())


def test_an_installation_has_the_same_bounds(tmp_path, monkeypatch):
    lines = [
        "torch>=2.11",
        "transformers (<5.24,>=5.17)",
        'jsonschema[format-nongpl]>=4.20; extra == "dev"',
        "rich",
    ]
    monkeypatch.setattr(installation.metadata, "requires", lambda name: lines)
    wanted = {"torch": ">=2.11", "transformers": "<5.24,>=5.17", "jsonschema": ">=4.20"}
    assert installation.bounds(tmp_path / "site-packages" / "longdraft") == wanted


def test_no_key_is_among_the_settings():
    given = {
        "LONGDRAFT_API_KEY": "secret",
        "OMP_NUM_THREADS": "2",
        "LONGDRAFT_NATIVE": "0",
        "HOME": "/root",
    }
    assert environment.settings(given) == {"OMP_NUM_THREADS": "2", "LONGDRAFT_NATIVE": "0"}
    assert environment.tuning(given) == {"OMP_NUM_THREADS": "2"}
