"""Multi-head latent attention (DeepSeek V2, sec. 2.1) over cached latents, with absorbed projections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PARTS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Latent:
    """How a layer makes each head's key [A c | r] and value B c of a cached latent c and rotated part r.

    A query [q | p] has the score (q A) c + p r with this key, so it can read the cache as the query [q A | p], and a
    weighted mean m of latents gives the head's output B m. The rows of `linear` are, for each head, those of
    A [dim,rank], then those of B [value,rank].
    """

    linear: nn.Linear
    rank: int
    dim: int
    rotated: int
    value: int

    def fits(self, latent: Tensor, rotated: Tensor) -> bool:
        """Whether these are a latent [B,1,W,rank] and a rotated part [B,1,W,rotated]."""
        return (latent.shape[1], latent.shape[3], rotated.shape[3]) == (1, self.rank, self.rotated)

    def query(self, q: Tensor) -> Tensor:
        """Queries of heads [B,H,W,dim+rotated] -> queries of a cached [latent | rotated] [B,H,W,rank+rotated]."""
        plain, rotated = q.split([self.dim, self.rotated], -1)
        return torch.cat([torch.einsum("bhwd,hdr->bhwr", plain, self._rows()[:, : self.dim]), rotated], -1)

    def output(self, mean: Tensor) -> Tensor:
        """Weighted means of cached [latent | rotated] [B,W,H,rank+rotated] -> the heads' outputs [B,W,H,value]."""
        return torch.einsum("bwhr,hvr->bwhv", mean[..., : self.rank], self._rows()[:, self.dim :])

    def _rows(self) -> Tensor:
        """[H,dim+value,rank]."""
        return self.linear.weight.view(-1, self.dim + self.value, self.rank)


def latents_of(hf: Any) -> dict[int, Latent]:
    """{layer: Latent} of the layers that can be computed from latents; others attend with their expanded heads."""
    modules = [m for m in hf.modules() if hasattr(m, "expand_kv")]
    counts = Counter(getattr(m, "layer_idx", None) for m in modules)
    known = {m.layer_idx: _latent_of(m) for m in modules if counts[getattr(m, "layer_idx", None)] == 1}
    return {layer: latent for layer, latent in known.items() if latent is not None}


def absorbed_linears(hf: Any) -> set[nn.Module]:
    """The linear layers of these Latents. They are read as matrices, so they are not packed."""
    return {latent.linear for latent in latents_of(hf).values()}


def _latent_of(module: Any) -> Latent | None:
    """None for a module of another structure, or one whose own expansion gives other keys and values."""
    linear: Any = getattr(module, "kv_b_proj", None)
    sizes = [n for name in PARTS if isinstance(n := getattr(module, name, None), int)]
    if type(linear) is not nn.Linear or getattr(linear, "bias", None) is not None or len(sizes) != len(PARTS):
        return None
    rank, dim, rotated, value = sizes
    outputs, inputs = linear.weight.shape
    if inputs != rank or outputs % (dim + value) or not linear.weight.is_floating_point():
        return None
    latent = Latent(linear, rank, dim, rotated, value)
    return latent if linear.weight.is_meta or _agrees(latent, module) else None


@torch.no_grad()
def _agrees(latent: Latent, module: Any) -> bool:
    """Whether the module expands some latents, and also shapes without numbers, to what Latent computes with."""
    draw, weight = torch.Generator().manual_seed(0), latent.linear.weight
    heads = len(weight) // (latent.dim + latent.value)
    sizes = (1, 2, latent.rank), (1, 2, latent.rotated), (heads, 2, latent.dim + latent.rotated)
    c, r, q = (torch.randn(1, *size, generator=draw).to(weight) for size in sizes)
    try:
        module.expand_kv(c.to("meta"), r.to("meta"))
        k, v = module.expand_kv(c, r)
        scores, mixed = q @ k.mT, v.transpose(1, 2)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    ours = latent.query(q) @ torch.cat([c, r], -1).mT, latent.output(c.expand(-1, heads, -1, -1).transpose(1, 2))
    return all(
        a.shape == b.shape and bool((a - b).abs().max() <= 0.02 * b.abs().max())
        for a, b in zip(ours, (scores, mixed), strict=True)
    )
