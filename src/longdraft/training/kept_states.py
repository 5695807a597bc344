"""States of the target that are computed once and read from files when a row comes again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from longdraft.models.identity import fingerprint
from longdraft.models.lm import LM
from longdraft.training.frozen import Frozen, TargetStates
from longdraft.training.turns import Turns


class KeptStates(Frozen):
    """A frozen target whose states are kept in files.

    `compute` returns what Frozen's returns; each row's states are in a file named after all that
    they depend on. A row that is not there yet, or whose file is damaged, is computed and written.
    """

    def __init__(self, lm: LM, folder: Path, turns: Turns | None = None):
        super().__init__(lm, turns)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._target = repr(sorted(fingerprint(lm).items())) + str(lm.dtype)

    @torch.no_grad()
    def compute(
        self,
        tokens: Tensor,
        position: Tensor | None,
        states: Sequence[int],
        layer: int | None,
        predict: bool,
    ) -> TargetStates:
        parts = []
        for b, row in enumerate(tokens):
            where = None if position is None else position[b : b + 1]
            given = (
                row.tolist(),
                None if where is None else where.tolist(),
                sorted(states),
                layer,
                predict,
            )
            digest = hashlib.sha256((self._target + repr(given)).encode()).hexdigest()
            file = self.folder / f"{digest}.safetensors"
            kept = _load(file)
            if kept is None:
                kept = _packed(super().compute(row[None], where, states, layer, predict))
                _save(kept, file)
            parts.append(kept)
        rows = dict[str, Tensor]()
        for name in parts[0]:
            rows[name] = torch.cat([kept[name] for kept in parts]).to(tokens.device)
        return TargetStates(
            {int(name): state for name, state in rows.items() if name.isdecimal()},
            **{f.name: rows.get(f.name) for f in fields(TargetStates)[1:]},  # type: ignore[arg-type]
        )


def _packed(seen: TargetStates) -> dict[str, Tensor]:
    """Everything there is, by name; a state by its number of layers."""
    rest = {f.name: getattr(seen, f.name) for f in fields(TargetStates)[1:]}
    states = {str(n): state for n, state in seen.states.items()}
    return states | {name: tensor for name, tensor in rest.items() if tensor is not None}


def _load(file: Path) -> dict[str, Tensor] | None:
    try:
        return load_file(file)
    except (FileNotFoundError, SafetensorError):
        return None


def _save(kept: dict[str, Tensor], file: Path) -> None:
    """Write the file under another name first: it is complete or absent."""
    draft = file.with_suffix(f".{os.getpid()}.writing")
    save_file({name: x.contiguous().cpu() for name, x in kept.items()}, draft)
    os.replace(draft, file)
