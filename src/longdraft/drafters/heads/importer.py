"""Released heads: TokenSwift's lie inside a whole copy of their target, Medusa's in a file of their own."""

from __future__ import annotations

import re

import torch
from torch import nn

from longdraft.drafters.heads.drafter import ChainedHeads, MedusaHeads
from longdraft.drafters.released import BODY, TABLES, Names, Released
from longdraft.errors import InputError
from longdraft.models.lm import LM

CHAINED = re.compile(r"medusa_layers\.(\d+)\.")
SEPARATE = re.compile(r"(medusa_head\.|heads\.|)(\d+)\.0\.linear\.weight")


def fits(source: Released) -> bool:
    return any(CHAINED.match(n) or SEPARATE.fullmatch(n) for n in source.places)


def read(source: Released, target: LM) -> tuple[str, nn.Module]:
    """Raises InputError."""
    source.same("embed_tokens.weight", target.hf.get_input_embeddings().weight)
    source.same("lm_head.weight", target.hf.get_output_embeddings().weight)
    chained = [m for m in map(CHAINED.match, source.places) if m]
    dropped = TABLES | {n for n in source.places if BODY.fullmatch(n)}
    return _chained(source, target, chained, dropped) if chained else _separate(source, target, dropped)


def _count(source: Released, found: set[int]) -> int:
    """Heads are numbered from 0 without a gap."""
    if found != set(range(len(found))):
        raise InputError(f"{source.folder} has heads {sorted(found)}, and lacks some before the last: download it anew")
    return len(found)


def _chained(source: Released, target: LM, found: list[re.Match], dropped: set[str]) -> tuple[str, nn.Module]:
    count, d = _count(source, {int(m[1]) for m in found}), target.config.hidden_size
    part = ChainedHeads(d, count, float(getattr(target.config, "rms_norm_eps", 1e-6)))
    theirs = {"weight": "linear", "norm_in": "input_layernorm", "norm_out": "post_layernorm"}
    names: Names = {mine: [f"medusa_layers.{i}.{name}.weight" for i in range(count)] for mine, name in theirs.items()}
    return "heads", source.fill(part, names, dropped)


def _separate(source: Released, target: LM, dropped: set[str]) -> tuple[str, nn.Module]:
    """Of each head: one residual block, and an output matrix or none (then the target's reads it)."""
    found = [m for m in map(SEPARATE.fullmatch, source.places) if m]
    count, d, start = _count(source, {int(m[2]) for m in found}), target.config.hidden_size, found[0][1]
    if f"{start}0.1.linear.weight" in source:
        raise InputError(f"{source.folder} has several blocks in a head; longdraft's have one: import another")
    names: Names = {
        "weight": [f"{start}{i}.0.linear.weight" for i in range(count)],
        "bias": [f"{start}{i}.0.linear.bias" for i in range(count)],
    }
    own = f"{start}0.1.weight" in source
    if own:
        names["out"] = [f"{start}{i}.1.weight" for i in range(count)]
    part = MedusaHeads(d, count, torch.zeros(count, target.vocab, d) if own else None)
    return "medusa", source.fill(part, names, dropped)
