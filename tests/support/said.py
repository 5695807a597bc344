"""What a command printed, wherever its lines were broken."""

from __future__ import annotations


def said(lines: list[str]) -> str:
    """The lines as one, with single spaces."""
    return " ".join(" ".join(lines).split())
