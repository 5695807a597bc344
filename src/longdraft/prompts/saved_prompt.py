"""The file of a saved prompt: tokens, their keys and values, and facts about their origin."""

from __future__ import annotations

import os
import stat
import struct
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from torch import Tensor

from longdraft.core import KVCache
from longdraft.core.files import parse
from longdraft.core.provenance import now
from longdraft.core.states import ByScan
from longdraft.errors import InputError
from longdraft.prompts.prompt_layout import FORMAT, About, Layers, header, parts, size_of
from longdraft.prompts.prompt_origin import Origin, bytes_of

MOST_HEADER = 1 << 22  # bytes; a model of 1,000 layers needs 200 KB
PIECE = 1 << 20  # bytes that are read at once where they are only checked
DRAFT = ".writing-"  # how the names of incomplete files begin
OLD_S = 3600.0  # age at which such a file counts as left behind
NO_SUM = "0" * 64
NO_STATES: ByScan = {}


def write(
    path: Path,
    origin: Origin,
    tokens: Sequence[int],
    layers: Layers,
    about: About | None = None,
    states: ByScan = NO_STATES,
    border: ByScan = NO_STATES,
) -> None:
    """Write a file that is there as a whole or not at all, readable by its owner alone.

    Raises OSError. The last of several writers wins. layers: of all tokens of the file, as many as
    `tokens`. states: those of recurrent layers after these tokens and those before the file's.
    border: those after the tokens up to about.border.
    """
    about = about or About(len(tokens), time=now())
    handle, draft = tempfile.mkstemp(prefix=DRAFT, dir=path.parent)  # for its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            digest = sha256()
            first = header(origin, about, NO_SUM)
            for part in (first, *parts(tokens, layers, states, border)):
                digest.update(part)
                file.write(part)
            file.seek(0)
            file.write(header(origin, about, digest.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    _sync(path.parent)


def remove_drafts(folder: Path) -> None:
    """Remove the files that killed writers have left behind."""
    for left in folder.glob(f"{DRAFT}*"):
        with suppress(OSError):
            if time() - left.stat().st_mtime > OLD_S:
                left.unlink()


class SavedPrompt:
    """An open file with the header, size and tokens that a target of this origin would write.

    Its keys may be used once `read` has returned: only then is the checksum known to be right.
    """

    def __init__(
        self, path: Path, origin: Origin, file: BinaryIO, about: About, raw: bytes, checksum: str
    ):
        self.path = path
        self.origin = origin
        self.about = about
        self._file = file
        self._raw = raw
        self._checksum = checksum
        data = file.read(4 * about.count)
        if len(data) != 4 * about.count:
            raise self._damaged("it is truncated")
        self._data = data
        self.tokens = np.frombuffer(data, "<i4").tolist()

    @classmethod
    def open(cls, path: Path, origin: Origin) -> Self:
        """Open a file, and check all but its checksum.

        Raises FileNotFoundError, and InputError with the difference for a file that is not this
        target's. Nothing is believed: memory is taken only for sizes that have been compared with
        the file's own.
        """
        file = _opened(path)
        try:
            return cls(path, origin, file, *_checked(path, origin, file))
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def check_whole(self) -> None:
        """Raises InputError for a part of a prompt that is not its beginning."""
        if self.about.begin:
            raise InputError(
                f"{self.path} has the middle of a prompt: give another file for the prompt"
            )

    def read(self, row: KVCache, count: int) -> ByScan:
        """Write the keys of the first `count` tokens to a one-row cache, from slot about.begin on.

        Returns the states after these tokens if they end at its border, else those after all its
        tokens. All of the file is read, for its checksum. The row's length is unchanged. Raises
        InputError if the file is damaged.
        """
        digest = sha256(header(self.origin, self.about, NO_SUM))
        digest.update(self._data)
        begin = self.about.begin
        all_ = self.about.count
        row.allocate(self.origin.shapes, begin + count)
        for layer in sorted(self.origin.shapes):
            for x in row.stored(layer, 0):
                for head in x:
                    self._fill(head[begin : begin + count], digest)
                    self._skip((all_ - count) * head.shape[1] * head.element_size(), digest)
        states = {all_: self._states(row, digest)}
        if self.about.border:
            states[self.about.border] = self._states(row, digest)
        if self._file.read(1) or digest.hexdigest() != self._checksum:
            raise self._damaged("its checksum is wrong")
        return states.get(count, states[all_])

    def _states(self, row: KVCache, digest: Any) -> ByScan:
        states = dict[int, Tensor]()
        for n, (shape, dtype) in self.origin.states.items():
            states[n] = torch.empty(shape, dtype=dtype, device=row.length.device)
            self._fill(states[n], digest)
        return states

    def _fill(self, slots: Tensor, digest: Any) -> None:
        """Read the numbers of these slots [n,D] of a head, or of a state."""
        if not slots.numel():
            return
        buffer = slots if slots.is_cpu else torch.empty_like(slots, device="cpu")
        data = bytes_of(buffer)
        if self._file.readinto(data) != len(data):  # type: ignore[attr-defined]
            raise self._damaged("it is truncated")
        digest.update(data)
        if buffer is not slots:
            slots.copy_(buffer)

    def _skip(self, size: int, digest: Any) -> None:
        """Read bytes for the checksum alone."""
        while size:
            data = self._file.read(min(size, PIECE))
            if not data:
                raise self._damaged("it is truncated")
            digest.update(data)
            size -= len(data)

    def _damaged(self, why: str) -> InputError:
        return damaged(self.path, why)


def damaged(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is damaged ({why}): delete it, so that the prompt is read and kept again"
    )


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of first tokens that two texts share."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differ[0]) if len(differ) else n


def _opened(path: Path) -> BinaryIO:
    """An open file.

    Raises FileNotFoundError, and InputError for any other path that is not a readable file; a pipe
    is not waited for.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror}): give another file for the prompt"
        ) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InputError(f"{path} is not a file: give a file for the prompt")
    return os.fdopen(handle, "rb")


def _checked(path: Path, origin: Origin, file: BinaryIO) -> tuple[About, bytes, str]:
    """The facts in a file, its header and its checksum.

    Raises InputError.
    """
    raw, meta = _read_header(path, file)
    if meta.get("format") != FORMAT:
        raise InputError(
            f"{path} is a saved prompt in the format {meta.get('format', '')[:40]!r}, not "
            f"{FORMAT!r}"
        )
    try:
        facts = parse(meta["origin"])
        about = About.of(meta)
    except (ValueError, KeyError):
        raise damaged(path, "its header is not what longdraft writes") from None
    if not isinstance(facts, dict) or not all(isinstance(v, str) for v in facts.values()):
        raise damaged(path, "its header is not what longdraft writes")
    if difference := origin.difference(facts):
        raise InputError(
            f"{path} was made with {difference}: delete it, or give another file for the prompt"
        )
    if not 0 < about.count <= origin.positions or about.begin + about.count > origin.positions:
        raise damaged(
            path,
            f"it has {about.count} tokens from {about.begin} on, and the model {origin.positions}",
        )
    if about.border and not (origin.states and about.border < about.count):
        raise damaged(path, f"it has {about.count} tokens, and states of {about.border}")
    checksum = meta.get("checksum", "")[:64]
    if header(origin, about, checksum) != raw:
        raise damaged(path, "its header is not what longdraft writes")
    size = os.fstat(file.fileno()).st_size
    if size != len(raw) + size_of(origin, about):
        raise damaged(
            path, f"it has {size} bytes, and should have {len(raw) + size_of(origin, about)}"
        )
    return about, raw, checksum


def _read_header(path: Path, file: BinaryIO) -> tuple[bytes, dict[str, str]]:
    """The header, with its length before it, and its metadata.

    Raises InputError for a file that is no saved prompt.
    """
    no = InputError(
        f"{path} is not a prompt that longdraft has saved: give another file for the prompt"
    )
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else MOST_HEADER + 1
    if length > min(MOST_HEADER, os.fstat(file.fileno()).st_size - 8):
        raise no
    text = file.read(length)
    try:
        header = parse(text.decode())
    except ValueError:
        raise no from None
    meta = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(meta, dict) or "format" not in meta:
        raise no
    if not all(isinstance(value, str) for value in meta.values()):
        raise no
    return first + text, meta


def _sync(folder: Path) -> None:
    """Make a renaming durable."""
    with suppress(OSError):  # some file systems cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
