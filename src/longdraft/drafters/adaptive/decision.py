"""Decisions about a step's draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longdraft.core import UNBOUNDED


@dataclass(frozen=True, slots=True)
class Undecided:
    """No decision yet: rows or a turn have begun, or something else has drafted in this step.

    captures: whether the step captures what a draft needs; it does not where no draft is expected.
    """

    captures: bool = True


@dataclass(frozen=True, slots=True)
class Plain:
    """A plain step, which captures nothing."""

    captures: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class CaptureOnly:
    """No draft, but captures for the next one."""

    captures: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft of at most `depth` levels with at most `width` nodes each."""

    captures: ClassVar[bool] = True

    depth: int
    width: int = UNBOUNDED


Decision = Plain | CaptureOnly | Draft

PLAIN = Plain()
CAPTURE_ONLY = CaptureOnly()


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """A step from its decision on. depth: levels drafted. live: of a draft's rows, whether each was
    running and could take all of the draft.
    """

    decision: Decision | Undecided
    depth: int = 0
    live: tuple[bool, ...] = ()


BEGINNING = CurrentStep(Undecided())
BEGINNING_PLAIN = CurrentStep(Undecided(captures=False))
RESTING = CurrentStep(PLAIN)
