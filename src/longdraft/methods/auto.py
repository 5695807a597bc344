"""The method that tries several others and keeps the fastest."""

from __future__ import annotations

from typing import Any

from longdraft.core.options import Positive
from longdraft.drafters import Auto, Drafter
from longdraft.methods.model_free import suffix
from longdraft.methods.self_speculative import vegas, vegas_reuse
from longdraft.methods.small_models import budgetdraft
from longdraft.methods.trained import longspec_guided, tokenswift
from longdraft.models.lm import LM

# Drafter weights that are used if there are any: kind -> (method, its options).
TRAINED: dict[str, tuple[Any, dict[str, Any]]] = {
    "glide": (longspec_guided, {"widths": (4, 2, 2, 2, 2)}),  # a CPU verifies about ten nodes at little extra cost
    "budget": (budgetdraft, {}),
    "heads": (tokenswift, {}),
}


def auto(target: LM, weights: dict[str, Any], rounds: Positive = 8) -> Drafter:
    """Tries each method that has its drafter weights for `rounds` decoding steps and continues with the fastest."""
    trained = [build(target, weights[kind], **given) for kind, (build, given) in TRAINED.items() if kind in weights]
    return Auto([*trained, vegas(target), vegas_reuse(target), suffix(target)], rounds)
