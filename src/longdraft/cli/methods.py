"""`longdraft methods`: lists all methods, and whether their drafter weights are available."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from longdraft.cli import common


def lines(entry: dict[str, Any], model: str) -> list[str]:
    from longdraft.methods.drafter_weights import how_to_get

    details = [
        entry["does"],
        *(f"-o {key}={o['default']}  ({o['allowed']})" for key, o in entry["options"].items()),
    ]
    if "package" in entry:
        details.append(f"From the package {entry['package']}.")
    if entry["needs"]:
        kind = entry["needs"][0]
        there = (
            "available" if entry["available"] else f"none with the model: {how_to_get(kind, model)}"
        )
        details.append(f"Needs drafter weights of kind {kind} ({there}).")
    return [f"{entry['name']:<16} {entry['paper']}", *(f"{'':<16} {line}" for line in details), ""]


def methods(
    model: Annotated[
        str,
        typer.Option(
            "-m", "--model", help="The target, beside which trained drafters are searched."
        ),
    ] = "bundled",
    as_json: common.Json = False,
) -> None:
    """List every method with its paper, its options with defaults and limits, and what it needs."""
    from longdraft.methods import CONTROLS, METHODS, elsewhere
    from longdraft.methods.drafter_weights import DrafterWeights
    from longdraft.methods.listing import describe

    weights = DrafterWeights(model=model)
    added, problems = elsewhere.listed()
    listed = {
        kind: [describe(name, method, weights) for name, method in known.items()]
        for kind, known in (("methods", METHODS), ("controls", CONTROLS))
    }
    listed["elsewhere"] = [
        {"package": a.package, **describe(name, a.method, weights)} for name, a in added.items()
    ]
    if as_json:
        print(json.dumps({"model": model, **listed, "problems": problems}))
        return
    print("\n".join(line for entry in listed["methods"] for line in lines(entry, model)))
    print("Controls: methods that a guided selection of keys must beat at the same budget.\n")
    print("\n".join(line for entry in listed["controls"] for line in lines(entry, model)).rstrip())
    if added:
        print("\nMethods of other packages.\n")
        print(
            "\n".join(
                line for entry in listed["elsewhere"] for line in lines(entry, model)
            ).rstrip()
        )
    for problem in problems:
        common.say(problem)
