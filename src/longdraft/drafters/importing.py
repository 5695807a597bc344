"""Drafters that others released, read by the names and shapes of their weights and written in longdraft's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from longdraft.drafters import checkpoint as saved
from longdraft.drafters.eagle import importer as eagle
from longdraft.drafters.glide import importer as glide
from longdraft.drafters.heads import importer as heads
from longdraft.drafters.released import Released
from longdraft.errors import InputError
from longdraft.models.lm import LM

READERS = (glide, heads, eagle)  # each has fits(source) and read(source, target) -> (kind, part)


def read(folder: Path, target: LM, anyhow: bool = False) -> tuple[str, nn.Module]:
    """The kind and the part of a released drafter, in the dtype it was released in.

    anyhow: also if the tables it brings along are not this target's. Raises InputError.
    """
    source = Released.of(folder, anyhow)
    reader = next((r for r in READERS if r.fits(source)), None)
    if reader is None:
        some = ", ".join(sorted(source.places)[:3]) or "none"
        raise InputError(
            f"{folder} is no drafter that longdraft knows (its weights: {some}): give a GLIDE block of LongSpec,"
            " heads of TokenSwift or Medusa, or a layer of EAGLE-2 or EAGLE-3"
        )
    try:
        kind, part = reader.read(source, target)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        what = f"{type(error).__name__}: {str(error)[:160]}"
        raise InputError(f"{folder}/config.json has a field of another kind than released drafters ({what})") from None
    return kind, part.eval().requires_grad_(False)


def convert(folder: Path, out: Path, target: LM, anyhow: bool = False) -> dict[str, Any]:
    """Read a released drafter and save it -> what it is: kind, dtype, parameters. Raises InputError."""
    if folder.resolve() == out.resolve():
        raise InputError(f"--out is the folder to import, {out}: give another")
    kind, part = read(folder, target, anyhow)
    facts = {"imported_from": folder.resolve().name, "released_config": Released.of(folder, anyhow).config}
    saved.save(part, kind, out, target, facts)
    dtype = str(next(part.parameters()).dtype).removeprefix("torch.")
    return {"kind": kind, "dtype": dtype, "parameters": sum(p.numel() for p in part.parameters())}
