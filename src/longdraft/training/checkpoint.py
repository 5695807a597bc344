"""Checkpoints: one folder per step, written under another name and then renamed.

Reading runs no pickled code.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from longdraft.core.files import parse
from longdraft.errors import InputError


def save(folder: Path, step: int, model, optimizers: list, state: dict, keep: int = 2) -> Path:
    """Write folder/step-NNNNNNNN and remove all but the newest `keep`.

    Raises InputError.
    """
    final = folder / f"step-{step:08d}"
    draft = folder / "writing"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        save_file(weights(model), draft / "model.safetensors")
        torch.save([o.state_dict() for o in optimizers], draft / "optimizers.pt")
        (draft / "state.json").write_text(json.dumps({**state, "step": step}))
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise InputError(
            f"could not write {final}: {error}; make room (or repair the folder), then --resume"
        ) from None
    for old in listed(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def weights(model) -> dict[str, torch.Tensor]:
    """The model's tensors, tied matrices once."""
    state = model.state_dict()
    return {name: state[name].contiguous() for name in dict.fromkeys(_first_names(model).values())}


def _first_names(model) -> dict[str, str]:
    """The first name of the same tensor, for the name of each tensor."""
    names: dict[tuple, str] = {}
    return {k: names.setdefault((v.data_ptr(), v.shape), k) for k, v in model.state_dict().items()}


def listed(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(p for p in folder.glob("step-*") if (p / "state.json").exists())


def latest(folder: Path) -> Path:
    """The newest complete checkpoint. Raises InputError if there is none."""
    checkpoints = listed(folder)
    if not checkpoints:
        raise InputError(f"{folder}: no checkpoint there; leave out --resume to start a new run")
    return checkpoints[-1]


FIELDS = {"step": int, "seconds": (int, float), "runs": list, "probes": list}  # of state.json


def _check(state: Any) -> None:
    """Raises ValueError for a state that a run could not be continued from."""
    if not isinstance(state, dict):
        raise ValueError("state.json is not a JSON object")
    odd = next((k for k, kind in FIELDS.items() if not isinstance(state.get(k), kind)), None)
    if odd is not None:
        if odd not in state:
            raise ValueError(f"state.json has no {odd}")
        raise ValueError(f"{odd} in state.json is of another type")
    numbers = (state["step"], state["seconds"])
    if any(isinstance(n, bool) or not 0 <= n < float("inf") for n in numbers):
        raise ValueError("step or seconds in state.json is out of range")
    if not all(isinstance(entry, dict) for entry in state["runs"] + state["probes"]):
        raise ValueError("runs or probes in state.json is not a list of JSON objects")


def load(path: Path, model, optimizers: list) -> dict:
    """Restore weights and optimizer state; -> the state saved with them. Raises InputError."""
    try:
        state = parse((path / "state.json").read_text())
        _check(state)
        saved = load_file(path / "model.safetensors")
        model.load_state_dict({k: saved[first] for k, first in _first_names(model).items()})
        if optimizers:
            states = path / "optimizers.pt"
            if not states.exists():  # written by version 0.1 or older
                states = path / "optimisers.pt"
            states = torch.load(states, weights_only=True)
            for optimizer, its_state in zip(optimizers, states, strict=True):
                optimizer.load_state_dict(its_state)
    except Exception as error:  # a damaged file raises different errors in each library
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        fault = f"{path}: unreadable checkpoint ({reason})"
        raise InputError(f"{fault}; delete that folder to use the one before") from None
    return state
