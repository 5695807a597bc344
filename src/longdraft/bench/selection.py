"""The methods and baselines that a run compares, from `--methods vegas,vegas@score=logits -o
vegas.gamma=5`.
"""

from __future__ import annotations

from typing import Any

from longdraft import methods
from longdraft.bench.inputs import Text
from longdraft.bench.peers.base import Peer
from longdraft.bench.peers.transformers import STOCK, Transformers
from longdraft.core.options import pair, pairs
from longdraft.core.sampling import Sampler
from longdraft.errors import InputError
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.spec import MethodSpec

Entry = MethodSpec | Peer
# what a record states beside the temperature, if it is not the default
SAMPLING = (
    "top_k",
    "top_p",
    "penalty",
    "window",
)


def parse(names: str, options: list[str], weights: DrafterWeights | None = None) -> list[Entry]:
    """The entries in the order of `names`; `-o METHOD.KEY=VALUE` is for all of that method. Raises
    InputError.
    """
    labels = [word.strip() for word in names.split(",") if word.strip()]
    if not labels:
        raise InputError("no method is given: give --methods plain,vegas, for example")
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise InputError(
            f"{twice} is named twice: name it once, or give each its own options, as in "
            "vegas@gamma=4"
        )
    given = {label: pairs(label.split("@")[1:]) for label in labels}
    for option in options:
        name, dot, rest = option.partition(".")
        same = [label for label in labels if label.split("@")[0] == name]
        if not dot or not same:
            raise InputError(
                f"option {option!r} fits no method of this run: give METHOD.KEY=VALUE, as "
                "vegas.gamma=5"
            )
        key, value = pair(rest)
        for label in same:
            given[label].setdefault(key, value)
    return [_entry(label, given[label], weights or DrafterWeights()) for label in labels]


def setting(task: str, entry: Entry, text: Text, batch: int, sampler: Sampler) -> dict[str, Any]:
    """The fields of a record that name the method and the text."""
    record = {
        "task": task,
        "method": entry.name,
        "label": entry.label,
        "options": entry.options,
        **entry.origin,
    }
    record |= {
        "text_name": text.name,
        "text_sha256": text.sha256,
        "batch": batch,
        "temperature": sampler.temperature,
    }
    record |= {
        name: getattr(sampler, name)
        for name in SAMPLING
        if getattr(sampler, name) != getattr(Sampler(), name)
    }
    record |= text.fields()
    return record | ({"score": entry.options["score"]} if "score" in entry.options else {})


def _entry(label: str, given: dict[str, str], weights: DrafterWeights) -> Entry:
    name = label.split("@")[0]
    if name in STOCK:
        if given:
            raise InputError(f"{name} has no options")
        return Transformers(name, name.removeprefix("hf-"))
    if methods.lookup(name) is None:
        raise InputError(
            f"unknown method {name!r}: choose from {', '.join([*methods.names(), *STOCK])}"
        )
    return MethodSpec(label, name, given, weights)
