"""The bytes of a saved prompt: a safetensors file with tokens, keys and values, and states."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from longdraft.core.files import parse
from longdraft.core.states import ByScan
from longdraft.ops import coded
from longdraft.prompts.prompt_origin import Origin, bytes_of

FORMAT = "longdraft prompt 1"
DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.uint8: "U8",
}

# k [K,n,D] and v [K,n,Dv] of n tokens, as KVCache.stored has them
Layers = dict[int, tuple[Tensor, Tensor]]
Entry = tuple[str, str, list[int], int]  # name, dtype, shape and bytes of a tensor in the file


@dataclass(frozen=True)
class About:
    """The facts in a file beside its keys.

    begin: the position of its first token; before: the name of the part before that token. seconds:
    how long reading these tokens took; None if part of them was not read but reused. border: of a
    model with recurrent layers, fewer tokens whose states the file has too; 0: it has not.
    """

    count: int
    begin: int = 0
    before: str = ""
    seconds: float | None = None
    time: str = ""
    border: int = 0

    def metadata(self, origin: Origin, checksum: str) -> dict[str, str]:
        numbers = {
            "count": str(self.count),
            "begin": str(self.begin),
            "seconds": json.dumps(self.seconds),
        }
        said = {"before": self.before, "time": self.time, "origin": json.dumps(origin.facts)}
        border = {"border": str(self.border)} if self.border else {}
        return {"format": FORMAT, **numbers, **border, **said, "checksum": checksum}

    @classmethod
    def of(cls, meta: dict[str, str]) -> Self:
        """The facts in a file's metadata.

        Raises ValueError and KeyError.
        """
        seconds = parse(meta["seconds"])
        if seconds is not None and not (isinstance(seconds, float) and 0 <= seconds < 1e9):
            raise ValueError("seconds")
        count = _whole(meta.get("count", "0"))
        begin = _whole(meta.get("begin", "0"))
        border = _whole(meta.get("border", "0"))
        return cls(count, begin, meta["before"], seconds, meta["time"], border)


def size_of(origin: Origin, about: About) -> int:
    """The bytes of a file without its header."""
    return sum(size for *_, size in entries(origin, about))


def header(origin: Origin, about: About, checksum: str) -> bytes:
    """The first bytes of a file, up to its tensors."""
    text_of: dict[str, Any] = {"__metadata__": about.metadata(origin, checksum)}
    offset = 0
    for name, dtype, shape, size in entries(origin, about):
        text_of[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(text_of).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def entries(origin: Origin, about: About) -> list[Entry]:
    """The tensors of a file in their order."""
    shapes = origin.shapes
    bits = origin.bits
    count = about.count
    listed: list[Entry] = [("tokens", "I32", [count], 4 * count)]
    for layer in sorted(shapes):
        heads, *dims, dtype = shapes[layer]
        for kind, dim in zip(("keys", "values"), dims, strict=True):
            stored, width = (torch.uint8, coded.width(dim, bits)) if bits else (dtype, dim)
            shape = [heads, count, width]
            size = heads * count * width * stored.itemsize
            listed.append((f"{kind}.{layer}", DTYPES[stored], shape, size))
    for kind in ("state", *["border"] * bool(about.border)):
        for n, (size, dtype) in origin.states.items():
            listed.append((f"{kind}.{n}", DTYPES[dtype], list(size), prod(size) * dtype.itemsize))
    return listed


def parts(tokens: Sequence[int], layers: Layers, *states: ByScan) -> Iterator[bytes | memoryview]:
    """The bytes of the tensors, a head at a time.

    states: of all tokens, then of those up to the border.
    """
    yield np.asarray(tokens, "<i4").tobytes()
    for layer in sorted(layers):
        for x in layers[layer]:
            for head in x:
                yield bytes_of(head.cpu().contiguous())
    for by_scan in states:
        for n in sorted(by_scan):
            yield bytes_of(by_scan[n].cpu().contiguous())


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise ValueError(text[:20])
    return int(text)
