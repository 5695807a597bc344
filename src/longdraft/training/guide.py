"""Shows chosen heads where to look, for the first steps of a run: left alone, small models find induction late.

A previous-token head and, in the layers above, induction heads get an extra loss: minus the log of the attention that
head 0 of the layer gives to the place it should read. Afterwards the heads are on their own.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from longdraft.training.rows import IGNORE

WANTED: dict[int, torch.Tensor] = {}  # layer -> where head 0 of each position should look [B,T], or IGNORE
FOUND: list[torch.Tensor] = []


def guided_attention(module, query, key, value, mask, scaling=None, **kwargs):
    """SDPA; in layers with a wish it also records head 0's loss. query, key [B,H,T,D]."""
    wanted = WANTED.get(module.layer_idx)
    if wanted is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        logits = (query[:, 0] @ key[:, 0].transpose(-1, -2)).float() * scale
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        FOUND.append(
            cross_entropy(logits.masked_fill(later, -1e9).flatten(0, 1), wanted.flatten(), ignore_index=IGNORE)
        )
    return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)


AttentionInterface.register("longdraft_guided", guided_attention)
AttentionMaskInterface.register("longdraft_guided", sdpa_mask)


def wishes(sources: torch.Tensor, layers: int) -> dict[int, torch.Tensor]:
    """sources [B,S+1]: for a token that repeats an earlier one its place, else IGNORE -> layer: wanted places [B,S].

    The middle layer looks one token back; those above it look at the token that comes next, where it was said before.
    """
    count, length = sources.shape[0], sources.shape[1] - 1
    back = torch.arange(-1, length - 1).expand(count, length).clone()
    back[:, 0] = IGNORE
    first = (layers - 1) // 2
    return {first: back, **dict.fromkeys(range(first + 1, layers), sources[:, 1:])}


def guided(model, loss_of, sources: torch.Tensor):
    """-> (loss, mean guidance loss), both of `loss_of()` run under guidance."""
    before = model.config._attn_implementation
    WANTED.update(wishes(sources, model.config.num_hidden_layers))
    FOUND.clear()
    try:
        model.config._attn_implementation = "longdraft_guided"
        loss = loss_of()
        return loss, torch.stack([f for f in FOUND if torch.isfinite(f)]).mean()
    finally:
        model.config._attn_implementation = before
        WANTED.clear()
        FOUND.clear()
