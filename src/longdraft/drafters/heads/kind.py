"""The records of TokenSwift's chained heads and of Medusa's heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from longdraft.drafters.checkpoint import ModuleFormat
from longdraft.drafters.heads import importer
from longdraft.drafters.heads.drafter import ChainedHeads, MedusaHeads, random_heads, random_medusa
from longdraft.drafters.kind import DrafterKind, Importer, Training
from longdraft.models.lm import LM


def _build_chained(target: LM, heads: int = 3, eps: float = 1e-6) -> ChainedHeads:
    return ChainedHeads(target.config.hidden_size, heads, eps)


def _build_medusa(target: LM, heads: int, own: bool) -> MedusaHeads:
    d = target.config.hidden_size
    return MedusaHeads(d, heads, torch.zeros(heads, target.vocab, d) if own else None)


def _chained_objective() -> Callable[..., Any]:
    from longdraft.drafters.heads.objective import chained_objective

    return chained_objective


def _medusa_objective() -> Callable[..., Any]:
    from longdraft.drafters.heads.objective import medusa_objective

    return medusa_objective


CHAINED = DrafterKind(
    "heads",
    "TokenSwift's heads",
    ChainedHeads,
    random_heads,
    ModuleFormat(lambda heads: {"heads": len(heads), "eps": heads.eps}, _build_chained),
    Importer(importer.fits_chained, importer.read_chained),
    Training("heads", "Train TokenSwift's chained heads.", _chained_objective),
)
MEDUSA = DrafterKind(
    "medusa",
    "Medusa's heads",
    MedusaHeads,
    random_medusa,
    ModuleFormat(lambda heads: {"heads": len(heads), "own": heads.out is not None}, _build_medusa),
    Importer(importer.fits_medusa, importer.read_medusa),
    Training("medusa", "Train Medusa's heads.", _medusa_objective),
)
