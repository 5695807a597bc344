"""Faults of a prefix cache: prompts that count as known, though their keys were not copied."""

from __future__ import annotations

from pytest import MonkeyPatch

from longdraft.prompts import prefix_cache
from longdraft.prompts.prefix_cache import PrefixCache, Shapes


def shapes_of_the_latest_row(mp: MonkeyPatch) -> None:
    """What is copied is decided by the row that was stored last, which has no layers after a prompt
    of one token.
    """
    store = PrefixCache._store
    good = prefix_cache.copied
    shapes: list[Shapes] = [{}]

    def remember(self, tokens, row, *given):
        store(self, tokens, row, *given)
        shapes[0] = row.shapes

    mp.setattr(PrefixCache, "_store", remember)
    mp.setattr(prefix_cache, "copied", lambda *given: good(*given) if shapes[0] else True)


def counted_only(mp: MonkeyPatch) -> None:
    """Prompts count as known, and nothing is copied."""
    mp.setattr(prefix_cache, "copied", lambda blocks, known, row: True)
