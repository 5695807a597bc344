"""EAGLE's layer: it continues the target's own hidden states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longdraft import ops
from longdraft.cache import KVCache
from longdraft.model import LM


class EagleBlock(nn.Module):
    """Reads the feature of token t beside the embedding of token t+1; gives the feature of t+1 and scores of t+2.

    taps 1 (EAGLE-2): the feature is the target's last state, normed; both are fused into the layer's input, and its
    output is read by the target's own output matrix. taps 3 (EAGLE-3): states of three layers are fused into the
    feature, normed beside the embedding before attention, and scored by an own head over `vocab` tokens; draft token i
    is the target's token i + d2t[i].
    """

    d2t: Tensor

    def __init__(self, config, taps: int = 3, vocab: int | None = None):
        super().__init__()
        d, heads, self.taps = config.hidden_size, config.num_attention_heads, taps
        self.kv = getattr(config, "num_key_value_heads", None) or heads
        self.dim = getattr(config, "head_dim", None) or d // heads
        eps = getattr(config, "rms_norm_eps", 1e-6)
        ropes = getattr(config, "rope_parameters", None) or {}
        self.theta = float(ropes.get("rope_theta") or 10000.0)
        self.fuse = nn.Linear(2 * d if taps == 1 else taps * d, d, bias=taps == 1)
        wide = d if taps == 1 else 2 * d  # what attention reads
        self.q = nn.Linear(wide, heads * self.dim, bias=False)
        self.k, self.v = (nn.Linear(wide, self.kv * self.dim, bias=False) for _ in range(2))
        self.o = nn.Linear(heads * self.dim, d, bias=False)
        inner = config.intermediate_size
        self.gate, self.up, self.down = (
            nn.Linear(d, inner, False),
            nn.Linear(d, inner, False),
            nn.Linear(inner, d, False),
        )
        self.norm_mlp = nn.RMSNorm(d, eps)
        size = min(vocab or config.vocab_size, config.vocab_size) if taps == 3 else config.vocab_size
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.long))
        if taps == 3:
            self.norm_feature, self.norm_token, self.norm_out = (nn.RMSNorm(d, eps) for _ in range(3))
            self.head = nn.Linear(d, size, bias=False)

    @staticmethod
    def tapped(layers: int, taps: int) -> list[int]:
        """After how many layers the target's states are taken: before layers 2, L/2 and L-3, or the last state."""
        return [layers] if taps == 1 else [min(2, layers), layers // 2, max(layers - 3, 0)]

    def feature(self, target: LM, states: list[Tensor]) -> Tensor:
        """The target's tapped states, [..,d] each -> what the layer reads [..,d]."""
        kind = self.o.weight.dtype
        if self.taps == 1:
            return target.norm(states[0]).to(kind)
        return self.fuse(torch.cat(states, -1).to(kind))

    def forward(self, feature: Tensor, token: Tensor, position: Tensor, mask: Tensor, cache: KVCache, start: int):
        """feature, token [B,W,d] and position [B,W] of nodes start.. of scratch, mask [B,W,start+W] -> output [B,W,d].

        The output is the next feature and what `scores` reads. Keys and values go to scratch slots start and on.
        """
        B, W, _ = feature.shape
        if self.taps == 1:
            residual = x = self.fuse(torch.cat([token, feature], -1))
        else:
            residual, x = feature, torch.cat([self.norm_token(token), self.norm_feature(feature)], -1)
        q, k, v = (p(x).view(B, W, -1, self.dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = self._rotate(q, position), self._rotate(k, position)
        begin = cache.length.tolist()
        cache.write(0, k, v, [n + start for n in begin])
        rows = []
        for b, n in enumerate(begin):
            keys, values = (x[:, : n + start + W] for x in cache.read(0, b))
            segment = ops.Segment(keys, values, mask[b])
            rows.append(ops.attend(q[b], [segment], self.dim**-0.5).out.reshape(W, -1))
        x = residual + self.o(torch.stack(rows))
        y = self.norm_mlp(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    def _rotate(self, x: Tensor, position: Tensor) -> Tensor:
        """x [B,H,W,D] turned by its position [B,W]."""
        at = torch.arange(0, self.dim, 2, device=x.device, dtype=torch.float32)
        angle = (position[..., None] * self.theta ** (-at / self.dim))[:, None]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def scores(self, target: LM, output: Tensor) -> Tensor:
        """output [B,W,d] -> logits [B,W,V] over the target's vocabulary; -inf where the drafter has no such token."""
        if self.taps == 1:
            return target.project(output).float()
        found = self.head(self.norm_out(output)).float()
        full = found.new_full((*found.shape[:-1], target.vocab), float("-inf"))
        full[..., torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t] = found
        return full


def random_eagle2(target: LM, seed: int) -> EagleBlock:
    """An untrained EAGLE-2 layer."""
    return _filled(EagleBlock(target.config, taps=1), target, seed)


def random_eagle3(target: LM, seed: int, vocab: int = 32000) -> EagleBlock:
    """An untrained EAGLE-3 layer; where the target has more tokens than `vocab`, it drafts a random choice of them."""
    block = EagleBlock(target.config, taps=3, vocab=vocab)
    known = torch.randperm(target.vocab, generator=torch.Generator().manual_seed(seed))[: len(block.d2t)].sort().values
    block.d2t.copy_(known - torch.arange(len(known)))
    return _filled(block, target, seed)


def _filled(block: EagleBlock, target: LM, seed: int) -> EagleBlock:
    generator = torch.Generator().manual_seed(seed)
    for p in block.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=p.shape[1] ** -0.5, generator=generator)
    return block.to(target.device, target.dtype).eval().requires_grad_(False)
