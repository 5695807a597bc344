"""Reads the GGUF container, versions 2 and 3: metadata and tensors, in one file or in several.

Each is checked against the file before it is used.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from longdraft.errors import InputError
from longdraft.models.gguf import parts
from longdraft.models.gguf.blocks import (
    NAMES,
    PART,
    TYPES,
    Done,
    Make,
    Type,
    kept,
    outside,
)
from longdraft.models.gguf.pages import FilePages
from longdraft.ops.packed import Packed

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING = 8
ARRAY = 9
BOOL = 7
NUMBERS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    BOOL: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
# bytes of a value
LEAST = {
    STRING: 8,
    ARRAY: 12,
    **{kind: np.dtype(code).itemsize for kind, code in NUMBERS.items()},
}
MAX_NAME = 1 << 16  # bytes of a key
MAX_TEXTS = 1 << 22  # in an array
MAX_DEPTH = 3  # of nested arrays
MAX_DIMS = 4
AGAIN = "download or convert it again"


@dataclass(frozen=True)
class Stored:
    """A tensor of a file.

    Its bytes lie within the file and are exactly those that its shape and type take.
    """

    name: str
    type: Type
    shape: tuple[int, ...]  # as in torch: the inputs of a matrix are last
    data: Tensor  # uint8, memory-mapped
    done: Done = kept  # called with each part of the data that has been read

    def read(self, make: Make = outside, turns: bool = False) -> Packed | Tensor:
        """A packed matrix, in memory of `make`, or a tensor of the stored type.

        turns: packed values are put together, see ops/interleaved.py. Raises InputError for numbers
        that are not finite.
        """
        rows = self.data.view(
            prod(self.shape[:-1]), self.shape[-1] // self.type.entries, self.type.size
        )
        made = self.type.unpack(rows, make, self.done, turns)
        if isinstance(made, Packed):
            numbers = [part for part in made.scales.parts.values() if part.is_floating_point()]
        else:
            numbers = [made]
        if not all(bool(n.isfinite().all()) for n in numbers):
            raise InputError(
                f"the GGUF file's tensor {self.name} contains infinity or NaN: {AGAIN}"
            )
        return made if isinstance(made, Packed) else made.view(self.shape)

    def packed(self, make: Make, turns: bool) -> Packed:
        """`read` of a packed matrix."""
        made = self.read(make, turns)
        assert isinstance(made, Packed)
        return made

    def dequantized(self, out: Tensor) -> Tensor:
        """The numbers of a matrix, without memory for all of it as it is stored.

        Raises InputError as `read` does.
        """
        row = self.data.nbytes // self.shape[0]
        count = max(1, PART // row)
        parts = zip(self.data.split(count * row), out.split(count), strict=True)
        for data, numbers in parts:
            part = replace(self, shape=tuple(numbers.shape), data=data).read()
            if isinstance(part, Packed):
                part.dequantized(out=numbers.view(part.shape))
            else:
                numbers.copy_(part)
        return out


@dataclass(frozen=True)
class GGUF:
    """The contents of a file, or of all parts of a split one, of which `path` is any.

    Numeric arrays of its metadata are memory-mapped too.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Stored]

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of the metadata (an integer also counts as a float).

        Raises InputError for one of another type.
        """
        value = self.metadata.get(key, default)
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is float and not isfinite(value):
            raise InputError(f"{self.path}: {key} is {value}: {AGAIN}")
        if value is not default and type(value) is not kind:
            raise InputError(f"{self.path}: {key} is not of type {kind.__name__}: {AGAIN}")
        return value

    def required(self, key: str, kind: type) -> Any:
        if key not in self.metadata:
            raise InputError(f"{self.path} lacks {key} in its metadata: {AGAIN}")
        return self.get(key, kind)


def read(path: Path) -> GGUF:
    """The contents of a GGUF file, or of the split file of which it is a part.

    Raises InputError for a file that is damaged or not supported by longdraft.
    """
    given = _read(path)
    if parts.split_of(path, given.metadata) is None:
        return given
    files = parts.files_of(path)
    parts.check_there(files)
    each = [given if file == path else _read(file) for file in files]
    tensors = parts.joined(files, [x.metadata for x in each], [x.tensors for x in each])
    return GGUF(path, each[0].metadata, tensors)


def _read(path: Path) -> GGUF:
    """The contents of one file."""
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise InputError(
                    f"{path} is not a GGUF file (it does not begin with GGUF): give a .gguf file"
                )
            # writable for torch's sake; nothing is written
            area = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}): give a .gguf file") from None
    return _Reader(path, area).file()


def aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


class _Reader:
    """Reads the values of a file in order.

    `position` is that of the next value; no value is read before it is known to lie within the
    file.
    """

    def __init__(self, path: Path, area: mmap.mmap):
        self.path = path
        self.area = area
        self.position = len(MAGIC)

    def bad(self, fault: str, remedy: str = AGAIN) -> NoReturn:
        raise InputError(f"{self.path}: {fault}: {remedy}")

    def need(self, size: int, item: str) -> int:
        """The position of `size` bytes, which it passes over."""
        begin = self.position
        left = len(self.area) - self.position
        if size > left:
            self.bad(
                f"{item} needs {size} bytes, but {left} are left in the file: it is "
                "truncated or damaged"
            )
        self.position += size
        return begin

    def number(self, code: str, item: str) -> Any:
        return struct.unpack_from(code, self.area, self.need(struct.calcsize(code), item))[0]

    def text(self, item: str, most: int | None = None) -> str:
        size = self.number("<Q", item)
        if most is not None and size > most:
            self.bad(f"{item} has {size} bytes, and at most {most} are allowed: it is damaged")
        begin = self.need(size, item)
        try:
            return self.area[begin : self.position].decode("utf-8")
        except UnicodeDecodeError:
            self.bad(f"{item} is not UTF-8")

    def count(self, item: str, least: int) -> int:
        """A number of things that take at least `least` bytes each."""
        number = self.number("<Q", item)
        left = len(self.area) - self.position
        if number * least > left:
            self.bad(
                f"{item} is {number}, which {left} bytes cannot hold: it is truncated or damaged"
            )
        return number

    def file(self) -> GGUF:
        version = self.number("<I", "its version")
        if version not in VERSIONS:
            big = version in (v << 24 for v in VERSIONS)
            fault = "its numbers are big-endian" if big else f"its GGUF version is {version}"
            self.bad(fault, "convert it to GGUF version 3, little-endian")
        tensors = self.count("its number of tensors", 24)
        metadata: dict[str, Any] = {}
        for _ in range(self.count("its number of metadata entries", 13)):
            key = self.text("the name of a metadata entry", MAX_NAME)
            if key in metadata:
                self.bad(f"the metadata entry {key[:80]!r} appears twice")
            entry = repr(key[:80])
            metadata[key] = self.value(self.number("<I", entry), entry)
        return GGUF(self.path, metadata, self.tensors(tensors, metadata))

    def value(self, kind: int, item: str, depth: int = 0) -> Any:
        if kind == STRING:
            return self.text(item)
        if kind == ARRAY:
            return self.array(item, depth + 1)
        if kind not in NUMBERS:
            self.bad(f"{item} has the unknown value type {kind}")
        return np.frombuffer(self.area, NUMBERS[kind], 1, self.need(LEAST[kind], item))[0].item()

    def array(self, item: str, depth: int) -> Any:
        kind = self.number("<I", item)
        if kind not in LEAST:
            self.bad(f"{item} has the unknown value type {kind}")
        if depth > MAX_DEPTH:
            self.bad(f"{item} is nested too deeply")
        size = self.count(f"the length of {item}", LEAST[kind])
        if kind in NUMBERS:
            return np.frombuffer(
                self.area, NUMBERS[kind], size, self.need(size * LEAST[kind], item)
            )
        if size > MAX_TEXTS:
            self.bad(f"{item} has {size} entries, and at most {MAX_TEXTS} are allowed")
        if kind == STRING:
            return self.texts(item, size)
        return [self.value(kind, item, depth) for _ in range(size)]

    def texts(self, item: str, count: int) -> list[str]:
        """self.text(item), `count` times, but much faster: vocabularies have 100,000 and more."""
        size_of = struct.Struct("<Q").unpack_from
        area = self.area
        last = len(area)
        made = list[str]()
        for _ in range(count):
            begin = self.position + 8
            end = last + 1
            if begin <= last:
                end = begin + size_of(area, self.position)[0]
            if end > last:
                self.text(item)  # raises
            try:
                made.append(area[begin:end].decode("utf-8"))
            except UnicodeDecodeError:
                self.text(item)  # raises
            self.position = end
        return made

    def tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, Stored]:
        infos: dict[str, tuple[Type, tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self.text("the name of a tensor", MAX_NAME)
            if name in infos:
                self.bad(f"the tensor {name[:80]!r} appears twice")
            infos[name] = self.info(f"the tensor {name[:80]!r}")
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
            self.bad(
                f"its general.alignment is {str(alignment)[:40]}, which must be a power of "
                "2 from 8 on"
            )
        begin = aligned(self.position, alignment)
        end = 0
        for name, (_, _, offset, size) in sorted(infos.items(), key=lambda item: item[1][2]):
            tensor = f"the tensor {name[:80]!r}"
            left = len(self.area) - begin
            if offset % alignment or offset < end:
                self.bad(
                    f"{tensor} begins at {offset}, which is not aligned or lies within "
                    "another tensor"
                )
            end = offset + size
            if end > left:
                self.bad(
                    f"{tensor} ends at byte {end} of {max(left, 0)}: the file is truncated "
                    "or damaged"
                )
        pages = FilePages(self.area)
        return {
            name: Stored(name, kind, shape, pages.whole[begin + offset :][:size], pages.give_back)
            for name, (kind, shape, offset, size) in infos.items()
        }

    def info(self, item: str) -> tuple[Type, tuple[int, ...], int, int]:
        """(type, shape, offset, bytes) of the next tensor."""
        dims = self.number("<I", item)
        if not 1 <= dims <= MAX_DIMS:
            self.bad(f"{item} has {dims} dimensions, and 1 to {MAX_DIMS} are allowed")
        shape = struct.unpack_from(f"<{dims}Q", self.area, self.need(8 * dims, item))[::-1]
        number = self.number("<I", item)
        offset = self.number("<Q", item)
        kind = TYPES.get(number)
        if kind is None:
            known = ", ".join(t.name for t in TYPES.values())
            self.bad(
                f"{item} has the type {NAMES.get(number, number)}, which is not supported",
                f"use one of {known}",
            )
        if not all(shape) or shape[-1] % kind.entries:
            size = "x".join(map(str, shape))
            self.bad(
                f"{item} is {size}, but rows of {kind.name} are multiples of "
                f"{kind.entries} from {kind.entries} on"
            )
        return kind, shape, offset, prod(shape) // kind.entries * kind.size
