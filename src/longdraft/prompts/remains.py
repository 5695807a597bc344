"""Owners of the keys and values that rows of a cache still hold after their requests left."""

from __future__ import annotations

from longdraft.core import KVCache


class Remains:
    """Wipes other owners' keys from the slots that a prompt will fill, before its row is read.

    An empty row still holds the keys of its last requests. No pass reads them, but it would if a
    prompt counted as loaded without being copied. Between requests of one owner nothing is wiped.
    Between owners it takes a third of the time of loading the prompt from memory, and a short
    prompt does not wait for the slots of a long one.

    spare: slots beyond a row's length that drafts may have written. owners, ends: by row, the
    owners whose keys it may hold in slots [0, end).
    """

    def __init__(self, cache: KVCache, spare: int):
        self.cache = cache
        self.spare = spare
        self.owners: list[set[str]] = [set() for _ in cache.length]
        self.ends = [0] * len(cache.length)

    def enter(self, b: int, owner: str, count: int) -> None:
        """Prepare the first `count` slots of row b, which is empty, for keys of this owner."""
        if self.owners[b] - {owner}:
            self.cache.row(b).wipe(0, min(count, self.ends[b]))
            if count >= self.ends[b]:
                self.owners[b] = set()
                self.ends[b] = 0
        self.owners[b].add(owner)

    def written(self, b: int, end: int) -> None:
        """Note that slots of row b before `end` may have been written."""
        self.ends[b] = max(self.ends[b], end)

    def leave(self, b: int) -> None:
        """Note the end of the request in row b."""
        self.written(b, int(self.cache.length[b]) + self.spare)

    def move(self, source: int, target: int) -> None:
        """Copy row `source` over row `target`: both hold its keys then."""
        self.leave(source)
        self.owners[target] |= self.owners[source]
        self.ends[target] = max(self.ends[target], self.ends[source])
        self.cache.move(source, target)  # last: a copy that fails may have written some slots
