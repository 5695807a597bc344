"""Limits of Linux's control groups, by which containers and batch systems give a process less than
the machine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from longdraft.host.files import number, text

ROOT = Path("/")
UNLIMITED = 1 << 60  # bytes; version 1 writes a number like this where there is no limit


def groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of the control groups that this process is in, of both versions, and of all
    groups around them.
    """
    mounts = root / "sys" / "fs" / "cgroup"
    for line in text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        if ".." in group.parts:  # it is outside of what a container sees
            group = PurePosixPath(".")
        for mount in [mounts / controller] if controllers else [mounts, mounts / "unified"]:
            yield from (mount / part for part in (group, *group.parents))


def processors(root: Path = ROOT) -> float | None:
    """How many processors' time this process may use; None: it is not limited."""
    found = []
    for group in groups("cpu", root):
        quota, _, period = text(group / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal():
            found.append(int(quota) / int(period))
        time = number(group / "cpu.cfs_quota_us")
        each = number(group / "cpu.cfs_period_us")
        if time is not None and time > 0 and each:
            found.append(time / each)
    return min(found, default=None)


def memory(root: Path = ROOT) -> int | None:
    """How many bytes this process may use; None: all."""
    names = ("memory.max", "memory.limit_in_bytes")
    found = [number(group / name) for group in groups("memory", root) for name in names]
    return min((size for size in found if size is not None and 0 < size < UNLIMITED), default=None)
