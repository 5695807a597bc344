"""The parts in the order in which they are reported.

A part that cannot be examined says so, and the others follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

from longdraft.doctor.part import Finding, PartReport
from longdraft.errors import InputError

# Modules that need torch are imported one by one: without torch, the other parts say what is
# missing.
PARTS = {
    "package": "longdraft.doctor.installed:package",
    "system": "longdraft.doctor.machine:system",
    "processor": "longdraft.doctor.machine:processor",
    "versions": "longdraft.doctor.installed:versions",
    "environment": "longdraft.doctor.installed:environment",
    "kernels": "longdraft.doctor.native_builds:builds",
    "self-check": "longdraft.doctor.native_builds:self_check",
    "threads": "longdraft.doctor.thread_count:threads",
    "memory": "longdraft.doctor.machine:memory",
    "huge pages": "longdraft.doctor.machine:huge_pages",
    "GPU": "longdraft.doctor.gpu:gpu",
    "cache": "longdraft.doctor.cache_folder:cache",
    "costs": "longdraft.doctor.cache_folder:costs",
}
REINSTALL = "install longdraft again, with all that it needs (pip install . in a checkout)"


def examine() -> Iterator[tuple[str, PartReport]]:
    """Each part by its name, as soon as it is examined.

    A problem that several parts meet is reported once.
    """
    told: set[str] = set()
    for name, where in PARTS.items():
        part = examined(where)
        problems = [p for p in part.problems if p.what not in told]
        told.update(p.what for p in problems)
        yield name, replace(part, problems=problems)


def examined(where: str) -> PartReport:
    """One part ("module:function"); an error that it raises is a problem of it."""
    module, function = where.split(":")
    try:
        return getattr(import_module(module), function)()
    except InputError as error:
        fault, _, do = str(error).rpartition(": ")
    except ImportError as error:
        fault = str(error)
        do = REINSTALL
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        do = "report this with the whole output"
    fault = " ".join(fault.split())[:200]
    return PartReport(["not examined"], {}, [Finding(fault, do, fails=True)])
