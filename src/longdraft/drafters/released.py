"""A folder of somebody else's weights: tensors by name, each read when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from longdraft.core.files import read_json
from longdraft.drafters.checkpoint import fill
from longdraft.errors import InputError

PREFIX = re.compile(r"^(module\.|draft_model\.|model\.)+")  # of whatever a block was part of when it was saved
TABLES = {"embed_tokens.weight", "lm_head.weight"}
BODY = re.compile(r"layers\.\d+\..*|norm\.weight|rotary_emb\.inv_freq")  # what a copy of the target has besides
STATES = re.compile(r"training_args|optimi[sz]er|scheduler|rng_state|scaler")  # a trainer's, not weights


Names = dict[str, str | list[str]]


@dataclass
class Released:
    """Every tensor of the folder under its own name, prefixes left out; nothing of it runs.

    places: name -> file, name in the file. anyhow: tables need not be the target's.
    """

    folder: Path
    config: dict[str, Any]
    places: dict[str, tuple[Path, str]]
    anyhow: bool

    @classmethod
    def of(cls, folder: Path, anyhow: bool = False) -> Released:
        """Raises InputError where there is nothing to read."""
        if not folder.is_dir():
            raise InputError(f"no folder at {folder}: download the drafter and give the folder it lies in")
        config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
        files = sorted(folder.glob("*.safetensors")) or sorted(
            f for kind in ("*.bin", "*.pt", "*.pth") for f in folder.glob(kind) if not STATES.search(f.name)
        )
        if not files:
            raise InputError(f"{folder} has no weights: give one with *.safetensors, *.bin or *.pt")
        places = {PREFIX.sub("", name): (file, name) for file in files for name in _names(file)}
        return cls(folder, config, places, anyhow)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def get(self, name: str) -> Tensor:
        """Raises InputError that names what is missing."""
        if name not in self.places:
            raise InputError(f"{self.folder} lacks {name}: its weights are incomplete, or of another kind of drafter")
        file, stored = self.places[name]
        return _tensor(file, stored)

    def fill(self, part: nn.Module, names: Names, dropped: Iterable[str] = (), kept: Iterable[str] = ()) -> nn.Module:
        """Put released tensors into a part, in their dtype -> the part. Raises InputError.

        names: the part's tensor -> the released one, or those that it stacks. Every released tensor must be named
        here or in `dropped`: a weight that is silently left out would make another drafter. kept: the part's own.
        """
        wanted = part.state_dict()
        found = {name: wanted[name] for name in kept}
        used = {n for theirs in names.values() for n in ([theirs] if isinstance(theirs, str) else theirs)}
        surplus = sorted(self.places.keys() - used - set(dropped))
        if surplus and used <= self.places.keys():
            raise InputError(f"{self.folder} has a surplus {surplus[0]}, which a {type(part).__name__} does not have")
        for mine, theirs in names.items():
            want = list(wanted[mine].shape)
            if isinstance(theirs, str):
                found[mine] = self._shaped(theirs, want)
            else:
                found[mine] = torch.stack([self._shaped(n, want[1:]) for n in theirs])
        dtype = next(t.dtype for t in found.values() if t.is_floating_point())
        fill(part.to(dtype), found, str(self.folder))
        return part

    def _shaped(self, name: str, want: list[int]) -> Tensor:
        tensor = self.get(name)
        if list(tensor.shape) != want:
            raise InputError(
                f"{self.folder}: {name} is {list(tensor.shape)}, and must be {want} for this target: give the target"
                " that it was trained for (-m)"
            )
        return tensor

    def same(self, name: str, table: Tensor) -> None:
        """Raises InputError where a table that the drafter brings along is not the target's own.

        Releases differ in dtype, so a sample may be off by rounding: means of differences, not equality.
        """
        if name not in self or self.anyhow:
            return
        theirs = self.get(name)
        step = max(1, table.shape[0] // 256)
        equal = theirs.shape == table.shape
        if equal:
            a, b = (t[::step].detach().to("cpu", torch.float32) for t in (theirs, table))
            equal = bool((a - b).abs().mean() <= 0.01 * b.abs().mean())
        if not equal:
            raise InputError(
                f"{self.folder}: its {name} is not the target's, which it would draft with: give the target that it"
                " was trained for (-m), or --any-target to import it all the same"
            )


def _names(file: Path) -> list[str]:
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, "pt") as f:
                return list(f.keys())
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} is damaged ({error}): download it again") from None
    return list(_pickled(file))


def _tensor(file: Path, name: str) -> Tensor:
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as f:
            return f.get_tensor(name)
    return _pickled(file)[name]


def _pickled(file: Path) -> dict[str, Tensor]:
    """Most heads were released as .bin or .pt. weights_only reads them with an unpickler that builds tensors and plain
    containers and refuses anything else, so no code of theirs runs; decoding never reads such a file at all."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's own, pickle's, zip's
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:160]
        raise InputError(f"{file} holds more than weights, or is damaged ({reason}): give safetensors") from None
    found = found.get("state_dict", found) if isinstance(found, dict) else {}
    if not found or not all(isinstance(t, Tensor) for t in found.values()):
        raise InputError(f"{file} is no table of tensors by name: give the weights alone")
    return found
