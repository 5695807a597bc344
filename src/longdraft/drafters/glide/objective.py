"""LongSpec's block: labels from the target, flash noisy training, anchor-offset indices (sec.
3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from longdraft.core.options import NotNegative, Positive
from longdraft.drafters.glide.block import Glide
from longdraft.drafters.vocabulary import choose_tokens, known_tokens
from longdraft.training.data import Corpus
from longdraft.training.frozen import Frozen, TargetStates, matches

ANCHOR_ROWS = 1200  # longer rows keep their positions, as in the published recipe


@dataclass
class GlideObjective:
    """A query at position t reads the target's keys 0..t-lag: as the root at lag 1, as a node of
    depth d at lag d+1.

    lags: the lag of a step is drawn from 1..lags (flash noisy training; 1 turns it off). anchors:
    this many first positions of a short row keep their index, the others are shifted by a random
    offset below `reach` (0 turns it off). labels: the "target"'s most likely next token, its
    distribution ("law"), or the "text"'s next token.
    """

    frozen: Frozen
    module: Glide
    labels: str = "target"
    lags: int = 5
    anchors: int = 4
    reach: int = 32768

    @property
    def _known(self) -> Tensor | None:
        return known_tokens(self.module.vocabulary)

    def _read(self, tokens: Tensor, position: Tensor) -> TargetStates:
        states = [self.frozen.last] if self.labels == "law" else []
        return self.frozen.read(tokens, position, states, self.module.host.layer, predict=True)

    def positions(self, rows: int, length: int, rng: np.random.Generator) -> Tensor:
        """[rows,length]: 0, 1, 2, ..., with a jump after the anchors in short rows."""
        position = torch.arange(length)
        most = min(self.reach, self.frozen.lm.positions) - length
        if self.anchors and length <= ANCHOR_ROWS and most > 0:
            position[self.anchors :] += int(rng.integers(most + 1))
        return position.to(self.frozen.lm.device).expand(rows, -1)

    def hidden(self, tokens: Tensor, position: Tensor, seen: TargetStates, lag: int) -> Tensor:
        """tokens, position [B,S] -> z [B,S,d] of every position as a draft node of depth lag -
        1.
        """
        block = self.module

        def cross(q: Tensor) -> Tensor:
            return lagged(q, seen.keys, seen.values, lag, block.host.window)

        return block.hidden(tokens, position, lambda q, k, v: banded(q, k, v, block.window), cross)

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        given = tokens[:, :-1]
        after = tokens[:, 1:]
        position = self.positions(given.shape[0], given.shape[1], rng)
        lag = int(rng.integers(1, self.lags + 1))
        last = self.frozen.last
        norm = self.frozen.lm.norm
        seen = self._read(given, position)
        z = self.hidden(given, position, seen, lag)
        normed = (norm(z) if self.module.with_norm else z).flatten(0, 1)
        if self.labels == "law":
            return self.frozen.distribution_loss(
                normed, norm(seen.states[last]).flatten(0, 1), self._known
            )
        wanted = seen.predicted if self.labels == "target" else after
        return self.frozen.head_loss(normed, wanted.flatten(), self._known)

    def shares(self, tokens: Tensor) -> list[float]:
        given = tokens[:, :-1]
        position = torch.arange(given.shape[1], device=given.device).expand_as(given)
        seen = self._read(given, position)
        rates = []
        for lag in range(1, self.lags + 1):
            z = self.hidden(given, position, seen, lag)
            rates.append(matches(self.module.head(z).argmax(-1)[:, lag:], seen.predicted[:, lag:]))
        return rates


def lagged(q: Tensor, k: Tensor | None, v: Tensor | None, lag: int, window: int | None) -> Tensor:
    """q [B,H,S,D], k, v [B,K,S,D] -> [B,S,H,Dv]: query t attends to keys 0..t-lag, at most the
    latest `window`; zeros if there are none.
    """
    assert k is not None and v is not None
    size = q.shape[2]
    if lag >= size:
        return q.new_zeros(q.shape[0], size, q.shape[1], v.shape[-1])
    k = k[:, :, : size - lag].to(q.dtype)
    v = v[:, :, : size - lag].to(q.dtype)
    out = banded(q[:, :, lag:], k, v, None if window is None else window - 1)
    return F.pad(out, (0, 0, 0, 0, lag, 0))


def banded(q: Tensor, k: Tensor, v: Tensor, back: int | None) -> Tensor:
    """q [B,H,S,D], k, v [B,K,S,D] -> [B,S,H,Dv]: query t attends to keys t-back..t (None: 0..t),
    without an [S,S] mask.
    """
    size = q.shape[2]
    shared = q.shape[1] != k.shape[1]
    if back is None or size <= back + 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared).transpose(
            1, 2
        )
    block = max(back, 1)
    outputs = []
    for start in range(0, size, block):
        low = max(0, start - back)
        end = min(size, start + block)
        behind = torch.arange(start, end)[:, None] - torch.arange(low, end)
        seen = (behind >= 0) & (behind <= back)
        mine = q[:, :, start:end]
        keys = k[:, :, low:end]
        values = v[:, :, low:end]
        out = F.scaled_dot_product_attention(
            mine, keys, values, seen.to(q.device), enable_gqa=shared
        )
        outputs.append(out.transpose(1, 2))
    return torch.cat(outputs, 1)


def objective(
    frozen: Frozen,
    corpus: Corpus,
    labels: Literal["target", "text", "law"] = "target",
    lags: Positive = 5,
    anchors: NotNegative = 4,
    window: Positive = 512,
    norm: NotNegative = 1,
    vocab: NotNegative = 0,
) -> GlideObjective:
    """labels=law: the target's distribution. lags=1: no flash noisy training. anchors=0: no
    anchor-offset indices. norm=0: without the target's final norm, as published. vocab: draft this
    many of the text's most frequent tokens only (0: all).
    """
    block = Glide(frozen.lm, window, bool(norm), vocab)
    choose_tokens(block.vocabulary, corpus)
    return GlideObjective(frozen, block, labels, lags, anchors)
