"""The record of LongSpec's block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longdraft.drafters.checkpoint import ModuleFormat
from longdraft.drafters.glide import importer
from longdraft.drafters.glide.block import Glide, random_glide
from longdraft.drafters.kind import DrafterKind, Importer, Training
from longdraft.models.lm import LM


def _build(target: LM, window: int = 512, with_norm: bool = False) -> Glide:
    return Glide(target, window, with_norm)


def _objective() -> Callable[..., Any]:
    from longdraft.drafters.glide.objective import objective

    return objective


GLIDE = DrafterKind(
    "glide",
    "a GLIDE block of LongSpec",
    Glide,
    random_glide,
    ModuleFormat(lambda block: {"window": block.window, "with_norm": block.with_norm}, _build),
    Importer(importer.fits, importer.read),
    Training("glide", "Train LongSpec's draft block, which reads the target's own KV cache.", _objective),
)
