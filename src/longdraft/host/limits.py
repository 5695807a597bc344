"""Limits of Linux's control groups, which give a process less than the machine has.

Containers and batch systems use them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from longdraft.host.system_files import number, text

ROOT = Path("/")
UNLIMITED = 1 << 60  # bytes; version 1 writes a number like this where there is no limit


def groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of the control groups of this process, and of all groups around them.

    Both versions of control groups are read.
    """
    mounts = root / "sys" / "fs" / "cgroup"
    for line in text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        if ".." in group.parts:  # it is outside of the container
            group = PurePosixPath(".")
        for mount in [mounts / controller] if controllers else [mounts, mounts / "unified"]:
            yield from (mount / part for part in (group, *group.parents))


def processors(root: Path = ROOT) -> float | None:
    """The number of processors whose time this process may use; None: it is not limited."""
    limits = []
    for group in groups("cpu", root):
        quota, _, period = text(group / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal():
            limits.append(int(quota) / int(period))
        time = number(group / "cpu.cfs_quota_us")
        each = number(group / "cpu.cfs_period_us")
        if time is not None and time > 0 and each:
            limits.append(time / each)
    return min(limits, default=None)


def memory(root: Path = ROOT) -> int | None:
    """The bytes that this process may use; None: all."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = list[int]()
    for group in groups("memory", root):
        for name in names:
            limit = number(group / name)
            if limit is not None and 0 < limit < UNLIMITED:
                limits.append(limit)
    return min(limits, default=None)
