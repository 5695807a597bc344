"""What schemathesis cannot know from the document: names, and that null is as if a field were not
there.
"""

from __future__ import annotations

from typing import Any

import schemathesis
from common import MODEL

LONGEST_NAME = 256


def has_null(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(has_null, inner))


def whole(value: Any) -> Any:
    """With 7 for 7.0: JSON Schema calls both an integer, and the server takes the first alone."""
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """A request that could be right is for the model that is here, or for a method that there
    is.
    """
    named = {"model": MODEL, "method": "lookup"}
    if not isinstance(body, dict):
        return body
    body = whole(body)
    known = {
        k: v
        for k, v in named.items()
        if isinstance(body.get(k), str) and len(body[k]) <= LONGEST_NAME
    }
    return (
        body
        | known
        | ({"options": {}} if "method" in known and isinstance(body.get("options"), dict) else {})
    )


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Every other model is the one that is here."""
    if path_parameters and "name" in path_parameters and len(str(path_parameters["name"])) % 2:
        return path_parameters | {"name": MODEL}
    return path_parameters


@schemathesis.hook
def filter_body(context: Any, body: Any) -> bool:
    return not has_null(body)
