"""LongSpec's released blocks (sail/longspec-*): one decoder layer with cross-attention, stored without its target."""

from __future__ import annotations

import re

from longdraft.drafters.glide.block import Glide
from longdraft.drafters.released import BODY, TABLES, Names, Released
from longdraft.models.lm import LM

NAMES = {
    "self_norm": "input_layernorm",
    "cross_norm": "post_self_attention_layernorm",
    "mlp_norm": "post_cross_attention_layernorm",
    **{f"{p}_proj": f"self_attn.{p}_proj" for p in "qkvo"},
    **{f"cross_{p}_proj": f"cross_attn.{p}_proj" for p in "qo"},
    **{f"{p}_proj": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
}
# Cross-attention reads the target's keys and values, so its own projections for them are never used.
UNUSED = re.compile(r"cross_attn\.[kv]_proj\.(weight|bias)|(self|cross)_attn\.rotary_emb\.inv_freq")


def fits(source: Released) -> bool:
    return "cross_attn.q_proj.weight" in source


def read(source: Released, target: LM) -> Glide:
    """A block with LongSpec's window of 512 positions. Raises InputError."""
    block = Glide(target)
    names: Names = {}
    for ours in block.state_dict():
        module, field = ours.rsplit(".", 1)
        names[ours] = f"{NAMES[module]}.{field}"
    source.same("embed_tokens.weight", target.hf.get_input_embeddings().weight)
    source.same("lm_head.weight", target.hf.get_output_embeddings().weight)
    dropped = {n for n in source.places if UNUSED.fullmatch(n) or BODY.fullmatch(n)}
    return source.fill(block, names, TABLES | dropped)
