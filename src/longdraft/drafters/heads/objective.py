"""One loss for heads on the target's last state: TokenSwift's chained heads and Medusa's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from longdraft.core.options import NotNegative, Positive
from longdraft.drafters.heads.drafter import ChainedHeads, MedusaHeads
from longdraft.drafters.vocabulary import (
    choose_tokens,
    draft_logits,
    draft_vocabulary,
    known_tokens,
)
from longdraft.models.lm import LM
from longdraft.training.data import Corpus
from longdraft.training.frozen import Frozen, Labels, matches
from longdraft.training.rows import IGNORE

MEDUSA_DECAY = 0.8  # weight of each head relative to the previous one (Medusa sec. 2.2.1)


@dataclass
class HeadsObjective:
    """Head i at position t learns token t+2+i of the text, or the target's prediction of it
    (labels=target).

    Losses have equal weights for chained heads (TokenSwift sec. 3.2), decaying ones for Medusa's.
    """

    frozen: Frozen
    module: ChainedHeads | MedusaHeads
    labels: str = "target"

    def _read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B,S+1] -> the heads' input [B,S+1,d], and the target's prediction of the token
        after each.
        """
        last = self.frozen.last
        seen = self.frozen.read(tokens, states=[last], predict=True)
        state = seen.states[last]
        chained = isinstance(self.module, ChainedHeads)
        return (state if chained else self.frozen.lm.norm(state)), seen.predicted

    def _wanted(self, tokens: Tensor, predicted: Tensor) -> Tensor:
        """[B,S+1,heads]: predicted[t+1+i] or token t+2+i; IGNORE beyond the row."""
        after = predicted if self.labels == "target" else pad(tokens[:, 1:], (0, 1), value=IGNORE)
        shifted = [
            pad(after[:, 1 + i :], (0, 1 + i), value=IGNORE) for i in range(len(self.module))
        ]
        return torch.stack(shifted, -1)

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        read, predicted = self._read(tokens)
        wanted = self._wanted(tokens, predicted)
        guesses = self.module(read, lambda normed: normed)
        decay = 1.0 if isinstance(self.module, ChainedHeads) else MEDUSA_DECAY
        heads = zip(guesses.unbind(2), wanted.unbind(-1), strict=True)
        known = known_tokens(self.module.vocabulary)
        losses = torch.stack(
            [self.frozen.head_loss(x.flatten(0, 1), y.flatten(), known) for x, y in heads]
        )
        weights = decay ** torch.arange(len(losses), device=losses.device)
        return (losses * weights).sum() / weights.sum()

    def shares(self, tokens: Tensor) -> list[float]:
        """From token t+2 on, where the target predicts the text up to there: greedy decoding never
        reaches the rest.
        """
        read, predicted = self._read(tokens)
        drafts = self.module(
            read, partial(draft_logits, self.frozen.lm, self.module.vocabulary)
        ).argmax(-1)
        own = tokens[:, 1:] == predicted[:, :-1]
        shares = []
        going = torch.ones_like(own)
        for i in range(len(self.module)):
            going = going[:, : own.shape[1] - i] & own[:, i:]
            size = going.shape[1]
            shares.append(
                matches(drafts[:, :size, i][going], predicted[:, 1 + i : 1 + i + size][going])
            )
        return shares


def chained(target: LM, count: int = 3, vocab: int = 0) -> ChainedHeads:
    """Heads with zero matrices and the target's final norm: at first each predicts the token after
    the state's own.
    """
    eps = float(getattr(target.config, "rms_norm_eps", None) or 1e-6)
    heads = ChainedHeads(target.config.hidden_size, count, eps, draft_vocabulary(target, vocab))
    norm = target.architecture.layout.norm_weight()
    if norm is not None and norm.shape == heads.norm_out[0].shape:
        with torch.no_grad():
            heads.norm_out.copy_(norm.expand_as(heads.norm_out))
    return heads


def chained_objective(
    frozen: Frozen,
    corpus: Corpus,
    labels: Labels = "target",
    count: Positive = 3,
    vocab: NotNegative = 0,
) -> HeadsObjective:
    """vocab: draft this many of the text's most frequent tokens only (0: all)."""
    heads = chained(frozen.lm, count, vocab)
    choose_tokens(heads.vocabulary, corpus)
    return HeadsObjective(frozen, heads, labels)


def medusa_objective(
    frozen: Frozen,
    corpus: Corpus,
    labels: Labels = "target",
    count: Positive = 4,
    vocab: NotNegative = 0,
) -> HeadsObjective:
    """vocab: draft this many of the text's most frequent tokens only (0: all)."""
    heads = MedusaHeads(
        frozen.lm.config.hidden_size, count, vocabulary=draft_vocabulary(frozen.lm, vocab)
    )
    choose_tokens(heads.vocabulary, corpus)
    return HeadsObjective(frozen, heads, labels)
