"""TokenSwift's and Medusa's heads as kinds of drafters: how they are created, stored, imported and
trained.
"""

from __future__ import annotations

import re

import torch

from longdraft.drafters.checkpoint import ModuleKind
from longdraft.drafters.heads.drafter import ChainedHeads, MedusaHeads, random_heads, random_medusa
from longdraft.drafters.kind import Training
from longdraft.drafters.released import BODY, TABLES, Names, Released
from longdraft.drafters.vocabulary import draft_vocabulary
from longdraft.errors import InputError
from longdraft.models.lm import LM

CHAINED_NAME = re.compile(r"medusa_layers\.(\d+)\.")
MEDUSA_NAME = re.compile(r"(medusa_head\.|heads\.|)(\d+)\.0\.linear\.weight")
NAMES = {"weight": "linear", "norm_in": "input_layernorm", "norm_out": "post_layernorm"}


def _build_chained(target: LM, heads: int = 3, eps: float = 1e-6, vocab: int = 0) -> ChainedHeads:
    return ChainedHeads(target.config.hidden_size, heads, eps, draft_vocabulary(target, vocab))


def _build_medusa(target: LM, heads: int, own: bool, vocab: int = 0) -> MedusaHeads:
    d = target.config.hidden_size
    return MedusaHeads(
        d,
        heads,
        torch.zeros(heads, target.vocab, d) if own else None,
        draft_vocabulary(target, vocab),
    )


def _read_chained(source: Released, target: LM) -> ChainedHeads | None:
    """They are released within a copy of their target."""
    matches = [m for m in map(CHAINED_NAME.match, source.places) if m]
    if not matches:
        return None
    dropped = _tables(source, target)
    count = _count(source, {int(m[1]) for m in matches})
    heads = _build_chained(target, count, float(getattr(target.config, "rms_norm_eps", 1e-6)))
    names: Names = {
        ours: [f"medusa_layers.{i}.{theirs}.weight" for i in range(count)]
        for ours, theirs in NAMES.items()
    }
    return source.fill(heads, names, dropped)


def _read_medusa(source: Released, target: LM) -> MedusaHeads | None:
    """Each head is one residual block, with an output matrix or (to use the target's) without."""
    matches = [m for m in map(MEDUSA_NAME.fullmatch, source.places) if m]
    if not matches:
        return None
    dropped = _tables(source, target)
    count = _count(source, {int(m[2]) for m in matches})
    start = matches[0][1]
    if f"{start}0.1.linear.weight" in source:
        raise InputError(
            f"{source.folder} has several blocks per head; longdraft supports one: import "
            "another drafter"
        )
    names: Names = {
        field: [f"{start}{i}.0.linear.{field}" for i in range(count)]
        for field in ("weight", "bias")
    }
    own = f"{start}0.1.weight" in source
    if own:
        names["out"] = [f"{start}{i}.1.weight" for i in range(count)]
    return source.fill(_build_medusa(target, count, own), names, dropped)


def _tables(source: Released, target: LM) -> set[str]:
    """Names of the copy of the target that is stored with the heads; its tables must equal the
    target's.
    """
    source.check_tables(target)
    return TABLES | {n for n in source.places if BODY.fullmatch(n)}


def _count(source: Released, numbers: set[int]) -> int:
    """The number of heads, which must be numbered from 0 without a gap."""
    if numbers != set(range(len(numbers))):
        raise InputError(f"{source.folder} only has the heads {sorted(numbers)}: download it again")
    return len(numbers)


CHAINED = ModuleKind(
    name="heads",
    title="TokenSwift's heads",
    weights=ChainedHeads,
    random=random_heads,
    options_of=lambda heads: {
        "heads": len(heads),
        "eps": heads.eps,
        "vocab": len(heads.vocabulary or ()),
    },
    build=_build_chained,
    importer=_read_chained,
    training=Training(
        "heads",
        "Train TokenSwift's chained heads.",
        "longdraft.drafters.heads.objective:chained_objective",
    ),
)
MEDUSA = ModuleKind(
    name="medusa",
    title="Medusa's heads",
    weights=MedusaHeads,
    random=random_medusa,
    options_of=lambda heads: {
        "heads": len(heads),
        "own": heads.out is not None,
        "vocab": len(heads.vocabulary or ()),
    },
    build=_build_medusa,
    importer=_read_medusa,
    training=Training(
        "medusa", "Train Medusa's heads.", "longdraft.drafters.heads.objective:medusa_objective"
    ),
)
