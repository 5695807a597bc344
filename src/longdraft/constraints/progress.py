"""How far a row's text has come in a grammar, and which tokens may follow it and the nodes of its trees."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

Path = tuple[int, ...]  # the tokens from below the root to a node; () is the root's


class Progress:
    """The matcher has consumed the first `consumed` of `tokens`, and then the path `below` of a draft.

    over: the text has ended, so that only end tokens may follow; also where a token was outside the grammar, or the
    matcher has given up (`failure` says why). masks: bit i of an entry is whether token i may follow the path; None:
    the path is outside the grammar.
    """

    def __init__(self, matcher: Any, ends: Sequence[int], only_ends: bytes):
        self.tokens: list[int] = []
        self.consumed = 0
        self.below: Path = ()
        self.masks: dict[Path, bytes | None] = {}
        self.failure = ""
        self._matcher, self._ends, self._only_ends = matcher, ends, only_ends
        self._none = bytes(len(only_ends))
        self._forced: list[int] | None = None

    @property
    def over(self) -> bool:
        return self.consumed < len(self.tokens) or bool(self.failure)

    def move_to(self, tokens: list[int]) -> None:
        """Be as far as after these tokens: those of the row, or of an earlier or later state of it."""
        if tokens == self.tokens:
            return
        self._enter(())
        common = _common(tokens, self.tokens)
        if common < self.consumed:
            self._back(self.consumed - common)
            self.consumed = common
        self.tokens, self.masks, self._forced = tokens, {}, None
        if self.consumed == common and not self.failure:
            self.consumed += self._consume(tokens[common:])

    def mask(self, path: Path) -> bytes | None:
        """The tokens that may follow a path below the row's tokens."""
        if path not in self.masks:
            self.masks[path] = self._after(path)
        return self.masks[path]

    def forced(self) -> list[int]:
        """The tokens that must come next, the first end token among them where the text must then end."""
        if self._forced is None:
            self._forced = [] if self.over else self._must_follow()
        return self._forced

    def _must_follow(self) -> list[int]:
        self._enter(())
        tokens = list(self._matcher.compute_ff_tokens())
        count = self._consume(tokens)
        if count == len(tokens) and self._matcher.is_stopped():
            tokens.append(self._ends[0])
        self._back(count)
        return tokens

    def _after(self, path: Path) -> bytes | None:
        if self.over or any(token in self._ends for token in path):
            return self._only_ends
        return self._allowed() if self._enter(path) else None

    def _enter(self, path: Path) -> bool:
        """Move the matcher to a path, by way of what it has in common with the last one -> whether it got there."""
        common = _common(path, self.below)
        self._back(len(self.below) - common)
        count = self._consume(path[common:])
        self.below = path[: common + count]
        return self.below == path

    def _allowed(self) -> bytes:
        """The tokens that may follow what the matcher has consumed."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            return self._fail()
        return mask if mask != self._none else self._only_ends

    def _fail(self) -> bytes:
        self.failure = str(self._matcher.get_error()).split("\n")[0][:200] or "unknown"
        return self._only_ends

    def _consume(self, tokens: Sequence[int]) -> int:
        """Consume tokens up to the first end token or the first that is outside the grammar -> how many."""
        until = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        return self._matcher.try_consume_tokens(list(tokens[:until])) if until else 0

    def _back(self, count: int) -> None:
        if count and not self._matcher.rollback(count):
            self._fail()


class Recent:
    """Of all rows, only the `most` that were used last keep masks: one of a large vocabulary takes 19 KB a node.

    lock: held by whoever uses a row.
    """

    def __init__(self, most: int = 64):
        self.lock, self._most = Lock(), most
        self._rows = OrderedDict[int, Progress]()

    def use(self, row: Progress) -> None:
        self._rows[id(row)] = row
        self._rows.move_to_end(id(row))
        if len(self._rows) > self._most:
            self._rows.popitem(last=False)[1].masks = {}


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many of the first tokens of two texts are the same."""
    least = min(len(a), len(b))
    if a[:least] == b[:least]:
        return least
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
