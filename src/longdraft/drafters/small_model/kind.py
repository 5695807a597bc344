"""The records of small models: any small model, and one that was trained for BudgetDraft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.utils.hub import cached_file

from longdraft.core.files import parse
from longdraft.drafters.checkpoint import replacing
from longdraft.drafters.kind import DrafterKind, Training
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.loading import DTYPES, load_lm


class ModelFormat:
    """A whole Transformers model with its tokenizer, loaded like a target: from a folder or by its Hub id."""

    def save(self, kind: str, weights: Any, folder: Path, target: LM, facts: dict[str, Any], tokenizer: Any) -> None:
        with replacing(Path(folder), facts) as draft:
            weights.save_pretrained(draft)
            tokenizer.save_pretrained(draft)

    def load(self, kind: str, folder: str, target: LM, any_target: bool) -> LM:
        """Any target with the same tokenizer will do."""
        dtype = next(name for name, each in DTYPES.items() if each == target.dtype)
        small = load_lm(folder, dtype, str(target.device))
        ours, theirs = _vocabulary(small), _vocabulary(target)
        odd = next((i for i in ours.keys() & theirs.keys() if ours[i] != theirs[i]), None)
        if odd is not None:
            raise InputError(
                f"token {odd} is {ours[odd]!r} in the drafter {folder} and {theirs[odd]!r} in the target: use a drafter"
                " that was trained with the target's tokenizer"
            )
        return small


def _vocabulary(lm: LM) -> dict[int, str]:
    """{id: token} of the tokenizer in the model's folder or download; empty where there is none to compare."""
    try:
        file = cached_file(lm.hf.name_or_path, "tokenizer.json", local_files_only=True)
        found = parse(Path(str(file)).read_text(encoding="utf-8"))["model"]["vocab"]
        return {i: token for token, i in found.items()} if isinstance(found, dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _objective() -> Callable[..., Any]:
    from longdraft.drafters.small_model.objective import objective

    return objective


SMALL_MODEL = DrafterKind("lm", "a small model", LM, random_lm, ModelFormat())
BUDGET = DrafterKind(
    "budget",
    "a small model trained for BudgetDraft",
    LM,
    random_lm,
    ModelFormat(),
    training=Training("budget", "Teach a small model to draft under any budget of its KV cache.", _objective),
)
