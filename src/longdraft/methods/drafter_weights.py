"""What a method may need besides the target: a part with weights, random or trained; each is made once in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils.hub import cached_file

from longdraft.core.files import parse, read_json
from longdraft.drafters import checkpoint as saved
from longdraft.drafters.eagle.block import random_eagle2, random_eagle3
from longdraft.drafters.glide.block import random_glide
from longdraft.drafters.heads.drafter import random_heads, random_medusa
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.errors import InputError
from longdraft.methods.method import ANY
from longdraft.models.lm import LM
from longdraft.models.loading import BUNDLED, DTYPES, load_lm

# kind -> (target, seed) -> a random one of that kind.
PARTS: dict[str, Callable[[LM, int], Any]] = {
    "lm": random_lm,
    "budget": random_lm,
    "glide": random_glide,
    "heads": random_heads,
    "medusa": random_medusa,
    "eagle2": random_eagle2,
    "eagle3": random_eagle3,
}


def lm_from(folder: str, target: LM) -> LM:
    """A small model from a folder, like a target, in the target's dtype and on its device."""
    dtype = next(name for name, kind in DTYPES.items() if kind == target.dtype)
    small = load_lm(folder, dtype, str(target.device))
    mine, theirs = _words(small), _words(target)
    odd = next((i for i in mine.keys() & theirs.keys() if mine[i] != theirs[i]), None)
    if odd is not None:
        raise InputError(
            f"token {odd} is {mine[odd]!r} in the drafter {folder} and {theirs[odd]!r} in the target: use a drafter"
            " that was trained with the target's tokenizer"
        )
    return small


def _words(lm: LM) -> dict[int, str]:
    """{id: token} of the tokenizer in a model's folder, or fetched with it; nothing where there is none to compare."""
    try:
        file = cached_file(lm.hf.name_or_path, "tokenizer.json", local_files_only=True)
        found = parse(Path(str(file)).read_text(encoding="utf-8"))["model"]["vocab"]
        return {i: token for token, i in found.items()} if isinstance(found, dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


# kind -> (folder, target, even if trained for another target) -> the trained one that lies there.
TRAINED: dict[str, Callable[[str, LM, bool], Any]] = {
    "lm": lambda folder, target, anyhow: lm_from(folder, target),
    "budget": lambda folder, target, anyhow: lm_from(folder, target),
    **{kind: partial(saved.load, kind) for kind in saved.KINDS},
}

USED = ("glide", "budget", "heads")  # by `auto`


@dataclass
class Parts:
    """Where a run's parts come from: the folder given, else random ones, else what lies beside the target, by kind.

    any_target: a part trained for another target of the same sizes will do.
    """

    folder: str | None = None
    random: bool = False
    seed: int = 0
    model: str = ""
    any_target: bool = False
    made: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.any_target and not self.folder:
            raise InputError("--any-target is about a drafter that you name: add --drafter FOLDER")
        if self.folder and self.random:
            raise InputError("both --drafter and --random-drafter are given: give one of them")

    def beside(self, kind: str) -> Path | None:
        """The folder of a trained part beside the target, if there is one."""
        home = BUNDLED.parent if self.model == "bundled" else Path(self.model) if self.model else None
        found = home / kind if home is not None else None
        return found if found is not None and found.is_dir() else None

    def of(self, kind: str | None, target: LM) -> Any:
        """The part of this kind, or None: none is needed, or none is there (`methods.build` says what to give)."""
        if kind is not None and kind not in self.made:
            self.made[kind] = self._make(kind, target)
        return self.made[kind] if kind is not None else None

    def _make(self, kind: str, target: LM) -> Any:
        if kind == ANY:
            return {each: self.of(each, target) for each in self._offered()}
        if self.random:
            return PARTS[kind](target, self.seed)
        folder = self.folder or self.beside(kind)
        if folder is None:
            return None
        return TRAINED[kind](str(folder), target, self.any_target)

    def _offered(self) -> list[str]:
        """The kinds that `auto` may use: that of the folder given, else a random block, else all beside the target."""
        if self.folder:
            config = Path(self.folder).expanduser() / saved.CONFIG
            found = read_json(config).get("longdraft")
            kind = found.get("kind") if isinstance(found, dict) else None
            return [kind if isinstance(kind, str) and kind in TRAINED else "budget"]
        return ["glide"] if self.random else [kind for kind in USED if self.beside(kind)]

    def origin(self, kind: str | None) -> str | None:
        """What a record says of the part."""
        if kind is None or (kind == ANY and not self.folder and not self.random):
            return None
        return f"random, seed {self.seed}" if self.random else Path(self.folder or self.beside(kind) or kind).name
