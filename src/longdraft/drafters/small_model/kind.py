"""The records of small models: any small model, and one that was trained for BudgetDraft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.utils.hub import cached_file

from longdraft.core.files import parse
from longdraft.drafters.checkpoint import replacing
from longdraft.drafters.kind import DrafterKind, Training
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.errors import InputError
from longdraft.models.gguf import file as gguf
from longdraft.models.lm import LM
from longdraft.models.loading import DTYPES, load_lm


class ModelKind(DrafterKind):
    """Stored as a whole Transformers model with its tokenizer, and loaded like a target: from a
    folder or the Hub.
    """

    def save(
        self, weights: Any, folder: Path, target: LM, facts: dict[str, Any], tokenizer: Any = None
    ) -> None:
        with replacing(Path(folder), facts) as draft:
            weights.save_pretrained(draft)
            tokenizer.save_pretrained(draft)

    def load(self, folder: str, target: LM, any_target: bool = False) -> LM:
        """Any target with the same tokenizer will do."""
        dtype = next(name for name, each in DTYPES.items() if each == target.dtype)
        small = load_lm(folder, dtype, str(target.device))
        ours = _vocabulary(small)
        theirs = _vocabulary(target)
        odd = next((i for i in ours.keys() & theirs.keys() if ours[i] != theirs[i]), None)
        if odd is not None:
            fault = (
                f"token {odd} is {ours[odd]!r} in the drafter {folder} and {theirs[odd]!r} in "
                "the target"
            )
            raise InputError(f"{fault}: use a drafter that was trained with the target's tokenizer")
        return small


def _vocabulary(lm: LM) -> dict[int, str]:
    """{id: token} of the tokenizer in the model's file, folder or download; empty where there is
    none to compare.
    """
    if (path := Path(lm.hf.name_or_path)).is_file():
        return dict(enumerate(gguf.read(path).get("tokenizer.ggml.tokens", list, [])))
    try:
        file = cached_file(lm.hf.name_or_path, "tokenizer.json", local_files_only=True)
        ids = parse(Path(str(file)).read_text(encoding="utf-8"))["model"]["vocab"]
        return {i: token for token, i in ids.items()} if isinstance(ids, dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


SMALL_MODEL = ModelKind(name="lm", title="a small model", weights=LM, random=random_lm)
BUDGET = ModelKind(
    name="budget",
    title="a small model trained for BudgetDraft",
    weights=LM,
    random=random_lm,
    training=Training(
        "budget",
        "Teach a small model to draft under any budget of its KV cache.",
        "longdraft.drafters.small_model.objective:objective",
    ),
)
