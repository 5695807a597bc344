"""The weights that a run's drafters use: random or trained, each created or loaded once."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from longdraft.drafters.kinds import KINDS, kind_in, load_weights, own_weights
from longdraft.errors import InputError
from longdraft.methods.method import ANY
from longdraft.methods.table import METHODS
from longdraft.methods.trials import kinds_beside
from longdraft.models import hub_files
from longdraft.models.fetch import SOURCES, file_of, is_file
from longdraft.models.lm import LM
from longdraft.models.loading import BUNDLED, HUB_ID

PACKAGE = "longdraft_drafters"


def packaged() -> Path | None:
    """The folder of the package longdraft-drafters if it is installed; none of its code is run."""
    spec = find_spec(PACKAGE)
    places = (spec and spec.submodule_search_locations) or []
    return next((Path(place) for place in places), None)


def checkpoint_of(model: str) -> Path | None:
    """The folder or file of a model's own weights, where it may have drafter weights among them and
    is on this machine.

    Raises InputError.
    """
    if model in SOURCES or model.startswith(hub_files.PREFIX):
        return None  # those of `fetch` have none; of the Hub, only the loaded model's file is known
    if Path(model).exists():
        return Path(model)
    if is_file(model):
        return file_of(model)
    found = try_to_load_from_cache(model, "config.json") if re.fullmatch(HUB_ID, model) else None
    return Path(found).parent if isinstance(found, str) else None


def inside(kind: str, model: str) -> bool:
    """Whether a model's own checkpoint has drafter weights of this kind. Raises InputError."""
    within = KINDS[kind].within
    place = checkpoint_of(model) if within and model else None
    return within is not None and place is not None and within.found(place)


def small_model(name: str) -> str | None:
    """A smaller model of `longdraft fetch` with the tokenizer of this one, if there is one."""
    return SOURCES[name].drafter if name in SOURCES and not Path(name).is_dir() else None


def how_to_get(kind: str, model: str) -> str:
    """Advice for a target of this name that has no drafter weights of this kind."""
    small = small_model(model) if KINDS[kind].weights is LM else None
    lacking = model in SOURCES and SOURCES[model].packaged and packaged() is None
    more = ", or install longdraft-drafters, which has some for this model" if lacking else ""
    return f"give --drafter {small or 'FOLDER'} or --random-drafter{more}"


@dataclass
class DrafterWeights:
    """The source of drafter weights: a folder, random numbers, or files beside the target.

    Each kind comes from the given folder, else is random, else comes from a folder beside the
    target (for a fetched model: from the package longdraft-drafters), else from the target's own
    checkpoint if it lies there.
    folder: a saved drafter or Hub id. model: the target's name, to find drafters beside it. See
    DrafterKind.load.
    """

    folder: str | None = None
    random: bool = False
    seed: int = 0
    model: str = ""
    any_target: bool = False
    made: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.any_target and not self.folder:
            raise InputError(
                "--any-target applies to a drafter that you name: add --drafter FOLDER"
            )
        if self.folder and self.random:
            raise InputError("both --drafter and --random-drafter are given: give one of them")

    def beside(self, kind: str) -> Path | None:
        """The folder of a trained drafter of this kind beside the target, if there is one."""
        if not self.model:
            return None
        if self.model in SOURCES and not Path(self.model).is_dir():
            place = packaged()
            folder = place and place / self.model / kind
        else:
            folder = (BUNDLED.parent if self.model == "bundled" else Path(self.model)) / kind
        return folder if folder and folder.is_dir() else None

    def available(self, kind: str) -> bool:
        """Whether there are weights of this kind beside the target or in its own checkpoint."""
        return self.beside(kind) is not None or inside(kind, self.model)

    def of(self, kind: str | None, target: LM) -> Any:
        """Weights of this kind; None without a kind or if there are none.

        `methods.build` then raises.
        """
        if kind is not None and kind not in self.made:
            self.made[kind] = self._make(kind, target)
        return self.made[kind] if kind is not None else None

    def _make(self, kind: str, target: LM) -> Any:
        if kind == ANY:
            made = {each: self._tried(each, target) for each in self._offered(target)}
            return {each: weights for each, weights in made.items() if weights is not None}
        if self.random:
            return KINDS[kind].random(target, self.seed)
        folder = self.folder or self.beside(kind)
        if folder is None:
            return own_weights(kind, target)
        return load_weights(kind, folder, target, self.any_target)

    def _tried(self, kind: str, target: LM) -> Any:
        """Weights for `auto`; None, and a line that says so, for those in the target's own
        checkpoint that cannot be used, since nobody asked for them.
        """
        if self.folder or self.random or self.beside(kind):
            return self.of(kind, target)
        try:
            return self.of(kind, target)
        except InputError as error:
            print(f"longdraft: note: no drafts by the model's own {kind}: {error}", file=sys.stderr)
            return None

    def _offered(self, target: LM) -> list[str]:
        """The kinds that `auto` and `fill` may use: that of the given folder, or those beside the
        target or in its own checkpoint.

        Random weights are of the first kind only.
        """
        if self.folder:
            return [kind_in(self.folder)]
        kinds = kinds_beside(METHODS.values())
        if self.random:
            return kinds[:1]
        loaded = self.model if self.model in SOURCES else str(target.hf.name_or_path)
        return [kind for kind in kinds if self.beside(kind) or inside(kind, loaded)]

    def origin(self, kind: str | None) -> str | None:
        """The origin of the weights as a record states it."""
        if kind is None or (kind == ANY and not self.folder and not self.random):
            return None
        if self.random:
            return f"random, seed {self.seed}"
        return Path(self.folder or self.beside(kind) or kind).name
