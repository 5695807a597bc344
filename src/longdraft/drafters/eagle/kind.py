"""The records of EAGLE-2 and EAGLE-3."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from longdraft.drafters.checkpoint import ModuleFormat
from longdraft.drafters.eagle import importer
from longdraft.drafters.eagle.block import Eagle2Block, Eagle3Block, random_eagle2, random_eagle3
from longdraft.drafters.kind import DrafterKind, Importer, Training
from longdraft.models.lm import LM


def _build_eagle2(target: LM, layer: dict) -> Eagle2Block:
    return Eagle2Block(SimpleNamespace(**layer))


def _build_eagle3(target: LM, layer: dict, vocab: int) -> Eagle3Block:
    return Eagle3Block(SimpleNamespace(**layer), vocab)


def _objective() -> Callable[..., Any]:
    from longdraft.drafters.eagle.objective import objective

    return objective


EAGLE2 = DrafterKind(
    "eagle2",
    "a layer of EAGLE-2",
    Eagle2Block,
    random_eagle2,
    ModuleFormat(lambda block: {"layer": block.layer}, _build_eagle2),
    Importer(importer.fits_eagle2, importer.read_eagle2),
)
EAGLE3 = DrafterKind(
    "eagle3",
    "a layer of EAGLE-3",
    Eagle3Block,
    random_eagle3,
    ModuleFormat(lambda block: {"layer": block.layer, "vocab": block.known}, _build_eagle3),
    Importer(importer.fits_eagle3, importer.read_eagle3),
    Training("eagle", "Train an EAGLE-3 layer on its own outputs.", _objective),
)
