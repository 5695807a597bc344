"""The machine's memory, and the mode of its huge pages."""

from __future__ import annotations

import os
import re
from pathlib import Path

from longdraft.host.system_files import text

ROOT = Path("/")


def total(root: Path = ROOT) -> int | None:
    """The bytes of the machine's memory; None: the system does not say."""
    known = _of("MemTotal", root)
    if known is None and root == ROOT:
        try:  # macOS
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            return None
    return known


def available(root: Path = ROOT) -> int | None:
    """The bytes that can be used without swapping; None: the system does not say."""
    return _of("MemAvailable", root)


def huge_pages(root: Path = ROOT) -> str | None:
    """The mode of transparent huge pages: "always", "madvise" or "never"; None: there are none."""
    modes = text(root / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled")
    chosen = re.search(r"\[(\w+)\]", modes)
    return chosen[1] if chosen else None


def _of(field: str, root: Path) -> int | None:
    match = re.search(rf"^{field}:\s*(\d+) kB$", text(root / "proc" / "meminfo"), re.MULTILINE)
    return int(match[1]) << 10 if match else None
