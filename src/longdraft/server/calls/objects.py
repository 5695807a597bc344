"""Calls written as JSON objects: {"name": ..., "arguments": {...}}, or with "parameters", or with
the name as "function".
"""

from __future__ import annotations

import re
from json import dumps, loads
from typing import Any

from longdraft.constraints import Schemas
from longdraft.server.calls.answer_reader import AnswerReader, Steps
from longdraft.server.calls.format_marks import FIRST, LAST
from longdraft.server.calls.value import Value

OPEN = r"\s*(\{{1,2})\s*"
NAME = r'"name"\s*:\s*"([^"\\]*)"'
HEAD = re.compile(
    rf"""{OPEN}{NAME}\s*,\s*"(?:arguments|parameters)"\s*:\s*(\{{?)(?=\{{\s*["'}}])"""
)
NAMED = re.compile(OPEN + NAME)
KEYS = {"name", "arguments", "parameters", "type", "id", "function"}
OTHER = rf'"(?!(?:{"|".join(sorted(KEYS))})")[^"]*"'  # a key that no call has
DATA = re.compile(
    rf'{OPEN}(?:{OTHER}|{NAME}\s*,\s*{OTHER}|"type"\s*:\s*(?:[^"\s]|"(?!function")[^"]*"))'
)
BEGUN = re.compile(rf'\s*(?:$|\{{{{1,2}}\s*(?:$|"[^{FIRST}-{LAST}]*$))')
FIRST_KEY = re.compile(r'\{\s*"([^"]*)("?)')
MAX_OBJECT_START = 1024  # characters in which an object shows what it is
OF_SCHEMAS = {"type", "properties", "required", "$schema", "$defs", "description", "title"}


def read_object(reader: AnswerReader, begin: int, marked: bool) -> Steps[bool]:
    """Read an object that begins in the reader's text, if it calls a function.

    False: it does not; nothing is taken. What precedes a call is dropped with it. marked: a mark
    says that it is a call; otherwise it must have arguments, and nothing that calls do not have. A
    function's definition is no call. Arguments are given out as they come if the name comes first,
    as models write it; otherwise once the object is complete.
    """
    value = Value(reader.ending)
    said = ""
    seen = begin
    while True:
        text = reader.rest[begin : begin + MAX_OBJECT_START]
        if head := HEAD.match(text):
            if head[2] not in reader.schemas:
                return False
            defines = _defines(reader, head[2], text[head.end() :])
            if defines is None and (yield from reader.more()):
                continue
            if defines:
                return False
            reader.drop(begin + head.end())
            reader.call(head[2])
            yield from reader.arguments()
            yield from _close(reader, len(head[1]) + len(head[3]))
            return True
        named = NAMED.match(text)
        if (
            (named and named[2] not in reader.schemas)
            or (not marked and DATA.match(text))
            or not BEGUN.match(text)
        ):
            return False
        if seen == begin and (opened := re.match(OPEN, text)) and len(opened[1]) == 2:
            seen += opened.end() - 1  # of doubled braces, only one is read
        more, used = value.feed(reader.rest[seen:])
        said = said + more
        seen = seen + used
        if not value.done and (yield from reader.more()):
            continue
        if reader.cut and not value.done:
            return False
        ended = not value.done
        if not _whole(reader, said + value.close(), seen, marked and not ended):
            return False
        yield from reader.skip_all(("}",))
        return True


def calls_offered(reader: AnswerReader, begin: int) -> bool:
    """Tells whether an object at a place may be a call that begins with an offered name."""
    text = reader.rest[begin : begin + MAX_OBJECT_START]
    named = NAMED.match(text)
    if named is None:
        return bool(BEGUN.match(text)) and not DATA.match(text)
    return named[2] in reader.schemas and not DATA.match(text)


def _defines(reader: AnswerReader, name: str, arguments: str) -> bool | None:
    """Tells whether the arguments of a call are in fact the function's schema.

    None: that is not known yet.
    """
    key = FIRST_KEY.match(arguments)
    if key is None:
        return False
    schema = reader.schemas[name]
    words = OF_SCHEMAS - set(Schemas(schema).names(schema))
    if key[2]:
        return key[1] in words
    may_become_word = any(word.startswith(key[1]) for word in words)
    return None if may_become_word else False


def _whole(reader: AnswerReader, text: str, end: int, marked: bool) -> bool:
    """Read a whole object as a call. marked: it may leave out the arguments."""
    try:
        call: Any = loads(text)
        extra = call.keys() - KEYS
        if isinstance(call.get("function"), dict):
            call = call["function"]
        name = call["name"] if "name" in call else call["function"]
        bare = marked and "description" not in call  # which a function's definition has
        given = call.get("arguments", call.get("parameters", {} if bare else None))
        if isinstance(given, str):
            given = loads(given, strict=False)
        elif bare and given is None:
            given = {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    if not isinstance(name, str) or name not in reader.schemas or not isinstance(given, dict):
        return False
    arguments = dumps(given, ensure_ascii=False)
    if _defines(reader, name, arguments) or (not marked and (extra or call.keys() - KEYS)):
        return False
    reader.drop(end)
    reader.call(name)
    reader.add("arguments", arguments)
    return True


def _close(reader: AnswerReader, depth: int) -> Steps[None]:
    """Drop the rest of an object whose arguments were read.

    That is other fields, and as many braces as were opened.
    """
    begin = yield from reader.space()
    if begin is not None and reader.rest[begin] == ",":
        reader.drop(begin + 1)
        value = Value()
        value.feed("{")
        while not value.done:
            reader.drop(value.feed(reader.rest)[1])
            if not value.done and not (yield from reader.more()):
                return
        depth -= 1
    while depth and (yield from reader.skip("}")):
        depth -= 1


def read_objects(reader: AnswerReader, begin: int, marked: bool) -> Steps[bool]:
    """Read one object, or several in a list or after each other.

    False: there is none; nothing is taken.
    """
    first = yield from reader.space(begin)
    listed = first is not None and reader.rest[first] == "["
    if first is None or not (yield from read_object(reader, first + listed, marked)):
        return False
    while not reader.full and (first := (yield from reader.space())) is not None:
        first += reader.rest[first] in ",;"
        reader.opening = reader.taken
        if not (yield from read_object(reader, first, marked or listed)):
            break
    if listed and not reader.full:
        yield from reader.skip("]")
    return True
