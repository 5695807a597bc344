"""Keys and values of earlier text, so that a later prompt that begins with it skips its prefill."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Protocol
from weakref import ref

import torch
from torch import Tensor

from longdraft.core import KVCache
from longdraft.core.states import ByScan
from longdraft.errors import InputError
from longdraft.models.lm import LM

Tell = Callable[[str], object]
Shapes = dict[int, tuple[int, int, int, torch.dtype]]  # as KVCache.shapes
# (the number of the block before, or the owner of a first block; its tokens, fewer for a tail)
Key = tuple[int | str, tuple[int, ...]]


class Prefixes(Protocol):
    """The place where a session keeps keys and values of prompts.

    asked, hits: tokens of all prompts, and those that were known. used: the share of its room that
    is in use. attach, load, known, store: see PrefixCache.
    """

    asked: int
    hits: int

    @property
    def used(self) -> float: ...

    def attach(self, target: LM) -> None: ...

    def load(self, tokens: list[int], row: KVCache, multiple: int = 1, owner: str = "") -> int: ...

    def known(self, tokens: list[int], multiple: int = 1, owner: str = "") -> int: ...

    def store(
        self, tokens: list[int], row: KVCache, owner: str = "", complete: bool = True
    ) -> None: ...


@dataclass
class PrefixBlock:
    """The keys and values of `block` tokens, in every layer of the row in which they were read.

    They follow the block before. A tail has fewer tokens, the last ones of a text. number: its
    own, never used again. shapes: of that row. states: the states of recurrent layers after all
    tokens up to its end; None: they are not kept. room: how many blocks without states have as many
    bytes. told: whether it was said that nothing after it is kept.
    """

    number: int
    shapes: Shapes
    layers: dict[int, tuple[Tensor, Tensor]]  # k [K,n,D], v [K,n,Dv], as they are stored
    states: ByScan | None
    room: int
    told: bool = False


class PrefixCache:
    """Holds at most `tokens` tokens in blocks of `block`; the one used longest ago makes room.

    Owners share the room, but none can load what another one stored. `load` writes the bits that
    were stored, which reading the tokens again would compute (see LM.prompt_block): outputs are the
    same with and without it. Tokens are compared themselves, not their hashes. One target, and one
    thread at a time. tell: is called once for each prompt of which only a beginning can be kept.
    tails: also keep what follows a text's last whole block, with the states after it, for texts
    that go on from there. A tail needs the room of a block.
    """

    def __init__(self, tokens: int, block: int = 64, tell: Tell | None = None, tails: bool = False):
        if block < 1 or tokens < block:
            raise InputError(
                f"a prefix cache of {tokens} tokens has no room for a block of {block}: "
                "give it more"
            )
        self.most = tokens // block
        self.block = block
        self.tails = tails
        self.asked = 0  # tokens of all prompts so far
        self.hits = 0  # those of them that were known
        self._blocks = OrderedDict[Key, PrefixBlock]()  # the one used longest ago first
        self._taken = 0  # the room of all of them
        self._count = 0
        self._tell = tell
        self._told = False  # whether it was said of a prompt of which nothing was kept
        self._target: ref[LM] | None = None

    @property
    def used(self) -> float:
        """The share of its room that is in use."""
        return self._taken / self.most

    def attach(self, target: LM) -> None:
        """Use the cache for this target's keys.

        Raises InputError if it was another's, whatever its shapes.
        """
        if self._target is None:
            self._target = ref(target)
        if self._target() is not target:
            raise InputError(
                "this prefix cache was made for another model: give each model its own"
            )

    def load(self, tokens: list[int], row: KVCache, multiple: int = 1, owner: str = "") -> int:
        """Write the known keys of these tokens to an empty cache of one row.

        Returns the number of known tokens, a multiple of `multiple`.
        """
        keys, known = self._usable(tokens, multiple, owner)
        blocks = [self._blocks[key] for key in keys]
        states = (blocks[-1].states if known else None) or {}
        if known and not copied(blocks[: ceil(known / self.block)], known, row):
            known = 0
            states = {}
        self._use(keys)
        if known and len(keys[-1][1]) < self.block:
            # The text that goes on from a tail is kept as well, so the tail is the first to go.
            self._blocks.move_to_end(keys[-1], last=False)
        row.resume(known, states)
        self.asked += len(tokens)
        self.hits += known
        return known

    def known(self, tokens: list[int], multiple: int = 1, owner: str = "") -> int:
        """The number of tokens that `load` would find now; they do not count as used."""
        return self._usable(tokens, multiple, owner)[1]

    def _usable(self, tokens: list[int], multiple: int, owner: str) -> tuple[list[Key], int]:
        """The blocks of these tokens after which reading can go on, and the number of tokens.

        The last block may be a tail.
        """
        keys = self._known(tokens, owner)
        while True:
            tail = self._tail(keys, tokens, owner)
            for found in ([*keys, tail] if tail else [], keys):
                end = (len(found) - 1) * self.block + len(found[-1][1]) if found else 0
                if end and (known := resumable(self._blocks[found[-1]], end, multiple)):
                    return found, known
            if not keys:
                return [], 0
            keys.pop()

    def _tail(self, keys: list[Key], tokens: list[int], owner: str) -> Key | None:
        """The longest tail after these blocks with which the rest of the tokens begins."""
        if not self.tails:
            return None
        before = self._blocks[keys[-1]].number if keys else owner
        begin = len(keys) * self.block
        rest = tuple(tokens[begin : begin + self.block - 1])
        tails = ((before, rest[:count]) for count in range(len(rest), 0, -1))
        return next((key for key in tails if key in self._blocks), None)

    def store(
        self, tokens: list[int], row: KVCache, owner: str = "", complete: bool = True
    ) -> None:
        """Keep the keys and values of the first len(tokens) slots of a cache of one row.

        Whole blocks are kept, and the tail. If there is no memory for them, everything is
        forgotten. complete: False while more of the prompt is to be read.
        """
        try:
            self._store(tokens, row, owner, complete)
        except (MemoryError, RuntimeError):  # torch raises the latter for memory
            self._blocks.clear()
            self._taken = 0

    def _store(self, tokens: list[int], row: KVCache, owner: str, complete: bool) -> None:
        shapes = row.shapes
        whole = len(tokens) // self.block * self.block
        keys = list[Key]()
        kept = list[PrefixBlock]()
        taken = 0
        for begin in range(0, len(tokens) if self.tails else whole, self.block):
            end = min(begin + self.block, len(tokens))
            before = kept[-1].number if kept else owner
            key: Key = before, tuple(tokens[begin:end])
            block = self._blocks.get(key)
            if block is None:
                taken -= self._thin(kept, taken + 1 - self.most)
                if taken >= self.most:
                    break
                block = self._block(begin, end, row, shapes)
                if end > whole and block.states is None:  # no text could go on from there
                    break
                taken -= self._thin(kept, taken + block.room - self.most)
                if taken + block.room > self.most:  # also with all others forgotten
                    break
                self._make_room(block.room)
                self._blocks[key] = block
                self._taken += block.room
            taken += block.room
            self._blocks.move_to_end(key)
            keys.append(key)
            kept.append(block)
        self._use(keys)
        if len(kept) * self.block < whole and complete:
            self._say(len(tokens), kept)

    def _thin(self, kept: list[PrefixBlock], room: int) -> int:
        """Forget states after these blocks until there is more room, but not the last ones.

        Every second of them goes, so that they reach back as far. Returns the room that was made.
        """
        made = 0
        while made < room and (thinned := [block for block in kept if block.states][-2::-2]):
            for block in thinned:
                made += block.room - 1
                block.states = None
                block.room = 1
        self._taken -= made
        return made

    def _block(self, begin: int, end: int, row: KVCache, shapes: Shapes) -> PrefixBlock:
        """A copy of the row's slots [begin, end)."""
        span = slice(begin, end)
        stored = {layer: row.stored(layer, 0) for layer in shapes}
        layers = {
            layer: (k[:, span].clone(), v[:, span].clone()) for layer, (k, v) in stored.items()
        }
        states = row.states_at(end)
        size = sum(k.nbytes + v.nbytes for k, v in layers.values()) // (end - begin) * self.block
        room = 1 + ceil(_nbytes(states or {}) / max(size, 1))
        self._count += 1
        return PrefixBlock(self._count, shapes, layers, states, room)

    def _say(self, count: int, kept: list[PrefixBlock]) -> None:
        """Say once of a prompt that no more of it can be kept than these blocks."""
        told = kept[-1].told if kept else self._told
        if self._tell is None or told:
            return
        if kept:
            kept[-1].told = True
        else:
            self._told = True
        ends = (resumable(block, n * self.block, 1) for n, block in enumerate(kept, 1))
        most = max(ends, default=0)
        self._tell(too_long(count, most, "--prefix-tokens"))

    def _make_room(self, room: int) -> None:
        """Forget the blocks used longest ago.

        This comes before something is added, so that there is no moment with too much.
        """
        while self._blocks and self._taken + room > self.most:
            self._taken -= self._blocks.popitem(last=False)[1].room

    def _known(self, tokens: list[int], owner: str) -> list[Key]:
        """The whole blocks with which these tokens begin."""
        keys = list[Key]()
        before: int | str = owner
        for begin in range(0, len(tokens) - self.block + 1, self.block):
            key: Key = before, tuple(tokens[begin : begin + self.block])
            block = self._blocks.get(key)
            if block is None:
                break
            keys.append(key)
            before = block.number
        return keys

    def _use(self, keys: list[Key]) -> None:
        """Count blocks of a text as used, later ones first, so that these are forgotten first."""
        for key in reversed(keys):
            self._blocks.move_to_end(key)


