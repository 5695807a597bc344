"""Reads the fingerprint of the machine from stored cost files, without a model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from longdraft.host import processor
from longdraft.models.fetch import cache_folder

MAX_FILE_BYTES = 1 << 20  # bytes of a file: a thousand times as large as those that are written


def folder() -> Path:
    """The folder of stored cost files."""
    return cache_folder() / "costs"


def machine_name() -> str:
    """The model of the processor, and how many logical processors this process may use."""
    fields = processor.fields()
    models = dict[str, None]()  # each once, in order
    for field, values in fields.items():
        if field.startswith("model"):
            models |= dict.fromkeys(values)
    allowed = processor.allowed()
    return (
        f"{' '.join(models) or processor.name()}, "
        f"{os.cpu_count() if allowed is None else len(allowed)} processors"
    )


def fingerprints() -> list[dict[str, Any]]:
    """The fingerprints in all stored cost files, without damaged files.

    A fingerprint states all that a file's costs depend on.
    """
    records = []
    for file in sorted(folder().glob("*.json")):
        try:
            if file.stat().st_size >= MAX_FILE_BYTES:
                continue
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict) and isinstance(content.get("fingerprint"), dict):
            records.append(content["fingerprint"])
    return records
