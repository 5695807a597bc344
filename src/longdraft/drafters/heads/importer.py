"""Released heads: TokenSwift's are stored within a copy of their target, Medusa's in a file of their own."""

from __future__ import annotations

import re

import torch

from longdraft.drafters.heads.drafter import ChainedHeads, MedusaHeads
from longdraft.drafters.released import BODY, TABLES, Names, Released
from longdraft.errors import InputError
from longdraft.models.lm import LM

CHAINED = re.compile(r"medusa_layers\.(\d+)\.")
SEPARATE = re.compile(r"(medusa_head\.|heads\.|)(\d+)\.0\.linear\.weight")
CHAINED_NAMES = {"weight": "linear", "norm_in": "input_layernorm", "norm_out": "post_layernorm"}


def fits_chained(source: Released) -> bool:
    return any(map(CHAINED.match, source.places))


def fits_medusa(source: Released) -> bool:
    return any(map(SEPARATE.fullmatch, source.places))


def read_chained(source: Released, target: LM) -> ChainedHeads:
    """Raises InputError."""
    dropped = _tables(source, target)
    count = _count(source, {int(m[1]) for m in map(CHAINED.match, source.places) if m})
    heads = ChainedHeads(target.config.hidden_size, count, float(getattr(target.config, "rms_norm_eps", 1e-6)))
    names: Names = {
        ours: [f"medusa_layers.{i}.{theirs}.weight" for i in range(count)] for ours, theirs in CHAINED_NAMES.items()
    }
    return source.fill(heads, names, dropped)


def read_medusa(source: Released, target: LM) -> MedusaHeads:
    """Each head is one residual block with an output matrix, or without one and then uses the target's.

    Raises InputError.
    """
    dropped = _tables(source, target)
    found = [m for m in map(SEPARATE.fullmatch, source.places) if m]
    count, d, start = _count(source, {int(m[2]) for m in found}), target.config.hidden_size, found[0][1]
    if f"{start}0.1.linear.weight" in source:
        raise InputError(f"{source.folder} has several blocks per head; longdraft supports one: import another drafter")
    names: Names = {
        "weight": [f"{start}{i}.0.linear.weight" for i in range(count)],
        "bias": [f"{start}{i}.0.linear.bias" for i in range(count)],
    }
    own = f"{start}0.1.weight" in source
    if own:
        names["out"] = [f"{start}{i}.1.weight" for i in range(count)]
    return source.fill(MedusaHeads(d, count, torch.zeros(count, target.vocab, d) if own else None), names, dropped)


def _tables(source: Released, target: LM) -> set[str]:
    """Names of the copy of the target that is stored with the heads; its tables must equal the target's."""
    source.same("embed_tokens.weight", target.hf.get_input_embeddings().weight)
    source.same("lm_head.weight", target.hf.get_output_embeddings().weight)
    return TABLES | {n for n in source.places if BODY.fullmatch(n)}


def _count(source: Released, found: set[int]) -> int:
    """The number of heads, which must be numbered from 0 without a gap."""
    if found != set(range(len(found))):
        raise InputError(f"{source.folder} only has the heads {sorted(found)}: download it again")
    return len(found)
