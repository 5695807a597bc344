"""Keys and values of text that was read before, so that a later prompt that begins with it need not be read again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from longdraft.core import KVCache
from longdraft.errors import InputError

Key = tuple[int | str, tuple[int, ...]]  # the number of the block before, or the owner of a first one; the tokens


class Prefixes(Protocol):
    """Where a session keeps keys and values of prompts. asked, hits: tokens of all prompts, and those that were known.

    used: the share of its room that is in use. load, store: see PrefixCache.
    """

    asked: int
    hits: int

    @property
    def used(self) -> float: ...

    def load(self, tokens: list[int], row: KVCache, multiple: int = 1, owner: str = "") -> int: ...

    def store(self, tokens: list[int], row: KVCache, owner: str = "") -> None: ...


@dataclass
class Block:
    """The keys and values of `block` tokens that follow the block before. number: its own, never used again."""

    number: int
    layers: dict[int, tuple[Tensor, Tensor]]  # k [K,block,D], v [K,block,Dv], as they are stored


class PrefixCache:
    """Holds at most `tokens` tokens in blocks of `block`; the one that was used longest ago makes room.

    Owners share the room, but none finds what another one stored. What `load` writes are the bits that were stored,
    which reading the tokens again would compute (see LM.prompt_block): outputs are the same with and without it. Tokens
    are compared themselves, not their hashes. One session, and one thread at a time.
    """

    def __init__(self, tokens: int, block: int = 64):
        if block < 1 or tokens < block:
            raise InputError(f"a prefix cache of {tokens} tokens has no room for a block of {block}: give it more")
        self.most, self.block = tokens // block, block
        self.asked = self.hits = 0  # tokens of all prompts so far, and those that were known
        self._blocks = OrderedDict[Key, Block]()  # the one used longest ago first
        self._shapes: dict[int, tuple[int, int, int, torch.dtype]] = {}  # those of a cache
        self._count = 0

    @property
    def used(self) -> float:
        """The share of its room that is in use."""
        return len(self._blocks) / self.most

    def load(self, tokens: list[int], row: KVCache, multiple: int = 1, owner: str = "") -> int:
        """Write what is known of these tokens to an empty cache of one row -> how many tokens that is, a multiple."""
        blocks = self._known(tokens, owner)
        known = len(blocks) * self.block // multiple * multiple
        row.allocate(self._shapes if known else {})
        for layer in self._shapes if known else ():
            for i, to in enumerate(row.stored(layer, 0)):
                # One copy, because a copy of each block costs more.
                to[:, :known] = torch.cat([b.layers[layer][i] for b in blocks], 1)[:, :known]
        row.length.fill_(known)
        self.asked, self.hits = self.asked + len(tokens), self.hits + known
        return known

    def store(self, tokens: list[int], row: KVCache, owner: str = "") -> None:
        """Keep the keys and values of the first len(tokens) slots of a cache of one row, whole blocks of them.

        Where there is no memory for them, everything is forgotten.
        """
        try:
            self._store(tokens, row, owner)
        except (MemoryError, RuntimeError):  # torch raises the latter for memory
            self._blocks.clear()

    def _store(self, tokens: list[int], row: KVCache, owner: str) -> None:
        known = self._known(tokens, owner)
        before = known[-1].number if known else owner
        self._shapes = row.shapes
        for index in range(len(known), min(len(tokens) // self.block, self.most)):
            while len(self._blocks) >= self.most:  # before it is added, so that there is no moment with too many
                self._blocks.popitem(last=False)
            span = slice(index * self.block, (index + 1) * self.block)
            stored = {layer: row.stored(layer, 0) for layer in row.layers}
            layers = {layer: (k[:, span].clone(), v[:, span].clone()) for layer, (k, v) in stored.items()}
            self._count += 1
            self._blocks[before, tuple(tokens[span])] = Block(self._count, layers)
            before = self._count
        self._known(tokens, owner)  # a block is used no less recently than those after it

    def _known(self, tokens: list[int], owner: str) -> list[Block]:
        """The blocks that these tokens begin with. They count as used, later ones first, so that they go first."""
        prefix: list[tuple[Key, Block]] = []
        before: int | str = owner
        for index in range(len(tokens) // self.block):
            key: Key = before, tuple(tokens[index * self.block : (index + 1) * self.block])
            block = self._blocks.get(key)
            if block is None:
                break
            prefix.append((key, block))
            before = block.number
        for key, _ in reversed(prefix):
            self._blocks.move_to_end(key)
        return [block for _, block in prefix]
