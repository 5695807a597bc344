"""The rows and corrections for which a table of costs was predicted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Basis:
    """Predicted costs hold for these rows and their slots, and for these scales of predictions.

    Without rows, they hold for nothing.
    """

    rows: int = 0
    slots: int = 0
    scales: tuple[float, ...] = ()

    def fits(self, rows: int, slots: int, growth: float) -> bool:
        """Whether it is as many rows, and at most this share longer or shorter."""
        return rows == self.rows and abs(slots - self.slots) <= growth * self.slots

    def moved(self, scales: tuple[float, ...], share: float) -> bool:
        """Whether a scale has changed by more than this share."""
        pairs = zip(scales, self.scales, strict=True)
        return any(abs(scale / before - 1) > share for scale, before in pairs)
