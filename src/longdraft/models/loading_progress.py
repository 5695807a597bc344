"""Progress of loading a model: `load` reports to the viewer that a command has chosen, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

# called with the fraction that is loaded, from 0 to 1
Report = Callable[[float], None]
# model -> what shows its loading
Viewer = Callable[[str], AbstractContextManager[Report]]


def unseen(fraction: float) -> None:
    """Shows nothing."""


_viewer: ContextVar[Viewer] = ContextVar("viewer")


def viewed(name: str) -> AbstractContextManager[Report]:
    """The Report for loading this model."""
    viewer = _viewer.get(None)
    return nullcontext(unseen) if viewer is None else viewer(name)


@contextmanager
def viewing(viewer: Viewer) -> Iterator[None]:
    """Show the loading of models this way."""
    token = _viewer.set(viewer)
    try:
        yield
    finally:
        _viewer.reset(token)


def between(report: Report, begin: float, end: float) -> Report:
    """The Report of a part of loading that takes it from one fraction to another."""
    return lambda fraction: report(begin + (end - begin) * fraction)