def resumable(block: PrefixBlock, end: int, multiple: int) -> int:
    """The most tokens, a multiple, after which reading can go on with this block's states.

    end: the number of tokens up to its end. 0: there are no states.
    """
    known = end // multiple * multiple
    if block.states is None or (block.states and known < end):
        return 0
    return known


def too_long(count: int, kept: int, option: str) -> str:
    """The message about a prompt of which only the first tokens can be kept."""
    part = f"none of a prompt's {count} tokens"
    if kept:
        part = f"only the first {kept} of a prompt's {count} tokens"
    return f"{part} can be kept, so its next turn prefills the rest again: give a larger {option}"


def copied(blocks: list[PrefixBlock], known: int, row: KVCache) -> bool:
    """Write the first `known` slots of an empty row, if the blocks have its layers and shapes.

    Returns whether they have; nothing is written otherwise.
    """
    shapes = blocks[0].shapes
    differ = any(block.shapes != shapes for block in blocks)
    if not shapes or differ or row.shapes not in ({}, shapes):
        return False
    row.allocate(shapes)
    for layer in shapes:
        for i, slots in enumerate(row.stored(layer, 0)):
            # One copy, because a copy of each block costs more.
            joined = torch.cat([block.layers[layer][i] for block in blocks], 1)
            slots[:, :known] = joined[:, :known]
    return True


def _nbytes(states: ByScan) -> int:
    return sum(x.nbytes for x in states.values())
