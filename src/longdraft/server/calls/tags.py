"""Calls written as tags: <function=NAME><parameter=P>value</parameter></function>."""

from __future__ import annotations

import re
from collections.abc import Collection
from json import dumps, loads
from typing import Any

from longdraft.constraints import Schemas, type_of
from longdraft.server.calls.answer_reader import AnswerReader, Steps, begun
from longdraft.server.calls.value import PYTHON, Value

FUNCTION = "<function"
PARAMETER = "<parameter"
VALUE_END = "</parameter>"
FUNCTION_END = "</function>"
EQUALS = r"""(?:\s*=|\s+name\s*=)\s*["']?"""
HEAD = re.compile(rf"""{FUNCTION}{EQUALS}([\w.-]{{1,64}})["']?\s*>""")
KEY = re.compile(rf"""{PARAMETER}{EQUALS}([^<>"'\n]{{1,200}}?)["']?\s*>""")
BEGINS = (f"{PARAMETER}=", f"{PARAMETER} ")
MAX_TAG = 300  # characters of a tag
OBJECT = re.compile(r"""\{\s*["'}]""")


def read_function(reader: AnswerReader, begin: int, marked: bool) -> Steps[bool]:
    """Read a call whose tag begins in the reader's text.

    False: it is none of an offered function; nothing is taken. A tag is followed by a parameter, by
    its end, or by a JSON object. marked: it may also end the text. The values of parameters are
    given out as they come, as JSON that is complete wherever a tag is missing.
    """
    head = yield from _tag(reader, begin, FUNCTION, HEAD)
    if head is None or head[1] not in reader.schemas:
        return False
    schemas = Schemas(reader.schemas[head[1]])
    position = head.end()
    follows = (*BEGINS, FUNCTION_END, *reader.closers)
    while not (OBJECT.match(text := reader.rest[position:].lstrip()) or text.startswith(follows)):
        may_go_on = (
            not text
            or any(mark.startswith(text) for mark in follows)
            or re.fullmatch(r"\{\s*", text)
        )
        if may_go_on and (yield from reader.more()):
            continue
        if text or not marked or reader.cut or schemas.required(schemas.root):
            return False
        break
    reader.drop(len(reader.rest) - len(text))
    reader.call(head[1])
    if text.startswith("{"):
        yield from reader.arguments()
    elif not (yield from _parameters(reader, schemas)):
        return True
    yield from reader.skip(FUNCTION_END)
    return True


def _tag(
    reader: AnswerReader, begin: int, name: str, pattern: re.Pattern[str]
) -> Steps[re.Match[str] | None]:
    """A tag that begins at a place in the reader's text."""
    while not (match := pattern.match(reader.rest, begin)):
        text = reader.rest[begin : begin + MAX_TAG]
        may_go_on = name.startswith(text) or (
            text.startswith(name)
            and re.match(r"[\s=]|\Z", text[len(name) :])
            and not set("<>") & set(text[1:])
        )
        if not may_go_on or len(text) == MAX_TAG or not (yield from reader.more()):
            return None
    return match


def _parameters(reader: AnswerReader, schemas: Schemas) -> Steps[bool]:
    """Give out parameters up to the last one.

    False: a limit cut the text in or after one.
    """
    seen = set[str]()
    before = "{"
    while (begin := (yield from reader.space())) is not None:
        tag = yield from _tag(reader, begin, PARAMETER, KEY)
        if tag is None:
            break
        reader.drop(tag.end())
        new = tag[1] not in seen
        seen.add(tag[1])
        if new:
            reader.add("arguments", f"{before}{dumps(tag[1], ensure_ascii=False)}: ")
            before = ", "
        types = schemas.types(schemas.property(schemas.root, tag[1]))
        names = set(schemas.names(schemas.root))
        if not (yield from _value(reader, types if new else None, names - seen if names else None)):
            return False
    if reader.cut and not reader.rest.strip():
        return False
    reader.add("arguments", "{}" if before == "{" else "}")
    return True


def _value(
    reader: AnswerReader, types: Collection[str] | None, others: Collection[str] | None
) -> Steps[bool]:
    """Give out a parameter's value.

    types: its types; None for a value that is not given out. others: parameters whose tags end the
    value, because its own end is missing; None: all. False: a limit cut the text in the value.
    """
    text = types is not None and set(types) == {"string"}
    if text:
        reader.add("arguments", '"')
    yield from reader.skip_line()
    reader.aside = ""
    yield from _upto_end(reader, "quoted" if text else "aside", others)
    if reader.cut and not reader.rest:
        return False
    if types is not None:
        reader.add("arguments", '"' if text else as_json(reader.aside, types))
    return True


def _upto_end(reader: AnswerReader, kind: str, others: Collection[str] | None) -> Steps[None]:
    """Give out a value up to its end, which is dropped; another mark that ends it is not.

    A mark may be a part of the value: it ends the value only if another mark or the text's end
    follows. If a grammar binds the answer, the first </parameter> is the end.
    """
    marks = (VALUE_END,) if reader.bound else (VALUE_END, FUNCTION_END, PARAMETER, *reader.closers)
    ends = re.compile("\n?(" + "|".join(map(re.escape, marks)) + ")")
    position = 0
    while True:
        match = ends.search(reader.rest, position)
        if match is None:
            free = len(reader.rest) - begun(reader.rest, marks)
            free -= reader.rest[:free].endswith("\n")
            reader.give(kind, free)
            position = 0
            if not (yield from reader.more()):
                reader.give(kind, len(reader.rest.removesuffix("\n")))
                reader.drop(len(reader.rest))
                return
            continue
        reader.give(kind, match.start())
        position = len(match[0])
        if (yield from _ends(reader, match[1], position, others)):
            reader.drop(position if match[1] == VALUE_END else position - len(match[1]))
            return


def _ends(reader: AnswerReader, mark: str, end: int, others: Collection[str] | None) -> Steps[bool]:
    """Tells whether a mark that ends at a place in the reader's text ends a value."""
    if reader.bound or len(mark) == 1:  # a special token
        return True
    if mark == PARAMETER:
        tag = yield from _tag(reader, end - len(PARAMETER), PARAMETER, KEY)
        return tag is not None and (others is None or tag[1] in others)
    follows = (
        *BEGINS,
        f"{FUNCTION}=",
        f"{FUNCTION} ",
        FUNCTION_END,
        *reader.openers,
        *reader.closers,
    )
    while not (text := reader.rest[end:].lstrip()).startswith(follows):
        may_go_on = not text or any(mark.startswith(text) for mark in follows)
        if not may_go_on or not (yield from reader.more()):
            return not text
    return True


def as_json(text: str, types: Collection[str]) -> str:
    """A value as JSON.

    It is read as JSON or as Python if that is one of its types, and is a string otherwise.
    """
    text = PYTHON.get(text.strip(), text)
    for reads in (loads, _mended):
        try:
            value = reads(text)
            if type_of(value) in types or "string" not in types:
                return dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return dumps(text, ensure_ascii=False)


def _mended(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        raise ValueError("neither an object nor a list")
    value = Value()
    said, _ = value.feed(text.strip())
    return loads(said + value.close())
