"""The threads that compute, their processors, and whether each stays on its own."""

from __future__ import annotations

from math import ceil

import torch

from longdraft.doctor.part import Finding, PartReport, count
from longdraft.host import limits, processor
from longdraft.ops.threads import obstacle


def threads() -> PartReport:
    topology = processor.topology(processor.allowed())
    limit = limits.processors()
    running = torch.get_num_threads()
    reason = obstacle()
    facts = {"threads": running, **vars(topology), "limit": limit, "not_pinned": reason}
    cores = f" ({count(topology.cores, 'core')})" if topology.cores else ""
    words = [f"{running} on {count(topology.processors, 'allowed processor')}{cores}"]
    if limit is not None:
        words.append(f"time of {count(round(limit, 2), 'processor')} by a control group")
    words.append(f"not pinned: {reason}" if reason else "pinned once a model is loaded")
    return PartReport([", ".join(words)], facts, problems(running, topology, limit))


def problems(running: int, topology: processor.Topology, limit: float | None) -> list[Finding]:
    """The problems with the number of threads.

    limit: processors whose time a control group allows; None: all.
    """
    usable = min(topology.processors, ceil(limit) if limit else topology.processors)
    if running > usable:
        fault = f"{running} threads share {count(usable, 'processor')}, so they wait for each other"
        return [Finding(fault, f"set OMP_NUM_THREADS={usable}, or give --threads {usable}")]
    best = min(topology.cores or topology.processors, usable)
    if running < best:
        fault = f"{count(running, 'thread')} for {best} cores: the others are idle"
        return [Finding(fault, f"set OMP_NUM_THREADS={best}, or give --threads {best}")]
    return []
