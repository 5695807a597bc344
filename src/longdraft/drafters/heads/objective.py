"""Heads on the target's last state: TokenSwift's chained ones and Medusa's, by one loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from longdraft.drafters.heads.drafter import ChainedHeads, MedusaHeads
from longdraft.models.lm import LM
from longdraft.training.frozen import Frozen, matches
from longdraft.training.rows import IGNORE

MEDUSA_DECAY = 0.8  # weight of each head over that of the head before it (Medusa sec. 2.2.1)


@dataclass
class HeadsObjective:
    """Head i at position t learns token t+2+i: the text's, or what the target itself says there (labels=target).

    Equal weights for chained heads (TokenSwift sec. 3.2), decaying ones for Medusa's.
    """

    frozen: Frozen
    part: ChainedHeads | MedusaHeads
    labels: str = "target"

    def _read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B,S+1] -> what heads read [B,S+1,d], and after each token the next one as the target says it."""
        last = self.frozen.last
        state = self.frozen.read(tokens, states=[last]).states[last]
        chained = isinstance(self.part, ChainedHeads)
        return (state if chained else self.frozen.lm.norm(state)), self.frozen.says(state)

    def _wanted(self, tokens: Tensor, said: Tensor) -> Tensor:
        """[B,S+1,heads]: said[t+1+i] or token t+2+i; IGNORE beyond the row."""
        after = said if self.labels == "target" else pad(tokens[:, 1:], (0, 1), value=IGNORE)
        shifted = [pad(after[:, 1 + i :], (0, 1 + i), value=IGNORE) for i in range(len(self.part))]
        return torch.stack(shifted, -1)

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        read, said = self._read(tokens)
        wanted, guesses = self._wanted(tokens, said), self.part(read, lambda normed: normed)
        decay = 1.0 if isinstance(self.part, ChainedHeads) else MEDUSA_DECAY
        each = [
            self.frozen.head_loss(guesses[:, :, i].flatten(0, 1), wanted[..., i].flatten())
            for i in range(len(self.part))
        ]
        losses = torch.stack(each)
        weights = decay ** torch.arange(len(losses), device=losses.device)
        return (losses * weights).sum() / weights.sum()

    def shares(self, tokens: Tensor) -> list[float]:
        """The first is of the token after the target's own next one. Counted where the text until then is the target's:
        no head can foresee what the target would not say, and greedy decoding never meets it."""
        read, said = self._read(tokens)
        found = self.part(read, self.frozen.lm.project).argmax(-1)
        own, shares = tokens[:, 1:] == said[:, :-1], []
        going = torch.ones_like(own)
        for i in range(len(self.part)):
            going = going[:, : own.shape[1] - i] & own[:, i:]
            size = going.shape[1]
            shares.append(matches(found[:, :size, i][going], said[:, 1 + i : 1 + i + size][going]))
        return shares


def chained(target: LM, count: int = 3) -> ChainedHeads:
    """Zero matrices and the target's own norm: at first every head says what the state says."""
    heads = ChainedHeads(target.config.hidden_size, count, float(getattr(target.config, "rms_norm_eps", None) or 1e-6))
    norm = getattr(target.hf.get_decoder().norm, "weight", None)
    if norm is not None and norm.shape == heads.norm_out[0].shape:
        with torch.no_grad():
            heads.norm_out.copy_(norm.expand_as(heads.norm_out))
    return heads


def medusa(target: LM, count: int = 4) -> MedusaHeads:
    return MedusaHeads(target.config.hidden_size, count)
