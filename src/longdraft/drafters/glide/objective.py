"""LongSpec's block: the target's own words as labels, flash noisy training, anchor-offset indices (sec. 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from longdraft.drafters.glide.block import Glide
from longdraft.training.frozen import Frozen, Seen, matches

ANCHOR_ROWS = 1200  # longer rows keep their plain positions, as in the published recipe


@dataclass
class GlideObjective:
    """A query at position t reads the target's keys 0..t-lag: at lag 1 it stands for the root, at lag d+1 for depth d.

    lags: the lag of a step is drawn from 1..lags (flash noisy training; 1: none). anchors: so many first positions stay
    while the others of a short row are shifted by a random offset below `reach` (0: none are shifted). labels: what the
    "target" itself would say next, the "law" by which it would, or the "text".
    """

    frozen: Frozen
    part: Glide
    labels: str = "target"
    lags: int = 5
    anchors: int = 4
    reach: int = 32768

    def _read(self, tokens: Tensor, position: Tensor) -> tuple[Seen, Tensor]:
        last, host = self.frozen.last, self.part.host
        seen = self.frozen.read(tokens, position, [last], host.layer)
        return seen, self.frozen.says(seen.states[last])

    def positions(self, rows: int, length: int, rng: np.random.Generator) -> Tensor:
        """[rows,length]: 0, 1, 2, ..., a jump after the anchors in short rows."""
        position = torch.arange(length)
        most = min(self.reach, self.frozen.lm.positions) - length
        if self.anchors and length <= ANCHOR_ROWS and most > 0:
            position[self.anchors :] += int(rng.integers(most + 1))
        return position.to(self.frozen.lm.device).expand(rows, -1)

    def hidden(self, tokens: Tensor, position: Tensor, seen: Seen, lag: int) -> Tensor:
        """tokens, position [B,S] -> z [B,S,d] of every position as a draft node of depth lag - 1."""
        part = self.part
        return part.hidden(
            tokens,
            position,
            lambda q, k, v: banded(q, k, v, part.window),
            lambda q: lagged(q, seen.keys, seen.values, lag, part.host.window),
        )

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        given, after = tokens[:, :-1], tokens[:, 1:]
        position = self.positions(given.shape[0], given.shape[1], rng)
        lag = int(rng.integers(1, self.lags + 1))
        last, norm = self.frozen.last, self.frozen.lm.norm
        seen = self.frozen.read(given, position, [last], self.part.host.layer)
        z = self.hidden(given, position, seen, lag)
        normed = (norm(z) if self.part.with_norm else z).flatten(0, 1)
        if self.labels == "law":
            return self.frozen.law_loss(normed, norm(seen.states[last]).flatten(0, 1))
        wanted = self.frozen.says(seen.states[last]) if self.labels == "target" else after
        return self.frozen.head_loss(normed, wanted.flatten())

    def shares(self, tokens: Tensor) -> list[float]:
        given = tokens[:, :-1]
        position = torch.arange(given.shape[1], device=given.device).expand_as(given)
        seen, said = self._read(given, position)
        found = []
        for lag in range(1, self.lags + 1):
            z = self.hidden(given, position, seen, lag)
            found.append(matches(self.part.head(z).argmax(-1)[:, lag:], said[:, lag:]))
        return found


def lagged(q: Tensor, k: Tensor | None, v: Tensor | None, lag: int, window: int | None) -> Tensor:
    """q [B,H,S,D], k, v [B,K,S,D] -> [B,S,H,Dv]: query t sees keys 0..t-lag (the latest `window`); zeros if none."""
    assert k is not None and v is not None
    size = q.shape[2]
    if lag >= size:
        return q.new_zeros(q.shape[0], size, q.shape[1], v.shape[-1])
    k, v = k[:, :, : size - lag].to(q.dtype), v[:, :, : size - lag].to(q.dtype)
    out = banded(q[:, :, lag:], k, v, None if window is None else window - 1)
    return F.pad(out, (0, 0, 0, 0, lag, 0))


def banded(q: Tensor, k: Tensor, v: Tensor, back: int | None) -> Tensor:
    """q [B,H,S,D], k, v [B,K,S,D] -> [B,S,H,Dv]: query t sees keys t-back..t (None: 0..t). No [S,S] mask is made."""
    size, shared = q.shape[2], q.shape[1] != k.shape[1]
    if back is None or size <= back + 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared).transpose(1, 2)
    block, found = max(back, 1), []
    for start in range(0, size, block):
        low, end = max(0, start - back), min(size, start + block)
        behind = torch.arange(start, end)[:, None] - torch.arange(low, end)
        seen = (behind >= 0) & (behind <= back)
        part = F.scaled_dot_product_attention(
            q[:, :, start:end], k[:, :, low:end], v[:, :, low:end], seen.to(q.device), enable_gqa=shared
        )
        found.append(part.transpose(1, 2))
    return torch.cat(found, 1)
