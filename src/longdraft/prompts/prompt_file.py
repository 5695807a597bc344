"""Prompts that were read once: their keys and values, kept in a file each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from longdraft.core import KVCache, PromptSpec
from longdraft.core.provenance import now, processor
from longdraft.core.states import ByScan
from longdraft.drafters.step import clock
from longdraft.models.lm import LM
from longdraft.prompts.prompt_layout import About, Layers
from longdraft.prompts.prompt_origin import Origin, origin_of
from longdraft.prompts.saved_prompt import (
    DRAFT,
    NO_STATES,
    SavedPrompt,
    common,
    remove_drafts,
    write,
)

NOTHING = PromptSpec()
# of files in a folder of prompts
NAMES = re.compile(rf"[0-9a-f]{{64}}\.safetensors|{re.escape(DRAFT)}.*")


class Loaded(NamedTuple):
    """The number of a prompt's tokens that were loaded, and the seconds that reading all had taken.

    seconds: None if the file has not all of them, or if the time is not known.
    """

    count: int
    seconds: float | None = None


class Keeper(Protocol):
    """A place where prompts are kept."""

    def load(self, tokens: list[int], row: KVCache, keep: PromptSpec = NOTHING) -> Loaded:
        """Write the known keys of these tokens to an empty cache of one row.

        The rest must be read after it. keep: states that reading the rest is to capture, so that as
        many tokens are left to be read. Raises InputError.
        """
        ...

    def store(self, tokens: list[int], row: KVCache, seconds: float | None = None) -> None:
        """Keep the first slots of a cache of one row, into which these tokens were read.

        seconds: see About.
        """
        ...


class PromptFile:
    """The keys and values of one prompt in a file.

    Another prompt with the same beginning reads only the rest, and replaces it. A file is loaded
    only if this target would have computed its bits: for the same model, dtype, layout and build
    (prompt_origin.py). A file that cannot be loaded raises InputError and is not replaced.

    whole: load only a file with all of a prompt, and a time. note: why a prompt could not be
    written, in words.
    """

    def __init__(
        self, path: str | Path, target: LM, origin: Origin | None = None, whole: bool = False
    ):
        self.path = Path(path)
        self.whole = whole
        self.note = ""
        self.origin = origin_of(target) if origin is None else origin
        self._target = target
        self._held = list[int]()  # the tokens that the file had when it was last read or written

    def load(self, tokens: list[int], row: KVCache, keep: PromptSpec = NOTHING) -> Loaded:
        """See Keeper.load."""
        row.clear()
        if self._at_borders:
            row.keep_checkpoints(self.origin.block)
        try:
            with SavedPrompt.open(self.path, self._origin_of(row)) as saved:
                saved.check_whole()
                complete = saved.tokens == tokens
                if self.whole and not (complete and saved.about.seconds is not None):
                    return Loaded(0)
                self._held = saved.tokens
                count = self._usable(
                    saved, common(saved.tokens, tokens), complete, len(tokens) - keep.count
                )
                if count:
                    row.resume(count, saved.read(row, count))
        except FileNotFoundError:
            return Loaded(0)
        return Loaded(count, saved.about.seconds if complete else None)

    def _origin_of(self, row: KVCache) -> Origin:
        return self.origin.under(self._target.rotation(int(row.planned[0])))

    def _usable(self, saved: SavedPrompt, shared: int, complete: bool, most: int) -> int:
        """The number of these shared tokens whose keys have the bits of a prompt read whole."""
        count = max(min(shared, most), 0)
        if complete and count == shared:
            return count
        if self.origin.states:
            ends = (saved.about.border, saved.about.count)
            usable = [n for n in ends if n <= count and n % self.origin.block == 0]
            return max(usable, default=0)
        return count - count % self.origin.block

    @property
    def _at_borders(self) -> bool:
        """Tells whether a longer prompt can only go on from states at a block's last border."""
        return bool(self.origin.states) and self.origin.block > 1 and not self.whole

    def _border(self, row: KVCache, count: int) -> tuple[int, ByScan]:
        """The last border before the end of these tokens with states in the row, and the states.

        0: there is none.
        """
        if not self._at_borders:
            return 0, NO_STATES
        block = self.origin.block
        for n in range((count - 1) // block * block, 0, -block):
            if (states := row.states_at(n)) is not None:
                return n, states
        return 0, NO_STATES

    def store(self, tokens: list[int], row: KVCache, seconds: float | None = None) -> None:
        """See Keeper.store; nothing is written if the file has these tokens already."""
        if not tokens or self._held[: len(tokens)] == tokens:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            remove_drafts(self.path.parent)
            states = row.states_at(len(tokens))
            if states is None:
                return
            border, earlier = self._border(row, len(tokens))
            about = About(len(tokens), 0, "", seconds, now(), border)
            write(
                self.path,
                self._origin_of(row),
                tokens,
                stored(row, len(tokens)),
                about,
                states,
                earlier,
            )
        except OSError as error:
            self.note = f"cannot keep the prompt in {self.path} ({error.strerror or error})"
        else:
            self._held = list(tokens)


class PromptFiles:
    """A folder with a file for each prompt, with the time that reading it took here.

    A prompt is loaded only as a whole. Prompts that were read with other threads or on another
    processor have their own files.
    """

    def __init__(self, folder: str | Path, target: LM):
        self.folder = Path(folder)
        self.target = target
        self.origin = origin_of(target)
        self.note = ""
        self._files = dict[str, PromptFile]()  # those that were used
        self._place = json.dumps(
            [self.origin.digest, torch.get_num_threads(), processor(target.device)]
        )

    def load(self, tokens: list[int], row: KVCache, keep: PromptSpec = NOTHING) -> Loaded:
        """See Keeper.load."""
        return self._file(tokens, row).load(tokens, row, keep)

    def store(self, tokens: list[int], row: KVCache, seconds: float | None = None) -> None:
        """See Keeper.store."""
        file = self._file(tokens, row)
        file.store(tokens, row, seconds)
        self.note = file.note or self.note

    def _file(self, tokens: list[int], row: KVCache) -> PromptFile:
        rotation = self.target.rotation(int(row.planned[0]))
        place = [self._place, rotation] if rotation else [self._place]
        name = sha256(json.dumps([*place, tokens]).encode()).hexdigest()
        path = self.folder / f"{name}.safetensors"
        return self._files.setdefault(name, PromptFile(path, self.target, self.origin, whole=True))


@dataclass(frozen=True)
class PromptFill:
    """The way in which a prompt came into a cache.

    known: tokens that were loaded, not read. seconds: how long this took. whole_s: how long reading
    all of it takes, as measured when that was done last; None if that is not known.
    """

    known: int
    seconds: float
    whole_s: float | None


def stored(row: KVCache, count: int) -> Layers:
    """The first `count` slots of a cache of one row, over the same memory."""
    pairs = {layer: row.stored(layer, 0) for layer in row.layers}
    return {layer: (k[:, :count], v[:, :count]) for layer, (k, v) in pairs.items()}


def read_prompt(
    target: LM,
    tokens: list[int],
    row: KVCache,
    kept: Keeper | None,
    report: Callable[[int], None] | None = None,
    keep: PromptSpec | None = None,
) -> tuple[dict[int, Tensor], PromptFill]:
    """Fill an empty cache of one row with a prompt's tokens: load the kept ones, read the rest.

    report, keep and the states that are returned: see LM.prefill.
    """
    keep = keep or PromptSpec()
    begin = clock(target.device)
    known, once = Loaded(0) if kept is None else kept.load(tokens, row, keep)
    if known and report is not None:
        report(known)
    states = target.prefill(tokens[known:], row, report=report, keep=keep)
    seconds = clock(target.device) - begin
    return states, PromptFill(known, seconds, once if known else seconds)


def store_prompts(
    kept: Keeper | None, prompts: list[list[int]], cache: KVCache, reads: list[PromptFill]
) -> None:
    """Keep all tokens but the last of each prompt that was read; a prompt that comes twice once."""
    for b, (prompt, read) in enumerate(zip(prompts, reads, strict=True)):
        if kept is not None and prompts.index(prompt) == b:
            kept.store(prompt[:-1], cache.row(b), read.whole_s)
