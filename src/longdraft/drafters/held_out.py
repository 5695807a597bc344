"""How often a drafter's tokens were accepted on text that its training held out, as what to expect
of them at first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from longdraft.core.files import read_json
from longdraft.drafters.base import Drafter
from longdraft.drafters.checkpoint import FACTS
from longdraft.drafters.dflash.drafter import DFlash
from longdraft.drafters.eagle.drafter import Eagle
from longdraft.drafters.glide.drafter import GlideDrafter
from longdraft.drafters.heads.drafter import Medusa
from longdraft.drafters.small_model.drafter import SmallModelDrafter
from longdraft.errors import InputError

SAMPLED = 0.7  # of the acceptance of first choices is left where the target samples
# these draft by their weights alone
OF_WEIGHTS = (
    GlideDrafter,
    Eagle,
    Medusa,
    DFlash,
    SmallModelDrafter,
)

_RATES: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # by weights


def remember(weights: Any, folder: str) -> Any:
    """Note what the training.json beside these weights says of them, if there is one that does ->
    the weights.
    """
    rate = rate_in(Path(folder).expanduser() / FACTS)
    if rate is not None:
        _RATES[weights] = rate
    return weights


def expect(drafter: Drafter, weights: Any) -> Drafter:
    """Let a drafter expect what was measured of its weights -> the drafter."""
    rate = _RATES.get(weights)
    if rate is not None and isinstance(drafter, OF_WEIGHTS):
        drafter.usual = rate, SAMPLED * rate
    return drafter


def rate_in(file: Path) -> float | None:
    """The mean acceptance of all depths and kinds of text at a training's end; None if the file
    does not say.
    """
    if not file.is_file():
        return None
    try:
        last = read_json(file)["probes"][-1]
        rates = [
            float(r) for kind in last.values() if isinstance(kind, dict) for r in kind["by_depth"]
        ]
    except (InputError, LookupError, TypeError, ValueError):
        return None  # it is a note for readers: nothing depends on its form
    return min(max(sum(rates) / len(rates), 0.01), 0.99) if rates else None
