"""A grammar for a tokenizer's tokens: a sampler's masks for the nodes of draft trees."""

from __future__ import annotations

import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from torch import Tensor

from longdraft.constraints.masks import excluded
from longdraft.constraints.progress import Path, Progress, RecentRows
from longdraft.core import Rows, Tree
from longdraft.errors import InputError

KEPT = 256  # texts whose progress is kept; others are read from their beginning again
BESIDE = ThreadPoolExecutor(1, "longdraft-constraint")  # computes masks while a pass runs


class Grammar:
    """A `Constraint`: a token may follow a node if the text with it begins a text of the grammar.

    The text is all that was generated up to the node. The progress of a row's text is looked up by
    its tokens alone, so an instance may be shared by any number of rows, batches and threads. A
    text ends with an end token, which may follow where the text is complete and must where nothing
    else can. It must, too, where the grammar fails (see Progress); `failure` tells such a text from
    a complete one. about: a name of the constraint, in a word or two.
    """

    def __init__(self, matcher: Any, ends: tuple[int, ...], about: str, recent: RecentRows):
        """matcher: one that has consumed nothing.

        Raises InputError if it has an error, or there are no end tokens.
        """
        size = len(matcher.compute_bitmask())
        error = _error_at_first(matcher)
        if error:
            raise InputError(f"{about} cannot be used: {error}")
        if not ends:
            raise InputError(
                f"{about} cannot be used: this model has no end token, which would end the text"
            )
        self.about = about
        bits = np.zeros(8 * size, np.uint8)
        bits[list(ends)] = 1
        self._fresh = matcher
        self._ends = ends
        self._only_ends = np.packbits(bits, bitorder="little").tobytes()
        # (key, progress) by the progress's id, the last used last
        self._rows = OrderedDict[int, tuple[tuple[int, int], Progress]]()
        self._recent = recent

    def matcher(self) -> Any:
        """A matcher of llguidance that has consumed nothing."""
        return self._fresh.deep_copy()

    def masked(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        W = logits.shape[1]
        parents = tree.parent.tolist()
        tokens = tree.tokens.tolist()
        generated = self._generated(rows)
        masks = self._masks(parents, tokens, self._keys(rows), generated, start, W)
        if all(mask is None for row in masks for mask in row):
            return logits
        every = b"\xff" * len(self._only_ends)
        return excluded(
            logits, [[every if mask is None else mask for mask in row] for row in masks]
        )

    def forced(self, rows: Rows) -> list[list[int]]:
        texts = zip(self._keys(rows), self._generated(rows), strict=True)
        with self._recent.lock:
            return [[] if text is None else self._at(key, text).forced() for key, text in texts]

    def failure(self, rows: Rows, row: int) -> str:
        text = rows.tokens[row, int(rows.prompt[row]) : int(rows.length[row])].tolist()
        if not any(token in self._ends for token in text):
            return ""
        with self._recent.lock:
            why = self._at(self._keys(rows)[row], text).unfinished()
        return f"{self.about} could not be followed to its end: {why}" if why else ""

    def prepare(self, tree: Tree, rows: Rows) -> None:
        parents = tree.parent.tolist()
        tokens = tree.tokens.tolist()
        generated = self._generated(rows)
        BESIDE.submit(self._masks, parents, tokens, self._keys(rows), generated, 0, tree.size)

    def _masks(
        self,
        parents: list[list[int]],
        tokens: list[list[int]],
        keys: list[tuple[int, int]],
        generated: list[list[int] | None],
        start: int,
        W: int,
    ) -> list[list[bytes | None]]:
        """The mask after each of the nodes.

        None: all tokens may follow, because the node itself may not be reached.
        """
        with self._recent.lock:
            masks: list[list[bytes | None]] = []
            for parent, drafted, key, text in zip(parents, tokens, keys, generated, strict=True):
                if text is None:
                    masks.append([None] * W)
                    continue
                progress = self._at(key, text)
                paths = _paths(parent, drafted, start + W)
                masks.append(
                    [None if path is None else progress.mask(path) for path in paths[start:]]
                )
            return masks

    def _at(self, key: tuple[int, int], text: list[int]) -> Progress:
        """The progress of a row with this text, moved there."""
        progress = self._kept(key, text)
        if progress is None:
            progress = Progress(self.matcher, self._ends, self._only_ends)
        progress.move_to(text)
        self._rows[id(progress)] = key, progress
        self._rows.move_to_end(id(progress))
        self._recent.use(progress)
        while len(self._rows) > KEPT:
            self._rows.popitem(last=False)
        return progress

    def _kept(self, key: tuple[int, int], text: list[int]) -> Progress | None:
        """The progress with this key that came closest to the text, or went least beyond it.

        None: all read other texts. Rows with the same key may differ in their prompts and samplers:
        each gets the progress of its own text.
        """
        by_length = dict[int, Progress]()
        for progress_key, progress in self._rows.values():
            length = len(progress.tokens)
            if progress_key == key and progress.tokens[: len(text)] == text[:length]:
                by_length[length] = progress
        before = max((n for n in by_length if n <= len(text)), default=None)
        return by_length.get(min(by_length, default=-1) if before is None else before)

    @staticmethod
    def _keys(rows: Rows) -> list[tuple[int, int]]:
        return list(zip(rows.seed.tolist(), rows.prompt.tolist(), strict=True))

    @staticmethod
    def _generated(rows: Rows) -> list[list[int] | None]:
        """The tokens that each row has generated; None for one that is done."""
        spans = zip(rows.done.tolist(), rows.prompt.tolist(), rows.length.tolist(), strict=True)
        return [
            None if done else rows.tokens[b, a:n].tolist() for b, (done, a, n) in enumerate(spans)
        ]


def _paths(parent: list[int], tokens: list[int], count: int) -> list[Path | None]:
    """The path of each of the first nodes; None for padding."""
    paths: list[Path | None] = [()]
    for i in range(1, count):
        above = paths[parent[i]] if parent[i] >= 0 else None
        paths.append(None if above is None else (*above, tokens[i]))
    return paths


def _error_at_first(matcher: Any) -> str:
    """The error of a grammar, or "".

    A recursion that is forced and has no end shows at the first forced token.
    """
    copy = matcher.deep_copy()
    if not copy.is_error():
        copy.try_consume_tokens(copy.compute_ff_tokens()[:1])
    return first_line(copy.get_error()) if copy.is_error() else ""


def first_line(text: str) -> str:
    """An error in one line: a parser's message without its picture of the place."""
    return " ".join(re.sub(r"\n\s*\d+ \|.*", "", text, flags=re.DOTALL).split())[:200]
