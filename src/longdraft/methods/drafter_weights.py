"""The weights that a run's drafters use: random or trained, each created or loaded once."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longdraft.drafters.kinds import KINDS, kind_in, load_weights, own_weights
from longdraft.errors import InputError
from longdraft.methods.method import ANY
from longdraft.methods.table import METHODS
from longdraft.methods.trials import kinds_beside
from longdraft.models.fetch import SOURCES
from longdraft.models.lm import LM
from longdraft.models.loading import BUNDLED

PACKAGE = "longdraft_drafters"


def packaged() -> Path | None:
    """The folder of the package longdraft-drafters if it is installed; none of its code is run."""
    spec = find_spec(PACKAGE)
    places = (spec and spec.submodule_search_locations) or []
    return next((Path(place) for place in places), None)


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
        within = KINDS[kind].within
        inside = within is not None and self.model != "" and within.found(Path(self.model))
        return inside or self.beside(kind) is not None

    def of(self, kind: str | None, target: LM) -> Any:
        """Weights of this kind; None without a kind or if there are none.

        `methods.build` then raises.
        """
        if kind is not None and kind not in self.made:
            self.made[kind] = self._make(kind, target)
        return self.made[kind] if kind is not None else None

    def _make(self, kind: str, target: LM) -> Any:
        if kind == ANY:
            return {each: self.of(each, target) for each in self._offered()}
        if self.random:
            return KINDS[kind].random(target, self.seed)
        folder = self.folder or self.beside(kind)
        if folder is None:
            return own_weights(kind, target)
        return load_weights(kind, folder, target, self.any_target)

    def _offered(self) -> list[str]:
        """The kinds that `auto` and `fill` may use: that of the given folder, or those beside the
        target.

        Random weights are of the first kind only.
        """
        if self.folder:
            return [kind_in(self.folder)]
        kinds = kinds_beside(METHODS.values())
        return kinds[:1] if self.random else [kind for kind in kinds if self.beside(kind)]

    def origin(self, kind: str | None) -> str | None:
        """The origin of the weights as a record states it."""
        if kind is None or (kind == ANY and not self.folder and not self.random):
            return None
        if self.random:
            return f"random, seed {self.seed}"
        return Path(self.folder or self.beside(kind) or kind).name
