"""The processor: its name, and the logical processors that share a core."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from longdraft.host.system_files import number, text

ROOT = Path("/")


def fields(root: Path = ROOT) -> dict[str, list[str]]:
    """Each field of /proc/cpuinfo with its different values, in their order.

    Empty: there is no such file.
    """
    by_name: dict[str, list[str]] = {}
    for line in text(root / "proc" / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        values = by_name.setdefault(name.strip(), [])
        if value.strip() not in values:
            values.append(value.strip())
    return by_name


def name(root: Path = ROOT) -> str:
    """The processor's model name.

    An x86 processor's has its family and model, as names can be vague.
    """
    facts = fields(root)
    if "model name" in facts:
        known = facts["model name"][0]
        numbers = [facts.get(field, [""])[0] for field in ("cpu family", "model")]
        return f"{known} (family {numbers[0]}, model {numbers[1]})" if all(numbers) else known
    return _apple() or platform.processor() or platform.machine()


def _apple() -> str:
    if sys.platform != "darwin":
        return ""
    words = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def allowed() -> list[int] | None:
    """The logical processors that this process may run on; None: the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


@dataclass(frozen=True)
class Topology:
    """The numbers of processors, cores and sockets in a set of logical processors.

    cores and sockets are None where the system does not say.
    """

    processors: int
    cores: int | None
    sockets: int | None


def topology(which: Collection[int] | None = None, root: Path = ROOT) -> Topology:
    """The topology of these logical processors, or of the whole machine."""
    folder = root / "sys" / "devices" / "system" / "cpu"
    numbered = [int(p.name[3:]) for p in folder.glob("cpu[0-9]*") if p.name[3:].isdecimal()]
    chosen = numbered if which is None else sorted(which)
    count = len(chosen) or os.cpu_count() or 1
    parts = [folder / f"cpu{i}" / "topology" for i in chosen]
    places = [(number(p / "physical_package_id"), number(p / "core_id")) for p in parts]
    # a processor that is switched off has no place
    places = [place for place in places if None not in place]
    if not places:
        return Topology(count, None, None)
    return Topology(len(places), len(set(places)), len({socket for socket, _ in places}))
