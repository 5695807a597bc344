"""Attention guidance for the first steps of training a target.

Without it, small models learn induction late. Head 0 of the middle layer is guided to the previous
token, head 0 of each later layer to the token to copy. The extra loss is minus the log of the
attention weight at that position. In a hybrid both
are guided to the token to copy: its recurrent layers bring the previous token along.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longdraft.training.observed import observed
from longdraft.training.rows import IGNORE


def wanted_positions(sources: Tensor, layers: int, recurrent: bool = False) -> dict[int, Tensor]:
    """The positions [B,S] that each layer is guided to: {layer: positions}.

    sources [B,S+1]: the position of the token that each token repeats, or IGNORE. The middle layer
    attends to the previous token, unless others are recurrent; later layers attend to the earlier
    occurrence of the next token.
    """
    count = sources.shape[0]
    length = sources.shape[1] - 1
    back = torch.arange(-1, length - 1).expand(count, length).clone()
    back[:, 0] = IGNORE
    first = (layers - 1) // 2
    positions = dict.fromkeys(range(first, layers), sources[:, 1:])
    if not recurrent:
        positions[first] = back
    return positions


def guided(model, loss_of, sources: Tensor):
    """-> (loss, mean guidance loss, 0 if no token repeats another) of one call of `loss_of`."""
    recurrent = "linear_attention" in model.config.layer_types
    wanted = wanted_positions(sources, model.config.num_hidden_layers, recurrent)
    losses = []

    def observer(layer, query: Tensor, key: Tensor, scale: float) -> None:
        if layer.layer_idx in wanted:
            logits = (query[:, 0] @ key[:, 0].transpose(-1, -2)).float() * scale
            later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(later, -1e9).flatten(0, 1)
            positions = wanted[layer.layer_idx].flatten()
            losses.append(cross_entropy(logits, positions, ignore_index=IGNORE))

    with observed(model, observer):
        loss = loss_of()
    known = [f for f in losses if torch.isfinite(f)]
    return loss, torch.stack(known).mean() if known else torch.zeros_like(loss)
