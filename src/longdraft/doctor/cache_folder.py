"""The user's cache folder: whether it can be written, the models in it, and measured costs."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from longdraft.doctor.part import Finding, PartReport, short
from longdraft.models import fetch
from longdraft.tuning import kept
from longdraft.version import __version__


def refusal(folder: Path) -> str:
    """The reason why nothing can be written where this folder is, or will be; "" if it can.

    Leaves nothing behind.
    """
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with tempfile.TemporaryDirectory(prefix=".longdraft-", dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def size(folder: Path) -> int:
    """The bytes of the files in a folder; those that cannot be read are left out."""
    total = 0
    with suppress(OSError):
        for file in folder.rglob("*"):
            with suppress(OSError):
                total += file.stat().st_size if file.is_file() else 0
    return total


def models() -> list[str]:
    """The models of `longdraft fetch` that are in the cache."""
    names = []
    for name in fetch.SOURCES:
        with suppress(OSError):
            if fetch.is_there(name):
                names.append(name)
    return names


def cache() -> PartReport:
    folder = fetch.cache_folder()
    why = refusal(folder)
    names = models()
    used = size(folder)
    facts = {"folder": short(folder), "writable": not why, "bytes": used, "models": names}
    state = "cannot be written" if why else "writable"
    problems = []
    if why:
        do = "set LONGDRAFT_CACHE to a folder that can be written"
        problems.append(Finding(f"{short(folder)} cannot be written ({why})", do, fails=True))
    return PartReport(
        [f"{short(folder)}, {state}, {used / 1e6:.0f} MB: {', '.join(names) or 'no models'}"],
        facts,
        problems,
    )


def costs() -> PartReport:
    """The measured costs of this version on this machine.

    They are those of the build and the number of threads that are used now.
    """
    import torch

    from longdraft.ops import native

    lib = native.library()
    current = {
        "machine": kept.machine_name(),
        "kernels": None if lib is None else native.name_of(lib),
        "threads": torch.get_num_threads(),
        "version": __version__,
    }
    fingerprints = kept.fingerprints()

    def is_ours(fingerprint: dict[str, Any]) -> bool:
        return all(fingerprint.get(name) == value for name, value in current.items())

    ours = sum(map(is_ours, fingerprints))
    facts = {"these": ours, "others": len(fingerprints) - ours}
    others = ""
    if facts["others"]:
        others = f" ({facts['others']} of other builds, threads, machines or versions)"
    if ours:
        measured = f"{ours} model{'s' if ours > 1 else ''}"
        return PartReport([f"measured for {measured} by this build{others}"], facts)
    return PartReport(
        [f"not measured by this build{others}; `longdraft tune -m MODEL` does it"], facts
    )
