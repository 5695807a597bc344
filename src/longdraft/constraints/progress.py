"""The progress of a row's text in a grammar.

It tells which tokens may follow the text and the nodes of its trees.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

Path = tuple[int, ...]  # the tokens from below the root to a node; () is the root's
MOST_FORCED = 256  # tokens of a draft: a grammar that recurs without an end forces any number


class Progress:
    """A matcher that has consumed the first `consumed` of `tokens`, and a draft's path `below`.

    over: the text has ended, so that only end tokens may follow; also where a token was outside the
    grammar. masks: bit i of an entry tells whether token i may follow the path; None: the path is
    outside the grammar.

    A matcher gives up at a limit and where nothing can follow, and cannot go back then. A fresh
    one, which has read this text alone, tries again. Where it gives up too, only end tokens may
    follow this path and those below it, and `unfinished` says why; other paths are what they would
    be without it.
    """

    def __init__(self, fresh: Callable[[], Any], ends: Sequence[int], only_ends: bytes):
        """fresh: makes a matcher that has consumed nothing."""
        self.tokens: list[int] = []
        self.consumed = 0
        self.below: Path = ()
        self.masks: dict[Path, bytes | None] = {}
        self._fresh = fresh
        self._ends = ends
        self._only_ends = only_ends
        self._matcher = fresh()
        self._none = bytes(len(only_ends))
        self._failed = set[Path]()  # where matchers give up
        self._forced: list[int] | None = None

    @property
    def over(self) -> bool:
        return self.consumed < len(self.tokens)

    def move_to(self, tokens: list[int]) -> None:
        """Move to these tokens: those of the row, or of an earlier or later state of the row."""
        if tokens == self.tokens:
            return
        common = _common(tokens, self.tokens)
        self.tokens = tokens
        self.masks = {}
        self._failed = set()
        self._forced = None
        self._back(len(self.below) + max(self.consumed - common, 0))
        self.below = ()
        self.consumed = min(self.consumed, common)
        if self.consumed == common:
            self.consumed += self._consume(tokens[common:])
        if self._matcher.is_error():
            self._renew()

    def mask(self, path: Path) -> bytes | None:
        """The tokens that may follow a path below the row's tokens."""
        if path not in self.masks:
            self.masks[path] = self._after(path)
        return self.masks[path]

    def forced(self) -> list[int]:
        """The tokens that must come next.

        The first end token is among them where the text must then end.
        """
        if self._forced is None:
            self._forced = [] if self.over else self._must_follow()
        return self._forced

    def unfinished(self) -> str:
        """The reason why the text may not end at its first end token; empty: it may."""
        whole = next(
            (i for i, token in enumerate(self.tokens) if token in self._ends), len(self.tokens)
        )
        if self.consumed < whole:
            return self._error() or f"token {self.tokens[self.consumed]} may not follow the text"
        mask, why = self._allowed(())
        if why or mask is None:
            return why or "the text is outside of it"
        has_end = int.from_bytes(mask) & int.from_bytes(self._only_ends)
        may_end = has_end or self._matcher.is_accepting()
        return "" if may_end else "the text is only the beginning of one"

    def _must_follow(self) -> list[int]:
        if not self._enter(()):
            return []
        forced = list(self._matcher.compute_ff_tokens())
        tokens = forced[:MOST_FORCED]
        count = self._consume(tokens)
        if self._matcher.is_error():
            return []
        if count == len(forced) and self._matcher.is_stopped():
            tokens.append(self._ends[0])
        self._back(count)
        return tokens

    def _after(self, path: Path) -> bytes | None:
        if self.over or any(token in self._ends for token in path):
            return self._only_ends
        if self._failed and any(path[:n] in self._failed for n in range(len(path))):
            return self._only_ends
        mask, why = self._allowed(path)
        if why:
            self._failed.add(path)
            return self._only_ends
        return self._only_ends if mask == self._none else mask

    def _allowed(self, path: Path) -> tuple[bytes | None, str]:
        """The tokens that may follow a path, as `masks` has them, and the matcher's error there.

        The error is empty if there is none.
        """
        # A matcher that has read other paths too may meet a limit that a fresh one does not reach.
        for _ in range(2):
            mask = self._matcher.compute_bitmask() if self._enter(path) else None
            if not self._matcher.is_error():
                return mask, ""
            why = self._error()
            self._renew()
        return None, why

    def _enter(self, path: Path) -> bool:
        """Move the matcher to a path, from the part that it shares with the last one.

        Returns whether the matcher got there.
        """
        if self._matcher.is_error():
            self._renew()
        common = _common(path, self.below)
        self._back(len(self.below) - common)
        count = self._consume(path[common:])
        self.below = path[: common + count]
        return self.below == path

    def _renew(self) -> None:
        """Read the row's text again, with a fresh matcher."""
        self._matcher = self._fresh()
        self.below = ()
        self.consumed = self._consume(self.tokens)

    def _error(self) -> str:
        """The reason why the matcher has given up, if it has."""
        if not self._matcher.is_error():
            return ""
        reason = str(self._matcher.get_error()).split("\n")[0][:200]
        if reason.startswith("NoExtension"):
            return "nothing can follow the text"
        return reason or "unknown"

    def _consume(self, tokens: Sequence[int]) -> int:
        """Consume tokens up to the first end token or the first that is outside the grammar.

        Returns how many.
        """
        until = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        return self._matcher.try_consume_tokens(list(tokens[:until])) if until else 0

    def _back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)


class RecentRows:
    """Keeps masks only for the `most` rows that were used last.

    A mask of a large vocabulary takes 19 KB a node. lock: held by whoever uses a row.
    """

    def __init__(self, most: int = 64):
        self.lock = Lock()
        self._most = most
        self._rows = OrderedDict[int, Progress]()

    def use(self, row: Progress) -> None:
        self._rows[id(row)] = row
        self._rows.move_to_end(id(row))
        if len(self._rows) > self._most:
            self._rows.popitem(last=False)[1].masks = {}


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of first tokens that two texts share."""
    least = min(len(a), len(b))
    if a[:least] == b[:least]:
        return least
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
