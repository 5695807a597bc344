"""Writes JSON of answers: small ones at once, and large ones in pieces.

One call keeps all other threads from running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from json import JSONEncoder
from typing import Any

# entries of a list that are written in one call; with 20 alternatives each, a few milliseconds
FEW = 64
Writer = Callable[[Any], str]

at_once: Writer = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def in_pieces(value: Any) -> str:
    """The same text as `at_once`, for a value whose keys are texts.

    Other threads run between its pieces.
    """
    return "".join(_pieces(value))


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for i, (key, inner) in enumerate(value.items()):
            yield f"{',' if i else ''}{at_once(key)}:"
            yield from _pieces(inner)
        yield "}"
    elif isinstance(value, list) and len(value) > FEW:
        for i in range(0, len(value), FEW):
            yield ("," if i else "[") + at_once(value[i : i + FEW])[1:-1]
        yield "]"
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for i, inner in enumerate(value):
            yield "," if i else "["
            yield from _pieces(inner)
        yield "]"
    else:
        yield at_once(value)
