"""Prompts of a server in a private folder, where they outlive the process.

They are stored in parts, which prompts with one beginning share.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from time import time_ns
from weakref import ref

import numpy as np

from longdraft.core import KVCache
from longdraft.core.states import ByScan
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.prompts.prefix_cache import PrefixCache, Tell, too_long
from longdraft.prompts.prompt_file import NAMES, stored
from longdraft.prompts.prompt_layout import About, Layers, size_of
from longdraft.prompts.prompt_origin import origin_of
from longdraft.prompts.saved_prompt import SavedPrompt, damaged, remove_drafts, write

PART = 256  # tokens of a file, where prompts can be read in any parts
MOST_WAITING = 1 << 30  # bytes of copies that wait to be written; what comes beyond is not kept
MOST_TOLD = 1000  # prompts of which it is remembered that they are too long
EARLIER_NS = 1000  # by which a part counts as used before the one in front of it
HEADER = 1 << 14  # bytes, more than a file has for its header
LOCK = ".lock"


@dataclass(frozen=True)
class PromptPart:
    """Some tokens of a prompt.

    name: of their file, a digest of the origin, the owner and all tokens to their end.
    """

    name: str
    before: str
    begin: int
    tokens: list[int]


class PromptFolder:
    """A PrefixCache's memory with a folder behind it, of at most `limit` bytes.

    The part used longest ago makes room. Owners share the room, but none can load what another one
    stored. A part is loaded only if this target would have computed its bits (prompt_origin.py); a
    damaged one is removed and counts as unknown. Several processes may use one folder. Parts are
    written by a thread, so that nobody waits for the disk. note: the first failure to write, in
    words; nothing is written after it. tell: is called with it, and once for each prompt longer
    than the limit.

    Raises InputError for a folder that others can read, and for a limit with no room for a part.
    """

    def __init__(
        self,
        folder: str | Path,
        target: LM,
        limit: int,
        memory: PrefixCache | None = None,
        tell: Tell = print,
    ):
        self.folder = private(Path(folder))
        self._target = ref(target)
        self.limit = limit
        self.memory = memory
        if memory is not None:
            memory.attach(target)
        self.note = ""
        self.tell = tell
        self.origin = origin_of(target)
        self.part = max(PART, target.checkpoints if self.origin.states else self.origin.block)
        if (size := self._size(self.part)) > limit:
            needs = (
                f"{folder} may hold {limit / 1e6:.0f} MB, and {self.part} tokens need "
                f"{size / 1e6:.0f}"
            )
            raise InputError(f"{needs}: give a larger --cache-dir-mb")
        remove_drafts(self.folder)
        self.asked = 0  # tokens of all prompts so far
        self.hits = 0  # those of them that were known
        self._told = set[str]()  # the last parts that are kept of prompts that are too long
        # when parts that are to be written were used, by name
        self._waiting = dict[str, int]()
        self._lock = Lock()
        self._queue = SimpleQueue[tuple[PromptPart, Layers, ByScan] | None]()
        self._writer = Thread(target=self._write_all, name="longdraft-prompts", daemon=True)
        self._writer.start()

    @property
    def used(self) -> float:
        """The share of its room that is in use: the memory's if it has one, else the folder's."""
        if self.memory is not None:
            return self.memory.used
        return sum(size for *_, size in self._files()) / self.limit

    def attach(self, target: LM) -> None:
        """See PrefixCache.attach."""
        if self._target() is not target:
            raise InputError(
                "this folder of prompts was opened for another model: open it again with this one"
            )

    def load(self, tokens: list[int], row: KVCache, multiple: int = 1, owner: str = "") -> int:
        """See PrefixCache.load."""
        row.clear()
        known = 0 if self.memory is None else self.memory.load(tokens, row, multiple, owner)
        parts = list(self._parts(tokens, owner))
        present = self._present(parts)
        if present * self.part > known:
            for part in parts[known // self.part : present]:
                states = self._read(part, row)
                if states is None:
                    row.wipe(part.begin, part.begin + self.part)
                    has_states = not self.origin.states or row.length[0] == part.begin
                    known = part.begin if has_states else 0
                    row.resume(known, row.states_at(known) or {})
                    break
                known = part.begin + self.part
                row.resume(known, states)
        self._touch(parts[:present])
        self.asked += len(tokens)
        self.hits += known
        return known

    def known(self, tokens: list[int], multiple: int = 1, owner: str = "") -> int:
        """See PrefixCache.known; a damaged part counts until it is read."""
        known = 0 if self.memory is None else self.memory.known(tokens, multiple, owner)
        return max(known, self._present(list(self._parts(tokens, owner))) * self.part)

    def store(
        self, tokens: list[int], row: KVCache, owner: str = "", complete: bool = True
    ) -> None:
        """See PrefixCache.store; the folder gets its parts soon afterward."""
        if self.memory is not None:
            self.memory.store(tokens, row, owner, complete)
        size = self._size(self.part)
        parts = list(self._parts(tokens, owner))
        layers = stored(row, len(tokens)) if parts else {}
        whole = self.limit // size
        if len(parts) > whole and complete:
            self._say(len(tokens), parts[:whole])
        parts = parts[:whole]  # more of them would push out the first ones
        now = time_ns()
        for i, part in enumerate(parts):
            with self._lock:
                if part.name in self._waiting or self._is_there(part):
                    continue
                if (len(self._waiting) + 1) * size > MOST_WAITING or self.note:
                    break  # what follows could not be found without it
                self._waiting[part.name] = now - i * EARLIER_NS  # it may be written before `_touch`
            span = slice(part.begin, part.begin + self.part)
            if (states := row.states_at(span.stop)) is None:
                with self._lock:
                    self._waiting.pop(part.name)
                break  # likewise
            try:
                copies = {
                    layer: (k[:, span].clone(), v[:, span].clone())
                    for layer, (k, v) in layers.items()
                }
            except (MemoryError, RuntimeError):  # torch raises the latter for memory
                with self._lock:
                    self._waiting.pop(part.name)
                break
            self._queue.put((part, copies, states))
        self._touch(parts)

    def _say(self, count: int, kept: list[PromptPart]) -> None:
        """Say once of a prompt that only these parts of it can be kept."""
        if kept[-1].name in self._told:
            return
        if len(self._told) == MOST_TOLD:
            self._told.clear()
        self._told.add(kept[-1].name)
        self.tell(too_long(count, len(kept) * self.part, "--cache-dir-mb"))

    def close(self) -> None:
        """Wait until all that was stored is written."""
        self._queue.put(None)
        self._writer.join()

    def _parts(self, tokens: list[int], owner: str) -> Iterator[PromptPart]:
        """The whole parts of a prompt, each with a name that says all that precedes it."""
        name = sha256(f"{self.origin.digest} {self.part} {owner}".encode()).hexdigest()
        for begin in range(0, len(tokens) - self.part + 1, self.part):
            chunk = tokens[begin : begin + self.part]
            before = name
            name = sha256(bytes.fromhex(name) + np.asarray(chunk, "<i8").tobytes()).hexdigest()
            yield PromptPart(name, before, begin, chunk)

    def _path(self, part: PromptPart) -> Path:
        return self.folder / f"{part.name}.safetensors"

    def _is_there(self, part: PromptPart) -> bool:
        return os.path.exists(self._path(part))

    def _present(self, parts: list[PromptPart]) -> int:
        """How many of a prompt's parts are there, up to the first that is not."""
        return next((i for i, part in enumerate(parts) if not self._is_there(part)), len(parts))

    def _size(self, count: int) -> int:
        return size_of(self.origin, About(count)) + HEADER

    def _read(self, part: PromptPart, row: KVCache) -> ByScan | None:
        """Write a part's keys to its slots; returns the states at its end; None: it was wrong."""
        path = self._path(part)
        try:
            with SavedPrompt.open(path, self.origin) as saved:
                place = (saved.about.begin, saved.about.before)
                if saved.tokens != part.tokens or place != (part.begin, part.before):
                    raise damaged(path, "it has another prompt's tokens")
                return saved.read(row, self.part)
        except (InputError, OSError):
            with suppress(OSError):
                path.unlink()
            return None

    def _touch(self, parts: list[PromptPart]) -> None:
        """Mark parts as used now, each a little later than those after it, which go first."""
        now = time_ns()
        for i, part in enumerate(parts):
            with self._lock:
                if part.name in self._waiting:
                    self._waiting[part.name] = now - i * EARLIER_NS
                    continue
            self._used(part, now - i * EARLIER_NS)

    def _used(self, part: PromptPart, when: int) -> None:
        with suppress(OSError):
            os.utime(self._path(part), ns=(when, when))

    def _write_all(self) -> None:
        """The work of the thread."""
        while (item := self._queue.get()) is not None:
            part, layers, states = item
            try:
                self._write(part, layers, states)
            except Exception as error:  # requests go on; a full disk would fail at every part
                reason = (error.strerror if isinstance(error, OSError) else None) or error
                self.note = (
                    f"cannot write to {self.folder} ({reason}): no more prompts are kept there"
                )
                self.tell(self.note)
            with self._lock:
                when = self._waiting.pop(part.name)
            self._used(part, when)

    def _write(self, part: PromptPart, layers: Layers, states: ByScan) -> None:
        if self.note:
            return
        about = About(self.part, part.begin, part.before)
        with self._alone():
            self._make_room(self._size(self.part))
            write(self._path(part), self.origin, part.tokens, layers, about, states)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from writing to the folder meanwhile, so that its limit holds."""
        handle = os.open(
            self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _make_room(self, size: int) -> None:
        """Remove the parts used longest ago until there is room for this many bytes."""
        files = sorted(self._files())
        total = sum(size for *_, size in files)
        for _, path, length in files:
            if total + size <= self.limit:
                return
            with suppress(FileNotFoundError):  # another process has removed it
                path.unlink()
            total -= length

    def _files(self) -> list[tuple[int, Path, int]]:
        """(time of its last use, path, size) of each file of ours; other files do not count."""
        files = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if NAMES.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        known = entry.stat(follow_symlinks=False)
                        files.append((known.st_mtime_ns, Path(entry.path), known.st_size))
        return files


def private(folder: Path) -> Path:
    """A folder that only its owner can read, made if it is not there.

    Raises InputError for one that others can.
    """
    folder = Path(os.path.realpath(os.path.expanduser(folder)))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        known = folder.stat()
    except OSError as error:
        raise InputError(
            f"cannot use the folder {folder} ({error.strerror}): give another --cache-dir"
        ) from None
    if not stat.S_ISDIR(known.st_mode):
        raise InputError(f"{folder} is not a folder: give another --cache-dir")
    if known.st_uid != os.geteuid() or known.st_mode & 0o077:
        raise InputError(
            f"{folder} is open to others (owner {known.st_uid}, mode "
            f"{known.st_mode & 0o777:o}), and prompts are"
            f" private: run chmod 700 {folder}, or give another --cache-dir"
        )
    return folder
