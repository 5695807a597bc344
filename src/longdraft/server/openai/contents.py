"""The text of a message's content, which may come in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# first words of parts' types
SENSES = {
    "image": "images",
    "audio": "sound",
    "video": "video",
    "file": "files",
}


def only_text(content: Any) -> Any:
    """The content of a message.

    Raises ValueError for parts that are images, sound, video or files, by name.
    """
    parts = content if isinstance(content, list) else []
    kinds = [
        str(part.get("type")).removeprefix("input_").split("_")[0]
        for part in parts
        if isinstance(part, dict)
    ]
    other = next((SENSES[kind] for kind in kinds if kind in SENSES), None)
    if other:
        raise ValueError(f"this server reads no {other}: send parts of text only")
    return content


def joined(content: str | Sequence[Any]) -> str:
    """The text of a message, which may come in parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
