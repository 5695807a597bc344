"""Measured costs in the user's cache folder: a small JSON file per model, machine and kernels."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from longdraft.core.files import read_json
from longdraft.core.provenance import now
from longdraft.costs.counts import counts_of
from longdraft.costs.passes import PassCosts
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.tuning import kept
from longdraft.version import __version__

FORMAT = 1  # another number for costs that mean something else
MAX_SECONDS = 1e3  # seconds of any term: more is damage


def machine_name(device: torch.device) -> str:
    """The model of the processor or GPU, and how many processors this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return kept.machine_name()


def fingerprint(model: LM) -> dict[str, Any]:
    """All that costs depend on, as JSON.

    Sizes and data types of the model, machine, backend, kernels, threads and version.
    """
    return {
        "format": FORMAT,
        "model": repr(counts_of(model)),
        "dtype": str(model.dtype),
        "kv": model.kv,
        "weights": model.weights,
        "activations": model.activations,
        "machine": machine_name(model.device),
        "backend": model.backend.name,
        "kernels": model.backend.kernels,
        "threads": torch.get_num_threads(),
        "version": __version__,
    }


def place_of(model: LM) -> Path:
    """The path of this model's cost file, which may not exist."""
    digest = hashlib.sha256(json.dumps(fingerprint(model), sort_keys=True).encode()).hexdigest()
    return kept.folder() / f"{digest[:24]}.json"


def store(model: LM, costs: PassCosts, errors: dict[str, float]) -> Path:
    """Write a model's costs, whole or not at all -> their file.

    errors: what is known of them, such as their median error. Raises InputError where nothing can
    be written.
    """
    place = place_of(model)
    content = {
        "fingerprint": fingerprint(model),
        "terms": asdict(costs),
        "errors": errors,
        "time": now(),
    }
    part = place.with_suffix(f".{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(place)
    except OSError as error:
        raise InputError(
            f"cannot write {place} ({error.strerror}): set LONGDRAFT_CACHE to another folder"
        ) from None
    return place


def stored(model: LM) -> PassCosts | None:
    """The costs that were stored for this model here, if any.

    A damaged or foreign file is ignored, with one line.
    """
    place = place_of(model)
    try:
        if not place.exists():
            return None
        return checked(read_json(place), fingerprint(model))
    except (InputError, OSError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        print(
            f"longdraft: note: costs in {place} are ignored ({line}): run longdraft tune",
            file=sys.stderr,
        )
        return None


def checked(content: dict[str, Any], wanted: dict[str, Any]) -> PassCosts:
    """The costs in a file.

    Raises ValueError for costs of another model, machine or version, and for anything that is not
    costs.
    """
    if content.get("fingerprint") != wanted:
        raise ValueError("they are of another model, machine or version")
    terms = content.get("terms")
    names = {f.name for f in fields(PassCosts)}
    if not isinstance(terms, dict) or set(terms) != names:
        raise ValueError("their terms are others")
    for name, value in terms.items():
        if type(value) not in (int, float) or not (
            0 <= value < MAX_SECONDS and math.isfinite(value)
        ):
            raise ValueError(f"{name} is no time")
    return PassCosts(**terms)
