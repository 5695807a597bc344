"""All kinds of drafters with weights. Adding one: a package with its `DrafterKind`, and a line
here.
"""

from __future__ import annotations

from functools import reduce
from os.path import realpath
from pathlib import Path
from typing import Any

import torch
from torch import nn

from longdraft.core.files import read_json
from longdraft.drafters import speculators
from longdraft.drafters.checkpoint import CONFIG, WEIGHTS, read_config
from longdraft.drafters.dflash.kind import DFLASH
from longdraft.drafters.eagle.kind import EAGLE2, EAGLE3
from longdraft.drafters.glide.kind import GLIDE
from longdraft.drafters.heads.kind import CHAINED, MEDUSA
from longdraft.drafters.held_out import remember
from longdraft.drafters.kind import DrafterKind
from longdraft.drafters.mtp.kind import MTP
from longdraft.drafters.released import Released
from longdraft.drafters.small_model.kind import BUDGET, SMALL_MODEL
from longdraft.errors import InputError
from longdraft.models import eight_bits
from longdraft.models.fetch import is_file
from longdraft.models.lm import LM

# A release is read by the first kind that recognizes it: a block of DFlash also has all that
# EAGLE-2 is known by.
KINDS = {
    kind.name: kind
    for kind in (SMALL_MODEL, BUDGET, GLIDE, CHAINED, MEDUSA, DFLASH, EAGLE2, EAGLE3, MTP)
}


def load_weights(
    kind_name: str, source: str | Path | nn.Module | LM, target: LM, any_target: bool = False
) -> Any:
    """Drafter weights of this kind: from a folder or a Hub id (DrafterKind.load), or as they are if
    already loaded.
    """
    kind = KINDS[kind_name]
    if isinstance(source, str | Path):
        return remember(kind.load(str(source), target, any_target), str(source))
    if not isinstance(source, kind.weights):
        needed = f"a {kind.weights.__name__}, a folder or a Hub id"
        raise InputError(f"the drafter is a {type(source).__name__}; this method needs {needed}")
    return source


def kind_in(source: str) -> str:
    """The kind of the drafter weights in a folder or file, by which `auto` chooses the method.
    Raises InputError.

    A whole model does not say how it was trained: a file is a small model, and a folder one for
    BudgetDraft.
    """
    if is_file(source):
        return SMALL_MODEL.name
    stated = read_json(Path(source).expanduser() / CONFIG).get("longdraft")
    kind = stated.get("kind") if isinstance(stated, dict) else None
    return kind if isinstance(kind, str) and kind in KINDS else BUDGET.name


def own_weights(kind_name: str, target: LM) -> Any:
    """Weights that lie in the target's own checkpoint; None for a kind that never does. Raises
    InputError.
    """
    within = KINDS[kind_name].within
    return None if within is None else within.read(target)


def read_released(
    folder: Path, target: LM, any_target: bool = False
) -> tuple[DrafterKind, nn.Module]:
    """The kind and the module of a released drafter, in its own dtype; see Released.any_target.
    Raises InputError.
    """
    source = Released.of(folder, any_target)
    try:
        speculators.check(source, target, _exported())
        for kind in KINDS.values():
            if kind.importer and (module := kind.importer(source, target)) is not None:
                speculators.check_kind(source, kind.name)
                return kind, module.eval().requires_grad_(False)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        fault = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise InputError(
            f"{folder}/config.json has a field of an unexpected type or value ({fault})"
        ) from None
    some = ", ".join(sorted(source.places)[:3]) or "none"
    titles = ", ".join(kind.title for kind in KINDS.values() if kind.importer)
    raise InputError(
        f"{folder} is not a drafter that longdraft knows (its weights: {some}): give {titles}"
    )


def _exported() -> list[str]:
    """The kinds that are kinds of `speculators` too."""
    return [kind.name for kind in KINDS.values() if kind.exporter]


def import_released(
    folder: Path, out: Path, target: LM, any_target: bool = False
) -> dict[str, Any]:
    """Read a released drafter and save it -> {kind, dtype, parameters}. Raises InputError."""
    if realpath(folder) == realpath(out):
        raise InputError(f"--out is the folder to import, {out}: give another folder")
    kind, module = read_released(folder, target, any_target)
    facts = {
        "imported_from": Path(realpath(folder)).name,
        "released_config": Released.of(folder).config,
    }
    kind.save(module, out, target, facts)
    dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
    return {
        "kind": kind.name,
        "dtype": dtype,
        "parameters": sum(p.numel() for p in module.parameters()),
    }


def export_drafter(folder: Path, out: Path, target: LM, any_target: bool = False) -> dict[str, Any]:
    """Write a saved drafter as `speculators` stores it, its weights bit for bit -> {kind, dtype,
    parameters}.

    target: in float32, which holds every number that a drafter can be stored in. Raises InputError.
    """
    if realpath(folder) == realpath(out):
        raise InputError(f"--out is the folder to export, {out}: give another folder")
    name = read_config(folder)["longdraft"].get("kind")
    kind = KINDS.get(name)
    if kind is None or kind.exporter is None:
        known = " and ".join(_exported())
        raise InputError(
            f"{folder} holds a drafter of kind {name}, which `speculators` does not have: "
            f"give one of {known}"
        )
    module: Any = kind.load(str(folder), target, any_target)
    dtypes = [t.dtype for t in eight_bits.read(folder / WEIGHTS).values() if t.is_floating_point()]
    stored = reduce(torch.promote_types, dtypes)  # float32 if some are stored in 8 bits
    speculators.write(
        kind.name,
        kind.exporter(module.to(stored), target),
        target,
        out,
        Path(realpath(folder)).name,
    )
    parameters = sum(p.numel() for p in module.parameters())
    return {
        "kind": kind.name,
        "dtype": str(stored).removeprefix("torch."),
        "parameters": parameters,
    }
