"""The record that describes one kind of drafter with weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from longdraft.drafters.released import Released
from longdraft.models.lm import LM


class Training(NamedTuple):
    """How `longdraft train COMMAND` trains this kind."""

    command: str
    help: str
    # "module:function" of build(frozen, corpus, **options) -> Objective, imported only for training
    objective: str


class Within(NamedTuple):
    """How weights of this kind are found in a target's own checkpoint, for kinds with which models
    are released.
    """

    found: Callable[[Path], bool]  # whether a model's folder has some. Raises InputError.
    read: Callable[[LM], Any]  # Raises InputError, also if there are none.


class Layout(NamedTuple):
    """A drafter as `speculators` stores it: weights by name, and the part of config.json that its
    kind determines.
    """

    weights: dict[str, Tensor]
    config: dict[str, Any]
    drafted: int  # tokens that a step drafts, unless its user asks for another number


@dataclass(frozen=True, kw_only=True)
class DrafterKind:
    """One kind of drafter with weights: how these are created, stored, imported and trained. A
    subclass stores them.
    """

    name: str  # in a saved drafter's config.json, and what a method's `needs` refers to
    title: str
    weights: type  # the class of the weights
    random: Callable[[LM, int], Any]  # (target, seed) -> untrained weights
    importer: Callable[[Released, LM], nn.Module | None] | None = (
        None  # None: not this kind. Raises InputError.
    )
    exporter: Callable[[Any, LM], Layout] | None = (
        None  # None: there is no such kind. Raises InputError.
    )
    training: Training | None = None
    within: Within | None = None
    files: ClassVar[tuple[str, ...] | None] = (
        None  # what `save` writes; None: it depends on the weights
    )

    def save(
        self, weights: Any, folder: Path, target: LM, facts: dict[str, Any], tokenizer: Any = None
    ) -> None:
        """Write the weights, and `facts` as training.json; nothing changes on an error. Raises
        InputError.
        """
        raise NotImplementedError

    def load(self, folder: str, target: LM, any_target: bool = False) -> Any:
        """The weights in a folder, or in a repository of the Hub, in the target's dtype and on its
        device.

        any_target: also accept weights that were trained for another target of the same sizes.
        Raises InputError.
        """
        raise NotImplementedError
