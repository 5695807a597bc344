"""LongSpec's block as a kind of drafter: how it is created, stored, imported and trained."""

from __future__ import annotations

import re

from longdraft.drafters.checkpoint import ModuleKind
from longdraft.drafters.glide.block import Glide, random_glide
from longdraft.drafters.kind import Training
from longdraft.drafters.released import BODY, TABLES, Released, renamed
from longdraft.models.lm import LM

NAMES = {
    "self_norm": "input_layernorm",
    "cross_norm": "post_self_attention_layernorm",
    "mlp_norm": "post_cross_attention_layernorm",
    **{f"{p}_proj": f"self_attn.{p}_proj" for p in "qkvo"},
    **{f"cross_{p}_proj": f"cross_attn.{p}_proj" for p in "qo"},
    **{f"{p}_proj": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
}
# Cross-attention reads the target's keys and values, so its own projections for them are never
# used.
UNUSED = re.compile(r"cross_attn\.[kv]_proj\.(weight|bias)|(self|cross)_attn\.rotary_emb\.inv_freq")


def _read(source: Released, target: LM) -> Glide | None:
    """sail/longspec-*: one decoder layer with cross-attention and a window of 512 positions,
    without its target.
    """
    if "cross_attn.q_proj.weight" not in source:
        return None
    block = Glide(target)
    source.check_tables(target)
    dropped = {n for n in source.places if UNUSED.fullmatch(n) or BODY.fullmatch(n)}
    return source.fill(block, renamed(block, NAMES), TABLES | dropped)


def _build(target: LM, window: int = 512, with_norm: bool = False, vocab: int = 0) -> Glide:
    return Glide(target, window, with_norm, vocab)


GLIDE = ModuleKind(
    name="glide",
    title="a GLIDE block of LongSpec",
    weights=Glide,
    random=random_glide,
    options_of=lambda block: {
        "window": block.window,
        "with_norm": block.with_norm,
        "vocab": len(block.vocabulary or ()),
    },
    build=_build,
    importer=_read,
    training=Training(
        "glide",
        "Train LongSpec's block, which reads the target's KV cache.",
        "longdraft.drafters.glide.objective:objective",
    ),
)
