"""Calls written as JSON objects: {"name": ..., "arguments": {...}}, or with "parameters" instead."""

from __future__ import annotations

import re
from json import dumps, loads
from typing import Any

from longdraft.server.calls.marks import FIRST, LAST
from longdraft.server.calls.reader import Reader, Steps
from longdraft.server.calls.value import Value

HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{\s*["}])')
NAMED = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"')
KEYED = re.compile(r'\s*\{\s*"(?!(?:name|arguments|parameters|type|id|function)")[^"]*"')
BEGUN = re.compile(rf'\s*(?:$|\{{\s*(?:$|"[^{FIRST}-{LAST}]*$))')


def read_object(reader: Reader, begin: int) -> Steps[bool]:
    """Read an object that begins in the reader's text, where it calls a function. False: it does not; nothing is taken.

    What precedes it is dropped with it. Arguments are given out as they come where the name comes first, as models
    write it, and once the object is complete where it does not.
    """
    value, seen = Value(), begin
    while True:
        text = reader.rest[begin:]
        if head := HEAD.match(text):
            if head[1] not in reader.schemas:
                return False
            reader.drop(begin + head.end())
            reader.call(head[1])
            yield from reader.arguments()
            yield from _close(reader)
            return True
        seen += value.feed(reader.rest[seen:])[1]
        if value.done:
            return _whole(reader, begin, seen)
        named = NAMED.match(text)
        if (named and named[1] not in reader.schemas) or KEYED.match(text) or not BEGUN.match(text):
            return False
        if not (yield from reader.more()):
            return False


def _whole(reader: Reader, begin: int, end: int) -> bool:
    try:
        found: Any = loads(reader.rest[begin:end], strict=False)
        name = found["name"]
        given = found.get("arguments", found.get("parameters")) or {}
        given = loads(given) if isinstance(given, str) else given
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    if not isinstance(name, str) or name not in reader.schemas or not isinstance(given, dict):
        return False
    reader.drop(end)
    reader.call(name)
    reader.add("arguments", dumps(given, ensure_ascii=False))
    return True


def _close(reader: Reader) -> Steps[None]:
    """Drop the rest of an object whose arguments were read: its end, and other fields before that."""
    begin = yield from reader.space()
    if begin is not None and reader.rest[begin] in ",}":
        value = Value(depth=1)
        while not value.done:
            reader.drop(value.feed(reader.rest)[1])
            if not value.done and not (yield from reader.more()):
                return


def read_objects(reader: Reader, begin: int, separator: str = ",") -> Steps[bool]:
    """Read one object, or several in a list or with separators between them. False: there is none; nothing is taken."""
    at = yield from reader.space(begin)
    listed = at is not None and reader.rest[at] == "["
    if at is None or not (yield from read_object(reader, at + listed)):
        return False
    separator = "," if listed else separator
    while not reader.full and (yield from reader.skip(separator)):
        if not (yield from read_object(reader, 0)):
            reader.add("content", separator)
            break
    if listed and not reader.full:
        yield from reader.skip("]")
    return True
