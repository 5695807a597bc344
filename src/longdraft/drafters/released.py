"""A folder of weights that another project released: tensors by name, each read only when it is
used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from longdraft.core.files import read_json
from longdraft.errors import InputError
from longdraft.models.lm import LM

# left over from wrappers when the file was saved
PREFIX = re.compile(r"^(module\.|draft_model\.|model\.)+")
TABLES = {"embed_tokens.weight", "lm_head.weight"}
# the rest of a copy of the target
BODY = re.compile(r"layers\.\d+\..*|norm\.weight|rotary_emb\.inv_freq")
# files of a trainer, not weights
STATES = re.compile(r"training_args|optimi[sz]er|scheduler|rng_state|scaler")

Names = dict[str, str | list[str]]
M = TypeVar("M", bound=nn.Module)


@dataclass
class Released:
    """Every tensor of the folder under its name without prefixes. No code from the folder is run.

    places: name -> file and name in that file. any_target: skip the comparison with the target's
    tables.
    """

    folder: Path
    config: dict[str, Any]
    places: dict[str, tuple[Path, str]]
    any_target: bool

    @classmethod
    def of(cls, folder: Path, any_target: bool = False) -> Released:
        """Raises InputError if the folder has no weights."""
        if not folder.is_dir():
            raise InputError(f"no folder at {folder}: download the drafter and give its folder")
        config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
        files = sorted(folder.glob("*.safetensors")) or sorted(
            f
            for kind in ("*.bin", "*.pt", "*.pth")
            for f in folder.glob(kind)
            if not STATES.search(f.name)
        )
        if not files:
            raise InputError(
                f"{folder} has no weights: give a folder with *.safetensors, *.bin or *.pt"
            )
        places = {PREFIX.sub("", name): (file, name) for file in files for name in _names(file)}
        return cls(folder, config, places, any_target)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def get(self, name: str) -> Tensor:
        """Raises InputError if there is no tensor of this name."""
        if name not in self.places:
            raise InputError(
                f"{self.folder} lacks {name}: its weights are incomplete, or of another "
                "kind of drafter"
            )
        file, stored = self.places[name]
        return _tensor(file, stored)

    def fill(
        self, module: M, names: Names, dropped: Iterable[str] = (), kept: Iterable[str] = ()
    ) -> M:
        """Load released tensors into a module, in the dtype in which they were released -> the
        module.

        names: the module's tensor -> the released tensor, or those to stack. Every released tensor
        must be named here or in `dropped`, because a weight that is silently ignored would make a
        different drafter. kept: tensors of the module that stay unchanged. Raises InputError.
        """
        wanted = module.state_dict()
        weights = dict[str, Tensor]()
        used = {
            n
            for theirs in names.values()
            for n in ([theirs] if isinstance(theirs, str) else theirs)
        }
        surplus = sorted(self.places.keys() - used - set(dropped))
        if surplus and used <= self.places.keys():
            raise InputError(
                f"{self.folder} has a surplus {surplus[0]}, which a "
                f"{type(module).__name__} does not have"
            )
        for ours, theirs in names.items():
            want = list(wanted[ours].shape)
            if isinstance(theirs, str):
                weights[ours] = self._shaped(theirs, want)
            else:
                weights[ours] = torch.stack([self._shaped(n, want[1:]) for n in theirs])
        dtype = next(t.dtype for t in weights.values() if t.is_floating_point())
        weights |= {name: wanted[name] for name in kept}
        fill(module.to(dtype), weights, str(self.folder))
        return module

    def _shaped(self, name: str, want: list[int]) -> Tensor:
        tensor = self.get(name)
        if list(tensor.shape) != want:
            fault = (
                f"{self.folder}: {name} is {list(tensor.shape)}, and must be {want} for this target"
            )
            raise InputError(f"{fault}: give the target that it was trained for (-m)")
        return tensor

    def check_tables(self, target: LM, embeddings_only: bool = False) -> None:
        """Raises InputError if an embedding or output table that the drafter includes is not the
        target's.
        """
        self._check("embed_tokens.weight", target.hf.get_input_embeddings().weight)
        if not embeddings_only:
            self._check("lm_head.weight", target.hf.get_output_embeddings().weight)

    def _check(self, name: str, table: Tensor) -> None:
        """Compare samples by their mean difference, because releases may have another dtype."""
        if name not in self or self.any_target:
            return
        theirs = self.get(name)
        a, b = (
            t[:: max(1, len(table) // 256)].detach().to("cpu", torch.float32)
            for t in (theirs, table)
        )
        if theirs.shape != table.shape or not bool((a - b).abs().mean() <= 0.01 * b.abs().mean()):
            fault = (
                f"{self.folder}: its {name} is not the target's, which would be used for drafting"
            )
            how = (
                "give the target that it was trained for (-m), or add --any-target to import "
                "it anyway"
            )
            raise InputError(f"{fault}: {how}")


def renamed(module: nn.Module, theirs: dict[str, str]) -> Names:
    """`names` for Released.fill from the released name of every submodule; the module's own tensors
    are left out.
    """
    parts = [ours.rpartition(".") for ours in module.state_dict() if "." in ours]
    return {f"{name}.{field}": f"{theirs[name]}.{field}" for name, _, field in parts}


def original(module: nn.Module, names: Names) -> dict[str, Tensor]:
    """A module's tensors under the names in `names`, which for each of its own has one released
    name.
    """
    tensors = module.state_dict()
    return {theirs: tensors[ours] for ours, theirs in names.items() if isinstance(theirs, str)}


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
    """The tensors of a .bin or .pt file. weights_only refuses all but tensors and containers: no
    code in it is run.
    """
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # errors of torch, pickle or zipfile
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:160]
        raise InputError(
            f"{file} holds more than weights, or is damaged ({reason}): give safetensors"
        ) from None
    weights = weights.get("state_dict", weights) if isinstance(weights, dict) else {}
    named = isinstance(weights, dict) and all(
        isinstance(n, str) and isinstance(t, Tensor) for n, t in weights.items()
    )
    if not named or not weights:
        raise InputError(
            f"{file} is not a dictionary of tensors by name: give a file that only holds weights"
        )
    return weights


def fill(module: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    """Load weights into a module. Raises InputError that names a missing, surplus or wrong
    tensor.
    """
    wanted = module.state_dict()
    missing = sorted(wanted.keys() - weights.keys())
    surplus = sorted(weights.keys() - wanted.keys())
    if missing or surplus:
        fault = f"lacks {missing[0]}" if missing else f"has a surplus {surplus[0]}"
        raise InputError(
            f"{where}: {fault}: its weights are not those of a {type(module).__name__} for "
            "this target"
        )
    for name, want in wanted.items():
        if weights[name].shape != want.shape:
            fault = (
                f"{where}: {name} is {list(weights[name].shape)}, and {list(want.shape)} for "
                "this target"
            )
            raise InputError(f"{fault}: give a drafter that was trained for it")
        if weights[name].is_floating_point() != want.is_floating_point():
            raise InputError(
                f"{where}: {name} has dtype {weights[name].dtype}, and must be like {want.dtype}"
            )
    try:
        module.load_state_dict(weights)
    except ValueError as error:  # raised by modules that restrict the values of a tensor
        raise InputError(f"{where}: {error}") from None
