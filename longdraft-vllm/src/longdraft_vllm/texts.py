"""Drafters by text: vLLM names no request when it asks for drafts, and its rows move between two
calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from longdraft.core.rows import Rows


class Known:
    """A drafter that has read exactly `text`."""

    def __init__(self, drafter: Any, text: np.ndarray):
        self.drafter = drafter
        self.text = text.copy()
        drafter.start(_rows(text))

    def begins(self, text: np.ndarray) -> bool:
        """Whether `text` goes on from what was read. The last token is compared first: it differs
        for most others.
        """
        n = len(self.text)
        return (
            n <= len(text) and self.text[-1] == text[n - 1] and np.array_equal(self.text, text[:n])
        )

    def read(self, text: np.ndarray) -> None:
        self.drafter.ready(_rows(text))
        self.text = np.concatenate([self.text, text[len(self.text) :]])


def _rows(text: np.ndarray) -> Rows:
    """A batch of one row for the drafters; none of what they read depends on its limit, seed or end
    tokens.
    """
    one = torch.ones(1, dtype=torch.long)
    return Rows(torch.from_numpy(text)[None], one * len(text), one, one, [()])


class Texts:
    """At most `most` drafters, each found by its text alone: a row never drafts from another
    request's text.

    A row's drafter is the one whose text the row's text continues, first that of the same row, then
    any other. A request that returns after a pause finds its drafter if it is still kept; otherwise
    its text is read again.
    """

    def __init__(self, make: Callable[[], Any], most: int):
        self.make = make
        self.most = most
        self.known: dict[int, Known] = {}  # by number, the latest used last
        self.at: dict[Any, int] = {}  # row -> the number of the drafter that it used last
        self.count = 0

    def drafters(self, texts: dict[Any, np.ndarray]) -> dict[Any, Any]:
        """{row, by any name: its text} -> {row: a drafter that has read this text}; no two rows
        share one.
        """
        found: dict[Any, int] = {}
        for row, text in texts.items():
            number = self.at.get(row)
            if number in self.known and self.known[number].begins(text):
                found[row] = number
        for row, text in texts.items():
            if row not in found:
                found[row] = self._elsewhere(text, taken=set(found.values()))
        for row, number in found.items():
            self.known[number] = self.known.pop(number)
            self.known[number].read(texts[row])
        for number in list(self.known)[: max(len(self.known) - max(self.most, len(found)), 0)]:
            del self.known[number]
        self.at = found
        return {row: self.known[number].drafter for row, number in found.items()}

    def _elsewhere(self, text: np.ndarray, taken: set[int]) -> int:
        """The drafter that has read most of this text, or a new one."""
        fitting = [n for n, known in self.known.items() if n not in taken and known.begins(text)]
        if fitting:
            return max(fitting, key=lambda n: len(self.known[n].text))
        self.count += 1
        self.known[self.count] = Known(self.make(), text)
        return self.count
