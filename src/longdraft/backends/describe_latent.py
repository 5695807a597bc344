"""Describes attention to latents that all heads share; see describe.py."""

from __future__ import annotations

from typing import Any

from longdraft.backends.decoder_layer import Attention, Linear, Norm, SharedLatent
from longdraft.backends.describe_attention import OF_ATTENTION, rotation_of
from longdraft.backends.describe_parts import PartFinder
from longdraft.backends.features.latent import latent_of
from longdraft.backends.known_modules import Unknown, check, class_of, reads

TO_LATENT = "kv_a_proj_with_mqa"
PARTS = {TO_LATENT, "kv_a_layernorm", "kv_b_proj", "o_proj"}
DIRECT = "q_proj"
NARROWED = ("q_a_proj", "q_a_layernorm", "q_b_proj")
SIZES = {
    *("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    "qk_head_dim",
}


def latent_attention_of(finder: PartFinder, module: Any) -> Attention:
    """The description of this attention. Raises Unknown."""
    kind = type(module).__name__
    narrowed = getattr(module, DIRECT, None) is None
    queries = set(NARROWED) if narrowed else {DIRECT}
    # those that a model of the same class lacks are None
    known = OF_ATTENTION | SIZES | {DIRECT, *NARROWED}
    check(module, class_of(finder.family, finder.family.attention), PARTS | queries, known)
    found = latent_of(module)
    if found is None or module.is_causal is not True:
        raise Unknown(f"{kind} has no latents that are known")
    heads, width = found.heads, finder.config.hidden_size
    if heads != finder.config.num_attention_heads:
        raise Unknown(f"{kind} has other numbers of heads than its config")
    rank, numbers = found.rank, found.dim + found.rotated
    q_down, q_norm = _narrowed(finder, module) if narrowed else (None, None)
    of_queries = "q_b_proj" if narrowed else DIRECT
    inputs = width if q_down is None else q_down.shape[0]
    rows = heads * (found.dim + found.value)
    latent = SharedLatent(
        norm=finder.norm(module.kv_a_layernorm, "kv_a_layernorm", rank),
        expand=finder.linear(module.kv_b_proj, "kv_b_proj", (rows, rank)),
        rank=rank,
        plain=found.dim,
        rotated=found.rotated,
        value=found.value,
        q_down=q_down,
        q_norm=q_norm,
        put_apart=_puts_apart(finder, module),
    )
    dim = rank + found.rotated
    return Attention(
        q=finder.linear(getattr(module, of_queries), of_queries, (heads * numbers, inputs)),
        k=finder.linear(getattr(module, TO_LATENT), TO_LATENT, (dim, width)),
        v=None,
        o=finder.linear(module.o_proj, "o_proj", (width, heads * found.value)),
        heads=heads,
        key_heads=1,
        dim=dim,
        scale=module.scaling,
        rotation=rotation_of(finder, module),
        latent=latent,
    )


def _narrowed(finder: PartFinder, module: Any) -> tuple[Linear, Norm]:
    down, norm, _ = NARROWED
    rank = finder.config.q_lora_rank
    shape = (rank, finder.config.hidden_size)
    return (
        finder.linear(getattr(module, down), down, shape),
        finder.norm(getattr(module, norm), norm, rank),
    )


def _puts_apart(finder: PartFinder, module: Any) -> bool:
    if not getattr(finder.config, "rope_interleave", False):
        return False
    if not reads(module, "rope_interleave"):
        raise Unknown(f"{type(module).__name__} has rope_interleave and does not read it")
    return True
