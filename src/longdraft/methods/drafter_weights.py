"""The weights that a run's drafters use: random or trained, each created or loaded once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longdraft.core.files import read_json
from longdraft.drafters.checkpoint import CONFIG
from longdraft.drafters.kinds import KINDS
from longdraft.errors import InputError
from longdraft.methods.method import ANY
from longdraft.methods.trained import TRAINED
from longdraft.models.fetch import SOURCES
from longdraft.models.lm import LM
from longdraft.models.loading import BUNDLED


@dataclass
class DrafterWeights:
    """Each kind comes from the given folder, else is random, else comes from a folder beside the target.

    folder: a saved drafter or Hub id. model: the target's name, to find drafters beside it. See DrafterKind.load.
    """

    folder: str | None = None
    random: bool = False
    seed: int = 0
    model: str = ""
    any_target: bool = False
    made: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.any_target and not self.folder:
            raise InputError("--any-target applies to a drafter that you name: add --drafter FOLDER")
        if self.folder and self.random:
            raise InputError("both --drafter and --random-drafter are given: give one of them")

    def beside(self, kind: str) -> Path | None:
        """The folder of a trained drafter of this kind beside the target, if there is one."""
        if not self.model:
            return None
        bundled = {"bundled": BUNDLED.parent} | {name: BUNDLED.parent / name for name in SOURCES}
        found = bundled.get(self.model, Path(self.model)) / kind
        return found if found.is_dir() else None

    def of(self, kind: str | None, target: LM) -> Any:
        """Weights of this kind; None without a kind or if none are found (`methods.build` then raises)."""
        if kind is not None and kind not in self.made:
            self.made[kind] = self._make(kind, target)
        return self.made[kind] if kind is not None else None

    def _make(self, kind: str, target: LM) -> Any:
        if kind == ANY:
            return {each: self.of(each, target) for each in self._offered()}
        if self.random:
            return KINDS[kind].random(target, self.seed)
        folder = self.folder or self.beside(kind)
        return None if folder is None else KINDS[kind].load(str(folder), target, self.any_target)

    def _offered(self) -> list[str]:
        """Kinds that `auto` may use: that of the given folder, else a random block, else those beside the target."""
        if self.folder:
            found = read_json(Path(self.folder).expanduser() / CONFIG).get("longdraft")
            kind = found.get("kind") if isinstance(found, dict) else None
            return [kind if isinstance(kind, str) and kind in KINDS else "budget"]
        return ["glide"] if self.random else [kind for kind in TRAINED if self.beside(kind)]

    def origin(self, kind: str | None) -> str | None:
        """The origin of the weights as a record states it."""
        if kind is None or (kind == ANY and not self.folder and not self.random):
            return None
        return f"random, seed {self.seed}" if self.random else Path(self.folder or self.beside(kind) or kind).name
