"""Descriptions of methods for a terminal, a program or a page."""

from __future__ import annotations

import inspect
from typing import Any

from longdraft.core.options import allowed
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.method import ANY, Method


def describe(name: str, method: Method, weights: DrafterWeights) -> dict[str, Any]:
    """The description of a method as a dictionary.

    available: the method needs no drafter weights, or there are trained ones with the target.
    """
    defaults = method.options().model_dump()
    needs = [] if method.needs in (None, ANY) else [method.needs]
    return {
        "name": name,
        "does": " ".join((inspect.getdoc(method.build) or method.drafts).split("\n\n")[0].split()),
        "paper": method.paper,
        "label": method.family.label,
        "options": {
            key: {
                "type": type(defaults[key]).__name__,
                "default": defaults[key],
                "allowed": allowed(field),
            }
            for key, field in method.options.model_fields.items()
        },
        "needs": needs,
        "available": all(weights.available(kind) for kind in needs if kind is not None),
    }
