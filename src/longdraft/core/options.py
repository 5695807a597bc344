"""A method's options: what they are, and checks of them that raise InputError in words that name the option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from longdraft.errors import InputError

MOST = {"gamma": 512, "inner": 512, "count": 512, "levels": 512, "n": 512, "nodes": 1024, "topk": 1024}  # of a tree

ANY = "any"  # a method that takes what parts there are, as {kind: part}, and does without


@dataclass(frozen=True)
class Method:
    """build(target, **options) -> Drafter, or build(target, part, **options) where it needs a part with weights.

    needs: the kind of that part, a key of parts.PARTS, or ANY.
    """

    build: Callable[..., Any]
    paper: str
    needs: str | None = None

    @property
    def options(self) -> dict[str, tuple[type, Any]]:
        """{name: (type, default)}, read off the function's signature."""
        hints = get_type_hints(self.build)
        given = 2 if self.needs else 1
        parameters = list(inspect.signature(self.build).parameters.values())[given:]
        return {p.name: (hints[p.name], p.default) for p in parameters}


def pairs(options: list[str]) -> dict[str, str]:
    """`key=value` words as a dictionary."""
    found = {}
    for word in options:
        key, equals, value = word.partition("=")
        if not key or not equals or not value:
            raise InputError(f"-o {word!r} sets no option: give key=value, like gamma=5")
        found[key] = value
    return found


def typed(name: str, method: Method, key: str, value: str) -> Any:
    """An option's text as what the method takes."""
    if key not in method.options:
        known = ", ".join(method.options) or "none"
        raise InputError(f"{name} has no option {key!r}: its options are {known}")
    kind = method.options[key][0]
    try:
        return kind(value)
    except ValueError:
        words = {"int": "a whole number", "float": "a number"}.get(kind.__name__, kind.__name__)
        raise InputError(f"{name}'s option {key} is {value!r}: give {words}") from None


def at_least(low: int, **values: int) -> None:
    """And, of what sizes a draft, no more than any model could gain from."""
    for key, value in values.items():
        if value < low:
            raise InputError(f"option {key} is {value}: give {low} or more")
        if value > MOST.get(key, value):
            raise InputError(f"option {key} is {value}: give {MOST[key]} or less")


def share(**values: float) -> None:
    for key, value in values.items():
        if not 0 < value <= 1:
            raise InputError(f"option {key} is {value}: give a share above 0 and up to 1")


def above_zero(**values: float) -> None:
    for key, value in values.items():
        if not 0 < value < float("inf"):
            raise InputError(f"option {key} is {value}: give a number above 0")


def tree(**values: str) -> list[int]:
    """One option's text, like "4,16,16", as nodes per depth."""
    [(key, value)] = values.items()
    words = [w.strip() for w in value.split(",")]
    if not all(w.isascii() and w.isdigit() and int(w) for w in words):
        raise InputError(f"option {key} is {value!r}: give whole numbers of 1 or more with commas, like 4,16,16")
    if sum(map(int, words)) > 1024:
        raise InputError(f"option {key} is {value!r}: give numbers that add up to 1024 or less")
    return [int(w) for w in words]


def one_of(choices: tuple[str, ...], **values: str) -> None:
    for key, value in values.items():
        if value not in choices:
            raise InputError(f"option {key} is {value!r}: choose {' or '.join(choices)}")
