"""The machine: processor, system, memory and how fast it is read."""

from __future__ import annotations

import os
import platform

from longdraft.doctor.part import Finding, PartReport, count, gigabytes
from longdraft.host import limits
from longdraft.host import memory as host
from longdraft.host import processor as cpu

# bytes that must be available to read LARGE bytes; otherwise SMALL are read
FREE = 1 << 30
LARGE = 1 << 28
SMALL = 1 << 25
THP = "THP_MEM_ALLOC_ENABLE"


def system() -> PartReport:
    facts = {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
    }
    system = f"{facts['system']} {facts['release']} {facts['machine']}"
    return PartReport([f"{system}; Python {facts['python']} ({facts['implementation']})"], facts)


def processor() -> PartReport:
    topology = cpu.topology()
    counts = [count(topology.sockets, "socket")] if topology.sockets else []
    counts += [count(topology.cores, "core")] if topology.cores else []
    counts.append(count(topology.processors, "processor"))
    return PartReport(
        [f"{cpu.name()}: {', '.join(counts)}"], {"name": cpu.name(), **vars(topology)}
    )


def memory() -> PartReport:
    """The sizes of the memory, and the speed at which a decoding step's data are read."""
    from longdraft.ops.bandwidth import bandwidth

    total = host.total()
    available = host.available()
    limit = limits.memory()
    words = [gigabytes(total)] if total else ["unknown size"]
    words += [f"{gigabytes(available)} available"] if available is not None else []
    if limit is not None and (total is None or limit < total):
        words.append(f"limited to {gigabytes(limit)} by a control group")
    least = min((size for size in (available, limit) if size is not None), default=FREE)
    size = LARGE if least >= FREE else SMALL
    speed = bandwidth(size=size)
    facts = {
        "total": total,
        "available": available,
        "limit": limit,
        "bandwidth_gb_s": round(speed, 1),
    }
    return PartReport(
        [f"{', '.join(words)}; read at {speed:.0f} GB/s"], facts | {"bytes_read": size}
    )


def huge_pages() -> PartReport:
    """The mode of huge pages.

    The kernels ask for none, so only those that the system gives by itself or torch asks for are
    used.
    """
    mode = host.huge_pages()
    asked = os.environ.get(THP) == "1"
    madvise = f"madvise: unused unless {THP}=1"
    if asked:
        madvise = f"madvise: torch asks for them ({THP}=1)"
    explained = {
        None: "none on this system; the kernels need none",
        "always": "always: used wherever memory is large",
        "madvise": madvise,
        "never": "never: turned off",
    }
    problems = []
    if asked and mode in (None, "never"):
        fault = f"{THP} asks for huge pages, and the system gives none"
        problems.append(Finding(fault, f"unset {THP}, or turn transparent huge pages on"))
    return PartReport([explained.get(mode, str(mode))], {"mode": mode, "asked": asked}, problems)
