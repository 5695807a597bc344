"""Which committed keys and values a pass may read, as the code that computes passes sees it."""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor

from longdraft.ops import Segment


class KVView(Protocol):
    """Selected slots of the cache, and every slot from tail_start [B] on (views/base.py).

    indexable: the selected slots are known before the queries are, so that their keys can be copied side by side.
    """

    indexable: ClassVar[bool]
    tail_start: Tensor

    def segments(
        self, layer: int, b: int, k: Tensor, v: Tensor, end: int, visible: Tensor | None, q: Tensor
    ) -> list[Segment]:
        """What row b's queries q [H,W,D] see in this layer of k, v [K,S,D], where the row's scratch ends at slot `end`.

        visible [W,T]: which of the last T slots each query sees; None: all of them.
        """
        ...


def is_indexable(view: KVView | None) -> bool:
    """Whether the keys that a pass reads are known before its queries are. None: every key is read."""
    return view is None or view.indexable
