"""Whose keys and values the rows of a cache still hold after their requests have left."""

from __future__ import annotations

from longdraft.core import KVCache


class Remains:
    """Every slot of a row that may hold keys of another owner than its present one is wiped before it is reused.

    An empty row still holds the keys of its last requests. No pass reads them, but it would if a prompt counted as
    loaded without being copied. Between requests of one owner nothing is wiped; between owners, wiping writes about as
    many bytes as one decoding step of the longest earlier request has read.

    spare: slots beyond a row's length that drafts may have written. owners, ends: by row, whose keys it may hold, in
    slots [0, end).
    """

    def __init__(self, cache: KVCache, spare: int):
        self.cache, self.spare = cache, spare
        self.owners: list[set[str]] = [set() for _ in cache.length]
        self.ends = [0] * len(cache.length)

    def enter(self, b: int, owner: str) -> None:
        """Keys of this owner are about to be written to row b, which is empty."""
        if self.owners[b] - {owner}:
            self.cache.row(b).wipe(0, self.ends[b])
            self.owners[b], self.ends[b] = set(), 0
        self.owners[b].add(owner)

    def written(self, b: int, end: int) -> None:
        """Slots of row b before `end` may have been written."""
        self.ends[b] = max(self.ends[b], end)

    def leave(self, b: int) -> None:
        """The request in row b ends."""
        self.written(b, int(self.cache.length[b]) + self.spare)

    def move(self, source: int, to: int) -> None:
        """Copy row `source` over row `to`: both hold its keys then."""
        self.leave(source)
        self.cache.move(source, to)
        self.owners[to] |= self.owners[source]
        self.ends[to] = max(self.ends[to], self.ends[source])
