"""Attention guidance for the first steps of training a target: without it, small models learn induction late.

Head 0 of the middle layer is guided to the previous token, head 0 of each later layer to the token to copy. The extra
loss is minus the log of the attention weight at that position.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from longdraft.training.rows import IGNORE

WANTED: dict[int, torch.Tensor] = {}  # layer -> position that head 0 should attend to [B,T], or IGNORE
FOUND: list[torch.Tensor] = []


def guided_attention(module, query, key, value, mask, scaling=None, **kwargs):
    """SDPA; in guided layers it also records head 0's loss. query, key [B,H,T,D]."""
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


def wanted_positions(sources: torch.Tensor, layers: int) -> dict[int, torch.Tensor]:
    """sources [B,S+1]: the position of the token that each token repeats, or IGNORE -> {layer: positions [B,S]}.

    The middle layer attends to the previous token; later layers attend to the earlier occurrence of the next token.
    """
    count, length = sources.shape[0], sources.shape[1] - 1
    back = torch.arange(-1, length - 1).expand(count, length).clone()
    back[:, 0] = IGNORE
    first = (layers - 1) // 2
    return {first: back, **dict.fromkeys(range(first + 1, layers), sources[:, 1:])}


def guided(model, loss_of, sources: torch.Tensor):
    """-> (loss, mean guidance loss) of one call of `loss_of`."""
    before = model.config._attn_implementation
    WANTED.update(wanted_positions(sources, model.config.num_hidden_layers))
    FOUND.clear()
    try:
        model.config._attn_implementation = "longdraft_guided"
        loss = loss_of()
        return loss, torch.stack([f for f in FOUND if torch.isfinite(f)]).mean()
    finally:
        model.config._attn_implementation = before
        WANTED.clear()
        FOUND.clear()
