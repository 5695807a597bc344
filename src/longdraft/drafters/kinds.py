"""All kinds of drafters with weights. Adding one: a package with its `DrafterKind`, and a line here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from longdraft.drafters.eagle.kind import EAGLE2, EAGLE3
from longdraft.drafters.glide.kind import GLIDE
from longdraft.drafters.heads.kind import CHAINED, MEDUSA
from longdraft.drafters.small_model.kind import BUDGET, SMALL_MODEL
from longdraft.errors import InputError
from longdraft.models.lm import LM

KINDS = {kind.name: kind for kind in (SMALL_MODEL, BUDGET, GLIDE, CHAINED, MEDUSA, EAGLE2, EAGLE3)}


def load_weights(kind_name: str, source: str | Path | nn.Module | LM, target: LM, any_target: bool = False) -> Any:
    """Drafter weights of this kind from a folder, a Hub id, or as they are if already loaded. Raises InputError.

    any_target: also accept weights that were trained for another target of the same sizes.
    """
    kind = KINDS[kind_name]
    if isinstance(source, str | Path):
        return kind.load(str(source), target, any_target)
    if not isinstance(source, kind.weights):
        needed = f"a {kind.weights.__name__}, a folder or a Hub id"
        raise InputError(f"the drafter is a {type(source).__name__}; this method needs {needed}")
    return source
