"""Split GGUF files: one model in PREFIX-00001-of-00003.gguf and so on, in one folder.

The first part has the metadata of the model, and each part has some of its tensors. The statements
of a part are compared with its name, with the other parts and with their tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from longdraft.errors import InputError

NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(\.(?i:gguf))", re.DOTALL)
MAX_PARTS = 65535  # files have the number in 16 bits
MAX_TENSORS = (1 << 31) - 1
NUMBER = "split.no"
COUNT = "split.count"
TENSORS = "split.tensors.count"
# metadata that may differ between the parts of a model
OWN = {NUMBER, "general.alignment"}
AGAIN = "download all its parts again"

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """The place of a part in its model, which is also that in its name.

    number: from 0. tensors: of all parts together.
    """

    number: int
    count: int
    tensors: int


def files_of(path: Path) -> list[Path]:
    """All parts of a model in order, by the name of one of them; a whole file is its only part."""
    named = NAME.fullmatch(path.name)
    count = int(named[3]) if named else 1
    if named is None or count < 2:
        return [path]
    return [path.with_name(_name(named[1], i, count, named[4])) for i in range(count)]


def check_there(files: Sequence[Path]) -> None:
    """Raises InputError for a part that is missing."""
    missing = next((i for i, file in enumerate(files) if not file.is_file()), None)
    if missing is not None:
        raise InputError(
            f"{files[missing]} is missing, part {missing + 1} of {len(files)} of this model: put "
            "all parts into one folder"
        )


def split_of(path: Path, metadata: Mapping[str, Any]) -> Split | None:
    """The place of a part in its model; None: the file is whole.

    Raises InputError unless the metadata agree with the file's name.
    """
    named = NAME.fullmatch(path.name)
    by_name = (int(named[2]), int(named[3])) if named else (1, 1)
    count = _number(path, metadata, COUNT, MAX_PARTS) if COUNT in metadata else 1
    if count < 2:
        if by_name[1] > 1:
            raise InputError(
                f"{path} is part {by_name[0]} of {by_name[1]} by its name, but whole by its "
                "metadata: rename it, or put the right part in its place"
            )
        return None
    number = _number(path, metadata, NUMBER, count - 1)
    if by_name != (number + 1, count):
        right = _name(named[1] if named else "NAME", number, count, ".gguf")
        raise InputError(
            f"{path} is part {number + 1} of {count} by its metadata, but not by its name: name "
            f"it {right}, beside the other parts of its model"
        )
    return Split(number, count, _number(path, metadata, TENSORS, MAX_TENSORS))


def joined(
    files: Sequence[Path],
    metadata: Sequence[Mapping[str, Any]],
    tensors: Sequence[Mapping[str, T]],
) -> dict[str, T]:
    """The tensors of all parts. Raises InputError unless the parts make up one model."""
    splits = [split_of(file, own) for file, own in zip(files, metadata, strict=True)]
    made: dict[str, T] = {}
    for i, (file, own) in enumerate(zip(files, tensors, strict=True)):
        key = _difference(metadata[0], metadata[i])
        if key is not None:
            raise InputError(
                f"{file} is of another model than {files[0].name}, because {key[:80]!r} differs: "
                "use parts of one model"
            )
        twice = next((name for name in own if name in made), None)
        if twice is not None:
            raise InputError(
                f"{file}: the tensor {twice[:80]!r} is in an earlier part too: {AGAIN}"
            )
        made.update(own)
    first = splits[0]
    if first is None or first.tensors != len(made):
        stated = 0 if first is None else first.tensors
        raise InputError(
            f"the parts of {files[0]} have {len(made)} tensors, but {stated} by their metadata: "
            f"{AGAIN}"
        )
    return made


def _name(prefix: str, number: int, count: int, suffix: str) -> str:
    return f"{prefix}-{number + 1:05}-of-{count:05}{suffix}"


def _number(path: Path, metadata: Mapping[str, Any], key: str, most: int) -> int:
    value = metadata.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise InputError(f"{path}: {key} is not a number from 0 to {most}: {AGAIN}")
    return value


def _difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """An entry that two parts have, with different values, if there is one.

    Many writers give later parts the entries of the split alone.
    """
    both = sorted((first.keys() & other.keys()) - OWN)
    return next((key for key in both if not _equal(first[key], other[key])), None)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and a == b
