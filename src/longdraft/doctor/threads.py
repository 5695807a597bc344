"""How many threads compute, on how many processors, and whether each stays on its own."""

from __future__ import annotations

from math import ceil

import torch

from longdraft.doctor.part import Part, Problem, count
from longdraft.host import limits, processor
from longdraft.ops.threads import obstacle


def threads() -> Part:
    found = processor.topology(processor.allowed())
    limit = limits.processors()
    running = torch.get_num_threads()
    reason = obstacle()
    facts = {"threads": running, **vars(found), "limit": limit, "not_pinned": reason}
    cores = f" ({count(found.cores, 'core')})" if found.cores else ""
    words = [f"{running} on {count(found.processors, 'allowed processor')}{cores}"]
    if limit is not None:
        words.append(f"time of {count(round(limit, 2), 'processor')} by a control group")
    words.append(f"not pinned: {reason}" if reason else "pinned once a model is loaded")
    return Part([", ".join(words)], facts, problems(running, found, limit))


def problems(running: int, found: processor.Topology, limit: float | None) -> list[Problem]:
    """limit: processors whose time a control group allows; None: all."""
    usable = min(found.processors, ceil(limit) if limit else found.processors)
    if running > usable:
        what = f"{running} threads share {count(usable, 'processor')}, so they wait for each other"
        return [Problem(what, f"set OMP_NUM_THREADS={usable}, or give --threads {usable}")]
    best = min(found.cores or found.processors, usable)
    if running < best:
        what = f"{count(running, 'thread')} for {best} cores: the others are idle"
        return [Problem(what, f"set OMP_NUM_THREADS={best}, or give --threads {best}")]
    return []
