"""`longdraft methods`: what can be chosen, and whether all of it is at hand."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


def describe(name: str, method: Any, parts: Any) -> dict[str, Any]:
    """available: it needs no drafter, or there is a trained one beside the target."""
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
        "available": all(parts.beside(kind) is not None for kind in needs),
    }


def lines(entry: dict[str, Any]) -> list[str]:
    options = [f"{k}={o['default']} ({o['allowed']})" for k, o in entry["options"].items()]
    there = "there" if entry["available"] else "none beside the model: --drafter FOLDER or --random-drafter"
    needs = f"needs a drafter of kind {entry['needs'][0]} ({there})" if entry["needs"] else ""
    found = [f"{entry['name']:<16} {entry['paper']}", f"{'':<16} {entry['does']}"]
    return [*found, *(f"{'':<16} {x}" for x in (", ".join(options) and "-o " + ", ".join(options), needs) if x), ""]


@app.command()
def methods(
    model: Annotated[str, typer.Option("-m", "--model", help="Where trained drafters are looked for.")] = "bundled",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Every method with its options (and their defaults), what it needs besides the target, and its paper."""
    from longdraft.methods import CONTROLS, METHODS
    from longdraft.methods.drafter_weights import DrafterWeights

    parts = DrafterWeights(model=model)
    found = {
        kind: [describe(name, method, parts) for name, method in known.items()]
        for kind, known in (("methods", METHODS), ("controls", CONTROLS))
    }
    if as_json:
        print(json.dumps({"model": model, **found}))
        return
    print("\n".join(line for entry in found["methods"] for line in lines(entry)))
    print("Controls: what a guided choice of keys must beat at the same budget.\n")
    print("\n".join(line for entry in found["controls"] for line in lines(entry)).rstrip())
