"""DFlash's block: a few layers that turn a root and masks into a whole draft."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longdraft.core.draft_layers import DraftLayer, DraftLayers
from longdraft.drafters.rotations import ropes_of
from longdraft.drafters.sizes import key_heads, mlp_width, query_heads
from longdraft.drafters.vocabulary import DraftVocabulary, known_tokens
from longdraft.families import LLAMA
from longdraft.models.lm import LM

Turn = tuple[Tensor, Tensor]  # cosines and sines [B,1,N,D/2] of some positions
# (layer, q [B,H,N,D], k and v [B,K,N,D] of the slots) -> [B,N,H*D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def taps(layers: int, count: int) -> list[int]:
    """After how many of the target's layers its states are read: evenly spaced, as published,
    without repeats.
    """
    if count == 1:
        return [min(layers // 2 + 1, layers)]
    low = min(1, layers - 1)
    high = max(layers - 3, 0)
    return sorted({round(low + i * (high - low) / (count - 1)) + 1 for i in range(count)})


def shape_of(
    target: LM,
    layers: int = 2,
    features: int = 3,
    slots: int = 8,
    window: int = 512,
    causal: bool = False,
    vocab: int = 0,
) -> dict[str, Any]:
    """The shape from which a block for this target is built, as JSON. The names are those of a
    Transformers config.
    """
    c = target.layer_config
    heads = query_heads(c)
    return {
        "hidden_size": c.hidden_size,
        "intermediate_size": mlp_width(c),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads(c),
        "head_dim": getattr(c, "head_dim", None) or c.hidden_size // heads,
        "rms_norm_eps": float(getattr(c, "rms_norm_eps", None) or 1e-6),
        "rope_parameters": ropes_of(c),
        "max_position_embeddings": getattr(c, "max_position_embeddings", 2048),
        "attention_bias": False,
        "taps": taps(target.depth, features),
        "causal": [causal] * layers,
        "slots": slots,
        "window": window,
        **({"vocab": vocab, "vocab_size": target.vocab} if 0 < vocab < target.vocab else {}),
    }


class Layer(nn.Module):
    """A Qwen3 layer. Its keys and values are projections of its own input and of the target's
    features.
    """

    def __init__(self, shape: dict[str, Any]):
        super().__init__()
        d = shape["hidden_size"]
        mlp = shape["intermediate_size"]
        self.dim = shape["head_dim"]
        heads = shape["num_attention_heads"] * self.dim
        kv = shape["num_key_value_heads"] * self.dim
        eps = shape["rms_norm_eps"]
        bias = shape["attention_bias"]
        self.q_proj = nn.Linear(d, heads, bias)
        self.o_proj = nn.Linear(heads, d, bias)
        self.k_proj, self.v_proj = (nn.Linear(d, kv, bias) for _ in range(2))
        self.q_norm, self.k_norm = (nn.RMSNorm(self.dim, eps) for _ in range(2))
        self.gate_proj, self.up_proj = (nn.Linear(d, mlp, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(mlp, d, bias=False)
        self.attention_norm, self.mlp_norm = (nn.RMSNorm(d, eps) for _ in range(2))

    def _split(self, x: Tensor) -> Tensor:
        """[B,N,heads*D] -> [B,heads,N,D]."""
        return x.unflatten(-1, (-1, self.dim)).transpose(1, 2)

    def keys(self, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Features, or the normed input, [B,N,d] -> k, v [B,K,N,D]."""
        return rotate(self.k_norm(self._split(self.k_proj(x))), turn), self._split(self.v_proj(x))

    def forward(
        self, x: Tensor, turn: Turn, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """x [B,N,d] -> [B,N,d]."""
        normed = self.attention_norm(x)
        q = rotate(self.q_norm(self._split(self.q_proj(normed))), turn)
        x = x + self.o_proj(attend(q, *self.keys(normed, turn)))
        normed = self.mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))


