"""Describes in one line what is wrong with a body, and names the field.

It reads pydantic's errors and those of reading JSON.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi.exceptions import RequestValidationError

KINDS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
OBJECT = "the body must be a JSON object"
Path = tuple[str | int, ...]


def mistake(error: RequestValidationError) -> tuple[str | None, str]:
    """(field, message) of the first field that is wrong.

    In a union, the branch that came furthest decides.
    """
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        return (
            None,
            f"{OBJECT}: at character {errors[0]['loc'][-1]}, {errors[0]['ctx']['error'].lower()}",
        )
    if not isinstance(error.body, dict):
        return None, OBJECT
    places = [(_path(error.body, e["loc"][1:], e["type"]), e) for e in errors]
    mine = [(path, e) for path, e in places if path[:1] == places[0][0][:1]]
    path, best = max(mine, key=_progress)
    if best["type"] in KINDS:
        kinds = dict.fromkeys(
            KINDS[e["type"]] for other, e in mine if other == path and e["type"] in KINDS
        )
        message = f"give {' or '.join(kinds)}"
    else:
        message = _message(best)
    named = [*map(str, path), *([best["ctx"]["field"]] if best["type"] == "wrong" else [])]
    return ".".join(named)[:100] or None, message


def _progress(place: tuple[Path, Any]) -> tuple[bool, int, list[int]]:
    """The progress of a value's check: a wrong type ranks lowest, then the position decides."""
    path, error = place
    return (
        error["type"] not in KINDS,
        len(path),
        [entry for entry in path if isinstance(entry, int)],
    )


def _path(body: Any, where: tuple[Any, ...], kind: str) -> Path:
    """The places of the body on pydantic's way to an error, which also has names of types."""
    path: list[str | int] = []
    for i, entry in enumerate(where):
        is_list = isinstance(body, list) and isinstance(entry, int) and entry < len(body)
        if is_list or (isinstance(body, dict) and entry in body):
            body = body[entry]
        elif not (kind == "missing" and i == len(where) - 1):
            continue
        path.append(entry)
    return tuple(path)


def _message(error: Any) -> str:
    kind = error["type"]
    given = error["input"]
    ctx = error.get("ctx", {})
    unit = "characters" if isinstance(given, str) else "entries"
    if kind in ("too_long", "string_too_long"):
        return (
            f"{ctx.get('actual_length') or len(given)} {unit} are too many: give at most "
            f"{ctx['max_length']}"
        )
    if kind in ("too_short", "string_too_short"):
        return f"{len(given)} {unit} are too few: give at least {ctx['min_length']}"
    if kind == "extra_forbidden":
        return "this field is unknown or not supported here: leave it out"
    return error["msg"].removeprefix("Value error, ")


def unreadable(error: BaseException | None) -> str | None:
    """The reason why a body was not read as JSON; None: the error is of another kind."""
    if isinstance(error, UnicodeDecodeError):
        return f"the body must be JSON in UTF-8: byte {error.start} begins no character"
    if isinstance(error, RecursionError):
        return "the body has too many levels: send a flatter one"
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
        return "the body has a number with thousands of digits: send a shorter one"
    return None
