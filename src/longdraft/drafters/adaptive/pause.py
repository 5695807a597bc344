"""How long drafting stays off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pause:
    """Drafting is on, off for `left` more steps, or about to be tested by a short draft, a glance.

    At most one of the fields is set: a pause ends with a glance.
    """

    left: int = 0
    glancing: bool = False

    def begin(self, steps: int) -> None:
        """Drafting is off; the last of these steps decides about the glance."""
        self.left = steps
        self.glancing = False

    def shorten(self) -> None:
        """If drafting is off, the next step decides about the glance."""
        self.left = min(self.left, 1)

    def end(self) -> None:
        self.left = 0
        self.glancing = False

    def rests(self) -> bool:
        """Count a step. Whether drafting is off in it."""
        if not self.left:
            return False
        self.left -= 1
        self.glancing = not self.left
        return not self.glancing
