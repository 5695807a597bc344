"""The pass that a thread computes: the only state of threads in this package.

Modules, hooks and functions of a model are shared by all threads that run it, so what they need to
know of a pass they read from the pass of the thread that calls them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from longdraft.backends.attention_pass import AttentionPass
from longdraft.backends.dense_pass import DensePass
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass
from longdraft.core import Captures, KVCache, Tree


@dataclass(slots=True)
class CurrentPass:
    """Fields are None outside of passes, and in passes that have no such thing.

    owner: stands for the architecture that computes the pass; hooks of other ones on the same
    modules do nothing. attention: computes what layers attend to; attend: the same, as the model's
    attention function calls it, with the features around it. captured: the hidden states that are
    requested, and those that were stored. tree, start, cache: it runs nodes [start, size) over this
    cache. position [B,W]: of the nodes. logits: of how many last nodes, 0: all. recurrent: the
    pass through layers with a state. dense: the row that modules without the attention interface
    compute. layer: the number of the layer for which a module was called that several layers share.
    projected: what a recurrent layer with an inline scan hands from one of its parts to the next.
    arguments: of the model's forward, by features. kept {feature: what it needs to know}.
    """

    owner: object = None
    attention: AttentionPass | None = None
    attend: Callable[[Any], Tensor] | None = None
    captured: Captures | None = None
    tree: Tree | None = None
    start: int = 0
    cache: KVCache | None = None
    position: Tensor | None = None
    logits: int = 0
    recurrent: RecurrentPass | None = None
    dense: DensePass | None = None
    layer: int | None = None
    projected: Any = None
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    kept: dict[Any, Any] = field(default_factory=dict[Any, Any])


class _Threads(threading.local):
    """Each thread has its own `current`."""

    def __init__(self) -> None:
        self.current = CurrentPass()


_threads = _Threads()


def current() -> CurrentPass:
    """The calling thread's pass; without fields where it runs none."""
    return _threads.current


@contextmanager
def passing(p: CurrentPass) -> Generator[None]:
    """Inside, this is the thread's pass; afterward it is again the one around it."""
    before = _threads.current
    _threads.current = p
    try:
        yield
    finally:
        _threads.current = before
