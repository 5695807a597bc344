"""The protocols of views, which select the part of a cache that a pass reads.

Backends read nothing else of a view. The views themselves are in views/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol, TypeGuard

from torch import Tensor

from longdraft.ops import Segment, StoredRow

Pair = tuple[Tensor, Tensor]  # keys and values


class IndexView(Protocol):
    """Shows slots that are selected before the queries are known.

    Every slot from tail_start [B] on is shown too. So the selected keys and values can be copied
    side by side, once for each layer and row (views/base.py: View).
    """

    indexable: ClassVar[Literal[True]]

    @property
    def tail_start(self) -> Tensor: ...

    @property
    def bits(self) -> int:
        """The bits of a number in the copies.

        4 or 8: codes (ops/coded.py); 0: as the cache stores them.
        """
        ...

    @property
    def copied(self) -> Mapping[tuple[int, int], Pair | None]:
        """The copies [K,P,D], or codes [K,P,width], by layer and row.

        None where nothing is selected.
        """
        ...

    def slots(self, layer: int, b: int) -> Tensor:
        """[P] or [K,P]: the slots of row b that are selected in this layer."""
        ...

    def copy(self, rows: list[tuple[int, int, StoredRow]]) -> None:
        """Add (layer, b, row) to `copied`, in one kernel call where possible."""
        ...

    def compact(self, layer: int, b: int, row: StoredRow) -> Pair | None:
        """The selected keys and values of row b, with codes decoded.

        They are copied from what the cache stores of it if they were not.
        """
        ...

    def segments(
        self, layer: int, b: int, row: StoredRow, end: int, visible: Tensor | None, q: Tensor
    ) -> list[Segment]:
        """See QueryView.segments."""
        ...


class QueryView(Protocol):
    """Shows slots that depend on the queries (views/quest.py).

    Only the eager backend can read such a view.
    """

    indexable: ClassVar[Literal[False]]

    def segments(
        self, layer: int, b: int, row: StoredRow, end: int, visible: Tensor | None, q: Tensor
    ) -> list[Segment]:
        """The keys and values that row b's queries q [H,W,D] see, of those stored in this layer.

        The row's scratch ends at slot `end`.
        visible [W,T]: which of the last T slots each query sees; None: all of them.
        """
        ...


KVView = IndexView | QueryView


def is_indexable(view: KVView | None) -> TypeGuard[IndexView | None]:
    """Whether the keys that a pass reads are known before its queries are.

    None: every key is read.
    """
    return view is None or view.indexable
