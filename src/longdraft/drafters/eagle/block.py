"""EAGLE's layer, which continues the target's hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from longdraft import ops
from longdraft.core.cache import KVCache
from longdraft.core.draft_layers import DraftLayer, DraftLayers
from longdraft.drafters.rotations import ropes_of
from longdraft.drafters.sizes import key_heads, mlp_width, query_heads
from longdraft.families import LLAMA
from longdraft.models.lm import LM

B = TypeVar("B", bound="EagleBlock")


class EagleBlock(nn.Module, ABC):
    """Reads the feature of token t and the embedding of token t+1; returns the feature of t+1 and
    scores for t+2.

    The layer is a Llama layer: attention, then an MLP after a norm. A subclass defines what a
    feature is, how it is combined with an embedding (`wide`: the width of attention's input) and
    how scores are computed from the output. known: the number of the target's tokens that it can
    draft.
    """

    known: int
    layer: dict[str, Any]  # the arguments it is built with, as JSON

    def __init__(self, config: Any, wide: int):
        super().__init__()
        d = config.hidden_size
        heads = query_heads(config)
        self.kv = key_heads(config)
        mlp = mlp_width(config)
        self.dim = getattr(config, "head_dim", None) or d // heads
        self.eps = getattr(config, "rms_norm_eps", 1e-6)
        self.layer = {
            "hidden_size": d,
            "intermediate_size": mlp,
            "num_attention_heads": heads,
            "num_key_value_heads": self.kv,
            "head_dim": self.dim,
            "rms_norm_eps": self.eps,
            "rope_parameters": ropes_of(config),
            "max_position_embeddings": getattr(config, "max_position_embeddings", 2048),
            "vocab_size": config.vocab_size,
            "qkv_bias": bool(getattr(config, "qkv_bias", False)),
        }
        sizes = (
            "hidden_size",
            "num_attention_heads",
            "head_dim",
            "rope_parameters",
            "max_position_embeddings",
        )
        rotary = LLAMA.rotary_embedding(**{k: deepcopy(self.layer[k]) for k in sizes})
        # float32 for weights of any dtype
        self.frequency = rotary.inv_freq
        self.scaling = rotary.attention_scaling
        bias = self.layer["qkv_bias"]
        self.q = nn.Linear(wide, heads * self.dim, bias)
        self.k, self.v = (nn.Linear(wide, self.kv * self.dim, bias) for _ in range(2))
        self.o = nn.Linear(heads * self.dim, d, bias=False)
        self.gate, self.up = (nn.Linear(d, mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp, d, bias=False)
        self.norm_mlp = nn.RMSNorm(d, self.eps)

    @staticmethod
    @abstractmethod
    def captured_layers(layers: int) -> list[int]:
        """After how many of the target's `layers` layers its states are captured."""

    @abstractmethod
    def feature(self, target: LM, states: list[Tensor]) -> Tensor:
        """The target's captured states, [..,d] each -> the feature [..,d]."""

    fuses = False  # whether compiled layers make features themselves, of `sources`

    def sources(self, target: LM, states: list[Tensor]) -> Tensor:
        """The inputs that compiled layers read, made from the target's captured states, [..,d]
        each -> [..,n].
        """
        return self.feature(target, states)

    @abstractmethod
    def compilable(self) -> DraftLayers:
        """The layer as backends see it."""

    def _parts(self) -> dict[str, Any]:
        """The parts that compiled layers of both kinds have."""
        linears = {name: getattr(self, name) for name in ("q", "k", "v", "o", "gate", "up", "down")}
        heads = self.q.out_features // self.dim
        return {
            "layers": [DraftLayer(**linears, mlp_norm=self.norm_mlp)],
            "heads": heads,
            "key_heads": self.kv,
            "dim": self.dim,
            "mlp": self.gate.out_features,
            "eps": self.eps,
            "frequency": self.frequency,
            "scaling": self.scaling,
        }

    @abstractmethod
    def mix(self, feature: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """feature, token [B,W,d] -> the residual stream [B,W,d] and attention's input
        [B,W,wide].
        """

    @abstractmethod
    def known_scores(self, target: LM, output: Tensor) -> Tensor:
        """output [B,W,d] -> logits [B,W,known] of the tokens it can draft, float32."""

    @property
    def tokens(self) -> Tensor | None:
        """[known] the target's token of each token it can draft; None if it can draft all."""
        return None

    def scores(self, target: LM, output: Tensor) -> Tensor:
        """output [B,W,d] -> logits [B,W,V] over the target's vocabulary; -inf for tokens it cannot
        draft.
        """
        logits = self.known_scores(target, output)
        tokens = self.tokens
        if tokens is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], target.vocab), float("-inf"))
        full[..., tokens] = logits
        return full

    def forward(
        self,
        feature: Tensor,
        token: Tensor,
        position: Tensor,
        mask: Tensor,
        cache: KVCache,
        start: int,
        tail: Tensor | None = None,
        sink: int = 0,
    ) -> Tensor:
        """feature, token [B,W,d] and position [B,W] of nodes start.. of scratch, mask [B,W,start+W]
        -> output [B,W,d].

        The output is the next feature and the input of `scores`. Keys and values go to scratch
        slots from `start` on. tail [B], sink: of the slots before scratch only those from `tail` on
        and the first `sink` are seen.
        """
        W = feature.shape[1]
        residual, x = self.mix(feature, token)
        q, k, v = self.heads(x, position)
        begin = cache.length.tolist()
        cache.write(0, k, v, [n + start for n in begin])
        outputs = []
        for b, n in enumerate(begin):
            keys, values = (x[:, : n + start + W] for x in cache.read(0, b))
            low = 0 if tail is None else int(tail[b])
            segments = [ops.Segment(keys[:, low:], values[:, low:], mask[b])]
            if early := min(low, sink):
                segments.insert(0, ops.Segment(keys[:, :early], values[:, :early]))
            outputs.append(ops.attend(q[b], segments, self.dim**-0.5).out.reshape(W, -1))
        return self.finish(residual, torch.stack(outputs))

    def heads(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attention's input [B,W,wide], position [B,W] -> q [B,H,W,D], k, v [B,K,W,D]."""
        q, k, v = (
            p(x).unflatten(-1, (-1, self.dim)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        q, k = self._rotate(torch.cat([q, k], 1), position).split([q.shape[1], k.shape[1]], 1)
        return q, k, v

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """residual [B,W,d], attended [B,W,H*D] -> output [B,W,d]."""
        x = residual + self.o(attended)
        y = self.norm_mlp(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    def _rotate(self, x: Tensor, position: Tensor) -> Tensor:
        """x [B,H,W,D] rotated by its position [B,W]."""
        if self.frequency.device != x.device:  # setting an attribute of a module takes long
            self.frequency = self.frequency.to(x.device)
        angle = (position[..., None] * self.frequency)[:, None]
        cos, sin = ((self.scaling * turned).to(x.dtype) for turned in (angle.cos(), angle.sin()))
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Eagle2Block(EagleBlock):
    """A feature is the target's last state after its norm; scores use the target's output matrix
    (EAGLE sec. 3).
    """

    def __init__(self, config: Any):
        d = config.hidden_size
        super().__init__(config, d)
        bias = self.layer["fuse_bias"] = bool(getattr(config, "fuse_bias", True))
        self.fuse = nn.Linear(2 * d, d, bias)
        self.known = config.vocab_size

    @staticmethod
    def captured_layers(layers: int) -> list[int]:
        return [layers]

    def feature(self, target: LM, states: list[Tensor]) -> Tensor:
        return target.norm(states[0]).to(self.o.weight.dtype)

    def mix(self, feature: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        x = self.fuse(torch.cat([token, feature], -1))
        return x, x

    def compilable(self) -> DraftLayers:
        return DraftLayers(**self._parts(), starts="fused", fuse=self.fuse)

    def known_scores(self, target: LM, output: Tensor) -> Tensor:
        return target.project(output.to(self.o.weight.dtype)).float()


class Eagle3Block(EagleBlock):
    """A feature combines states from three depths; scores use a separate head (EAGLE-3 sec. 3).

    The head has at most `vocab` tokens: draft token i is the target's token i + d2t[i]. Attention
    reads the feature after a norm. The residual stream starts with the feature itself, or with the
    normed feature if the config has norm_before_residual (as `speculators` trains it).
    """

    d2t: Tensor

    def __init__(self, config: Any, vocab: int | None = None):
        d = config.hidden_size
        super().__init__(config, 2 * d)
        self.normed_residual = bool(getattr(config, "norm_before_residual", False))
        self.layer["norm_before_residual"] = self.normed_residual
        self.fuse = nn.Linear(3 * d, d, bias=False)
        self.known = min(vocab or config.vocab_size, config.vocab_size)
        self.norm_feature, self.norm_token, self.norm_out = (
            nn.RMSNorm(d, self.eps) for _ in range(3)
        )
        self.head = nn.Linear(d, self.known, bias=False)
        self.register_buffer("d2t", torch.zeros(self.known, dtype=torch.long))

    @staticmethod
    def captured_layers(layers: int) -> list[int]:
        """Before layers 2, L/2 and L-3."""
        return [min(2, layers), layers // 2, max(layers - 3, 0)]

    def feature(self, target: LM, states: list[Tensor]) -> Tensor:
        return self.fuse(torch.cat(states, -1).to(self.o.weight.dtype))

    fuses = True

    def sources(self, target: LM, states: list[Tensor]) -> Tensor:
        return torch.cat(states, -1)

    def compilable(self) -> DraftLayers:
        return DraftLayers(
            **self._parts(),
            starts="beside",
            fuse=self.fuse,
            token_norm=self.norm_token,
            feature_norm=self.norm_feature,
            normed_residual=self.normed_residual,
            norm=self.norm_out,
            head=self.head,
            tokens=self.tokens,
        )

    def mix(self, feature: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm_feature(feature)
        return normed if self.normed_residual else feature, torch.cat(
            [self.norm_token(token), normed], -1
        )

    def known_scores(self, target: LM, output: Tensor) -> Tensor:
        return self.head(self.norm_out(output.to(self.head.weight.dtype))).float()

    @property
    def tokens(self) -> Tensor:
        return torch.arange(self.known, device=self.d2t.device) + self.d2t

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Raises ValueError unless d2t maps the draft tokens to different tokens of the target."""
        tokens = torch.arange(self.known) + state_dict["d2t"].cpu()
        if (
            tokens.min() < 0
            or tokens.max() >= self.layer["vocab_size"]
            or len(tokens.unique()) < self.known
        ):
            raise ValueError("d2t does not map the draft tokens to different tokens of the target")
        return super().load_state_dict(state_dict, *args, **kwargs)


def random_eagle2(target: LM, seed: int) -> Eagle2Block:
    """An untrained EAGLE-2 layer."""
    return _filled(Eagle2Block(target.layer_config), target, seed)


def random_eagle3(target: LM, seed: int, vocab: int = 32000) -> Eagle3Block:
    """An untrained EAGLE-3 layer; if the target has more than `vocab` tokens, it can draft a random
    subset of them.
    """
    block = Eagle3Block(target.layer_config, vocab)
    tokens = (
        torch.randperm(target.vocab, generator=torch.Generator().manual_seed(seed))[: block.known]
        .sort()
        .values
    )
    block.d2t.copy_(tokens - torch.arange(block.known))
    return _filled(block, target, seed)


def _filled(block: B, target: LM, seed: int) -> B:
    generator = torch.Generator().manual_seed(seed)
    for name, p in block.named_parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=p.shape[1] ** -0.5, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(p)
    return block.to(target.device, target.dtype).eval().requires_grad_(False)
