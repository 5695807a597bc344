"""Multi-head latent attention (DeepSeek V2, sec. 2.1) over cached latents, with absorbed
projections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longdraft import ops
from longdraft.backends.current_pass import CurrentPass, current
from longdraft.backends.features.feature import Attend, Call, Feature, Slot
from longdraft.backends.features.past import Past, past_of
from longdraft.ops import Attended, Segment

EXPANDED = 1 << 25  # numbers of keys that are expanded at a time
PARTS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Latent:
    """How a layer makes each head's key [A c | r] and value B c of a cached latent c and rotated
    part r.

    A query [q | p] has the score (q A) c + p r with this key, so it can read the cache as the query
    [q A | p], and a weighted mean m of latents gives the head's output B m. The rows of `linear`
    are, for each head, those of A [dim,rank], then those of B [value,rank].
    """

    linear: nn.Linear
    rank: int
    dim: int
    rotated: int
    value: int

    @property
    def heads(self) -> int:
        return len(self.linear.weight) // (self.dim + self.value)

    def fits(self, latent: Tensor, rotated: Tensor) -> bool:
        """Whether these are a latent [B,1,W,rank] and a rotated part [B,1,W,rotated]."""
        return (latent.shape[1], latent.shape[3], rotated.shape[3]) == (1, self.rank, self.rotated)

    def query(self, q: Tensor) -> Tensor:
        """Queries of heads [B,H,W,dim+rotated] -> queries of a cached [latent | rotated]
        [B,H,W,rank+rotated].
        """
        plain, rotated = q.split([self.dim, self.rotated], -1)
        return torch.cat(
            [torch.einsum("bhwd,hdr->bhwr", plain, self._rows()[:, : self.dim]), rotated], -1
        )

    def output(self, mean: Tensor) -> Tensor:
        """Weighted means of cached [latent | rotated] [B,W,H,rank+rotated] -> the heads' outputs
        [B,W,H,value].
        """
        return torch.einsum("bwhr,hvr->bwhv", mean[..., : self.rank], self._rows()[:, self.dim :])

    def pays_expanded(self, queries: int) -> bool:
        """Whether this many queries of a row cost less with expanded keys than as queries of the
        cache.

        Counted in products for each cached slot and head.
        """
        cached = 2 * (self.rank + self.rotated)
        expanded = self.dim + self.rotated + self.value
        return queries * (cached - expanded) > self.rank * (self.dim + self.value)

    def attend_cached(self, q: Tensor, segments: list[Segment], *options: Any) -> Attended:
        """ops.attend of queries [H,W,rank+rotated] over cached [latent | rotated], whose mean is
        `output`'s input.

        Keys are the values too, in all their width, as the kernels for many queries need it.
        """
        return ops.attend(q, [Segment(s.k, s.k, s.visible) for s in segments], *options)

    def attend_expanded(
        self,
        q: Tensor,
        segments: list[Segment],
        scale: float,
        softcap: float | None,
        sink: Tensor | None,
        keep: None,
    ) -> Attended:
        """ops.attend of queries [H,W,dim+rotated] over expanded keys and values, some heads at a
        time.
        """
        rows = self._rows()
        slots = sum(s.k.shape[1] for s in segments)
        outputs = list[Tensor]()
        for heads in torch.arange(len(q)).split(max(1, EXPANDED // (slots * q.shape[2]))):
            some = slice(int(heads[0]), int(heads[-1]) + 1)
            parts = [Segment(*self._expanded(rows[some], s.k[0]), s.visible) for s in segments]
            outputs.append(
                ops.attend(q[some], parts, scale, softcap, None if sink is None else sink[some]).out
            )
        return Attended(torch.cat(outputs, 1)[..., : self.value])

    def _expanded(self, rows: Tensor, cached: Tensor) -> tuple[Tensor, Tensor]:
        """rows [h,dim+value,rank], cached [S,rank+rotated] -> the heads' keys, and values filled up
        to their width.
        """
        latent, rotated = cached.split([self.rank, self.rotated], -1)
        both = F.linear(latent, rows.flatten(0, 1)).unflatten(-1, rows.shape[:2]).transpose(0, 1)
        plain, value = both.split([self.dim, self.value], -1)
        key = torch.cat([plain, rotated.expand(len(rows), -1, -1)], -1)
        return key, F.pad(value, (0, max(0, key.shape[2] - self.value)))

    def _rows(self) -> Tensor:
        """[H,dim+value,rank]."""
        return self.linear.weight.view(-1, self.dim + self.value, self.rank)


class Latents(Feature):
    """layers {layer: Latent}: those whose cache holds latents, as keys without values."""

    models = "DeepSeek V2 and V3, Kimi K2, LongCat"
    computed = "one latent is cached for all heads; queries read it through absorbed projections"

    def __init__(self, layers: dict[int, Latent]):
        self.layers = layers

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        layers = latents_of(hf)
        return cls(layers) if layers else None

    @contextmanager
    def around(self, p: CurrentPass) -> Generator[None]:
        past = past_of(p)
        past.latents = self.layers
        p.kept[self] = past
        yield

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        """Attention to what the module has put into the pass, if that is a latent."""
        p = current()
        past: Past | None = p.kept.get(self)
        state = None if past is None else past.states.pop(call.layer, None)
        if state is None:
            return proceed(call)
        latent = self.layers[call.layer]
        call.key = torch.cat(state, -1)
        call.value = state[0][..., :0]
        eager: Any = p.attention
        whole = eager.view is None and not eager.is_scored(call.layer)
        if whole and latent.pays_expanded(call.query.shape[2]):
            call.compute = latent.attend_expanded
            return proceed(call)
        call.query = latent.query(call.query)
        call.compute = latent.attend_cached
        return latent.output(proceed(call))

    def slot(self, layer: int) -> Slot | None:
        latent = self.layers.get(layer)
        if latent is None:
            return None
        width = latent.rank + latent.rotated
        return Slot(1, width, 0, latent.heads * 2 * width)


def latents_of(hf: Any) -> dict[int, Latent]:
    """{layer: Latent} of the layers that can be computed from latents; others attend with their
    expanded heads.
    """
    modules = [m for m in hf.modules() if hasattr(m, "expand_kv")]
    counts = Counter(getattr(m, "layer_idx", None) for m in modules)
    known = {
        m.layer_idx: latent_of(m) for m in modules if counts[getattr(m, "layer_idx", None)] == 1
    }
    return {layer: latent for layer, latent in known.items() if latent is not None}


def absorbed_linears(hf: Any) -> set[nn.Module]:
    """The linear layers of these Latents. They are read as matrices, so they are not packed."""
    return {latent.linear for latent in latents_of(hf).values()}


def latent_of(module: Any) -> Latent | None:
    """How an attention module expands latents. None for one of another structure, or one whose
    expansion gives other keys and values.
    """
    linear: Any = getattr(module, "kv_b_proj", None)
    sizes = [n for name in PARTS if isinstance(n := getattr(module, name, None), int)]
    if (
        type(linear) is not nn.Linear
        or getattr(linear, "bias", None) is not None
        or len(sizes) != len(PARTS)
    ):
        return None
    rank, dim, rotated, value = sizes
    outputs, inputs = linear.weight.shape
    if inputs != rank or outputs % (dim + value) or not linear.weight.is_floating_point():
        return None
    latent = Latent(linear, rank, dim, rotated, value)
    return latent if linear.weight.is_meta or _agrees(latent, module) else None


@torch.no_grad()
def _agrees(latent: Latent, module: Any) -> bool:
    """Whether the module expands some latents, and also shapes without numbers, to what Latent
    computes with.
    """
    draw = torch.Generator().manual_seed(0)
    weight = latent.linear.weight
    sizes = (
        (1, 2, latent.rank),
        (1, 2, latent.rotated),
        (latent.heads, 2, latent.dim + latent.rotated),
    )
    c, r, q = (torch.randn(1, *size, generator=draw).to(weight) for size in sizes)
    try:
        module.expand_kv(c.to("meta"), r.to("meta"))
        k, v = module.expand_kv(c, r)
        scores = q @ k.mT
        mixed = v.transpose(1, 2)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    ours = (
        latent.query(q) @ torch.cat([c, r], -1).mT,
        latent.output(c.expand(-1, latent.heads, -1, -1).transpose(1, 2)),
    )
    return all(
        a.shape == b.shape and bool((a - b).abs().max() <= 0.02 * b.abs().max())
        for a, b in zip(ours, (scores, mixed), strict=True)
    )
