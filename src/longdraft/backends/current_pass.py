"""The pass that a thread computes: the only state of threads in this package.

Modules, hooks and functions of a model are shared by all threads that run it, so what they need to
know of a pass they read from the pass of the thread that calls them.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from longdraft.backends.attention_pass import AttentionPass
from longdraft.backends.dense_pass import DensePass
from longdraft.backends.recurrent_pass import RecurrentPass
from longdraft.core import Captures


@dataclass(slots=True)
class CurrentPass:
    """Fields are None outside of passes, and in passes that have no such thing.

    owner: stands for the architecture that computes the pass; hooks of other ones on the same
    modules do nothing. attention: what the model's attention function calls. captured: the hidden
    states that are requested, and those that were stored. position [B,W]: of the nodes. long: for
    each row, whether its rotations have the long factors. recurrent: the pass through layers with a
    state. dense: the row that modules without the attention interface compute. layer: the number of
    the layer for which a module was called that several layers share. projected: what a recurrent
    layer with an inline scan hands from one of its parts to the next.
    """

    owner: object = None
    attention: AttentionPass | None = None
    captured: Captures | None = None
    position: Tensor | None = None
    long: list[bool] | None = None
    recurrent: RecurrentPass | None = None
    dense: DensePass | None = None
    layer: int | None = None
    projected: Any = None


class _Threads(threading.local):
    """Each thread has its own `current`."""

    def __init__(self) -> None:
        self.current = CurrentPass()


_threads = _Threads()


def current() -> CurrentPass:
    """The calling thread's pass; without fields where it runs none."""
    return _threads.current


@contextmanager
def passing(**fields: Any) -> Generator[CurrentPass]:
    """Inside, the thread's pass has these fields, and the others of the pass around it.

    What modules set inside is forgotten afterwards.
    """
    before = _threads.current
    _threads.current = replace(before, **fields)
    try:
        yield _threads.current
    finally:
        _threads.current = before