class DFlashBlock(nn.Module):
    """Slot 0 holds the root's embedding, the others a mask's; the output of slot j predicts the
    token at slot j itself.

    Every layer attends to the target's features at the `window` positions before a slot, of which
    the last is that of the token before the root, and to the block: to all slots, or in a `causal`
    layer to those up to its own. Embedding and output matrix are the target's; the mask's embedding
    is the block's own. `vocab` of the shape: how many of the target's tokens it can draft (0: all).
    """

    def __init__(self, shape: dict[str, Any]):
        super().__init__()
        d = shape["hidden_size"]
        eps = shape["rms_norm_eps"]
        self.shape = shape
        self.taps = list(shape["taps"])
        self.causal = list(shape["causal"])
        self.slots = int(shape["slots"])
        self.window = int(shape["window"])
        self.fuse = nn.Linear(len(self.taps) * d, d, bias=False)
        self.feature_norm, self.norm_out = (nn.RMSNorm(d, eps) for _ in range(2))
        self.mask = nn.Parameter(torch.zeros(d))
        self.layers = nn.ModuleList(Layer(shape) for _ in self.causal)
        known = shape.get("vocab", 0)
        self.vocabulary = (
            DraftVocabulary(torch.arange(known), shape["vocab_size"]) if known else None
        )
        sizes = (
            "hidden_size",
            "num_attention_heads",
            "head_dim",
            "rope_parameters",
            "max_position_embeddings",
        )
        rotary = LLAMA.rotary_embedding(**{k: deepcopy(shape[k]) for k in sizes})
        self.frequency = rotary.inv_freq.double()
        self.scaling = rotary.attention_scaling

    @property
    def dtype(self) -> torch.dtype:
        return self.fuse.weight.dtype

    def feature(self, states: list[Tensor]) -> Tensor:
        """The target's states after `taps` layers, [B,N,d] each -> features [B,N,d]."""
        return self.feature_norm(self.fuse(torch.cat(states, -1).to(self.dtype)))

    def compilable(self, target: LM) -> DraftLayers | None:
        """The layers as backends see them, without what they read of the target; None if their
        masks differ.
        """
        if len(set(self.causal)) > 1:
            return None
        names = ("q", "k", "v", "o", "gate", "up", "down")
        known = self.vocabulary
        layers = [
            DraftLayer(
                **{name: getattr(layer, f"{name}_proj") for name in names},
                input_norm=layer.attention_norm,
                mlp_norm=layer.mlp_norm,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
            )
            for layer in self._each
        ]
        return DraftLayers(
            layers,
            **self._sizes,
            starts="given",
            norm=self.norm_out,
            head=None if known is None else known.linear(target),
            tokens=known_tokens(known),
            ring=True,
        )

    def compilable_keys(self) -> DraftLayers:
        """The layers that make keys and values from the target's states."""
        layers = [
            DraftLayer(
                k=layer.k_proj, v=layer.v_proj, input_norm=self.feature_norm, k_norm=layer.k_norm
            )
            for layer in self._each
        ]
        return DraftLayers(layers, **self._sizes, starts="given", fuse=self.fuse, keys_only=True)

    @property
    def _each(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    @property
    def _sizes(self) -> dict[str, Any]:
        return {
            "heads": self.shape["num_attention_heads"],
            "key_heads": self.shape["num_key_value_heads"],
            "dim": self.shape["head_dim"],
            "mlp": self.shape["intermediate_size"],
            "eps": self.shape["rms_norm_eps"],
            "frequency": self.frequency,
            "scaling": self.scaling,
        }

    def turn(self, position: Tensor) -> Turn:
        """position [B,N] -> its rotation; angles in float64, so that only differences of positions
        matter.
        """
        self.frequency = self.frequency.to(position.device)
        angle = (position[..., None] * self.frequency)[:, None]
        return (self.scaling * angle.cos()).to(self.dtype), (self.scaling * angle.sin()).to(
            self.dtype
        )

    def keys(self, feature: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B,N,d], position [B,N] -> k, v [B,layers,K,N,D]."""
        turn = self.turn(position)
        k, v = zip(*(layer.keys(feature, turn) for layer in self.layers), strict=True)  # type: ignore[operator]
        return torch.stack(k, 1), torch.stack(v, 1)

    def forward(self, roots: Tensor, position: Tensor, attend: Attend) -> Tensor:
        """Embeddings of roots [B,A,d] and their position [B,A] -> normed states [B,A,slots,d]."""
        B, A, d = roots.shape
        masks = self.mask.expand(B, A, self.slots - 1, d)
        x = torch.cat([roots.to(self.dtype)[:, :, None], masks], 2).flatten(1, 2)
        turn = self.turn(
            (position[..., None] + torch.arange(self.slots, device=x.device)).flatten(1)
        )
        for n, layer in enumerate(self.layers):
            x = layer(x, turn, lambda q, k, v, n=n: attend(n, q, k, v))
        return self.norm_out(x).view(B, A, self.slots, d)


def rotate(x: Tensor, turn: Turn) -> Tensor:
    """x [B,H,N,D] rotated: the halves of a head are the pairs' first and second numbers."""
    (cos, sin), (a, b) = (t.to(x.dtype) for t in turn), x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def random_dflash(target: LM, seed: int, **options: Any) -> DFlashBlock:
    """An untrained block in the target's dtype and on its device; options: those of shape_of."""
    block = DFlashBlock(shape_of(target, **options))
    generator = torch.Generator().manual_seed(seed)
    for p in block.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=p.shape[1] ** -0.5, generator=generator)
    nn.init.normal_(block.mask, generator=generator)
    return block.to(target.device, target.dtype).eval().requires_grad_(False)
