"""What files of measured costs say of the machine that they were measured on; no model is needed to
read it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from longdraft.host import processor
from longdraft.models.fetch import cache_folder

LARGEST = 1 << 20  # bytes of a file: a thousand times as large as those that are written


def folder() -> Path:
    """Where measured costs are kept."""
    return cache_folder() / "costs"


def machine_name() -> str:
    """The model of the processor, and how many logical processors this process may use."""
    fields = processor.fields()
    told = dict.fromkeys(
        value for field, values in fields.items() if field.startswith("model") for value in values
    )
    allowed = processor.allowed()
    return (
        f"{' '.join(told) or processor.name()}, "
        f"{os.cpu_count() if allowed is None else len(allowed)} processors"
    )


def fingerprints() -> list[dict[str, Any]]:
    """What each kept file says that its costs depend on; damaged files are left out."""
    found = []
    for file in sorted(folder().glob("*.json")):
        try:
            content = (
                json.loads(file.read_text(encoding="utf-8"))
                if file.stat().st_size < LARGEST
                else None
            )
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict) and isinstance(content.get("fingerprint"), dict):
            found.append(content["fingerprint"])
    return found
