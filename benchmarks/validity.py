"""Whether a text is valid JSON by a schema, as judged by the package jsonschema."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from longdraft.errors import InputError


def checker(schema: Any) -> Callable[[str], str | None]:
    """What is wrong with a text, in one line; None: nothing. By Draft 2020-12, formats included.

    Nothing is fetched: a text that a reference to elsewhere applies to is at fault. Numbers are
    read as decimals, so that 0.3 is a multiple of 0.1. Raises InputError without the package.
    """
    try:
        from jsonschema import Draft202012Validator, ValidationError
        from referencing import Registry
        from referencing.exceptions import Unresolvable
    except ImportError:
        raise InputError(
            "texts are validated by jsonschema: pip install 'jsonschema[format-nongpl]'"
        ) from None
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = Draft202012Validator(
        exact, registry=Registry(), format_checker=Draft202012Validator.FORMAT_CHECKER
    )

    def fault(text: str) -> str | None:
        try:
            validator.validate(json.loads(text, parse_float=Decimal, parse_constant=_none_of_json))
        except ValidationError as error:
            return " ".join(f"{error.json_path}: {error.message}".split())[:200]
        except Unresolvable as error:  # nothing is fetched
            return f"its schema refers to {error.ref}"
        except (ValueError, RecursionError) as error:
            return " ".join(str(error).split())[:200]
        return None

    return fault


def _none_of_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
