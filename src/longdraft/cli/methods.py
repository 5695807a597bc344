"""`longdraft methods`: lists all methods, and whether their drafter weights are available."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from longdraft.cli import common


def describe(name: str, method: Any, weights: Any) -> dict[str, Any]:
    """available: the method needs no drafter weights, or there are trained ones with the target."""
    from longdraft.core.options import allowed
    from longdraft.methods.method import ANY

    defaults = method.options().model_dump()
    needs = [] if method.needs in (None, ANY) else [method.needs]
    return {
        "name": name,
        "does": (method.build.__doc__ or "").strip().splitlines()[0],
        "paper": method.paper,
        "options": {
            key: {"type": type(defaults[key]).__name__, "default": defaults[key], "allowed": allowed(field)}
            for key, field in method.options.model_fields.items()
        },
        "needs": needs,
        "available": all(weights.available(kind) for kind in needs),
    }


def lines(entry: dict[str, Any]) -> list[str]:
    found = [entry["does"], *(f"-o {key}={o['default']}  ({o['allowed']})" for key, o in entry["options"].items())]
    if entry["needs"]:
        there = "available" if entry["available"] else "none with the model: give --drafter or --random-drafter"
        found.append(f"Needs drafter weights of kind {entry['needs'][0]} ({there}).")
    return [f"{entry['name']:<16} {entry['paper']}", *(f"{'':<16} {line}" for line in found), ""]


def methods(
    model: Annotated[
        str, typer.Option("-m", "--model", help="The target, beside which trained drafters are searched.")
    ] = "bundled",
    as_json: common.Json = False,
) -> None:
    """List every method with its paper, its options with defaults and limits, and what it needs."""
    from longdraft.methods import CONTROLS, METHODS
    from longdraft.methods.drafter_weights import DrafterWeights

    weights = DrafterWeights(model=model)
    found = {
        kind: [describe(name, method, weights) for name, method in known.items()]
        for kind, known in (("methods", METHODS), ("controls", CONTROLS))
    }
    if as_json:
        print(json.dumps({"model": model, **found}))
        return
    print("\n".join(line for entry in found["methods"] for line in lines(entry)))
    print("Controls: methods that a guided selection of keys must beat at the same budget.\n")
    print("\n".join(line for entry in found["controls"] for line in lines(entry)).rstrip())
