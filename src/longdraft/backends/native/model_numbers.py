"""Numbers of the kernels' Model that all layers share, from a model's description."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdraft.backends.decoder_layer import Attention, Decoder, ExpertsMLP, SharedLatent
from longdraft.backends.native.layers import rotations
from longdraft.ops import native


def frequencies_of(decoder: Decoder) -> Tensor:
    """The frequencies of all rotations, in rows of the same length; at least one."""
    each = [r.frequencies for r in rotations(decoder)] or [torch.zeros(1)]
    return torch.nn.utils.rnn.pad_sequence(each, batch_first=True)


def turning(decoder: Decoder) -> dict[str, Any]:
    """Numbers of all rotations beside their frequencies."""
    rotation = decoder.rotation
    if rotation is None:
        return {"rope_scale": 1.0}
    return {"interleaved": rotation.interleaved, "rope_scale": rotation.scaling}


def of_attention(attention: Attention) -> dict[str, Any]:
    """Numbers of all layers' attention beside its heads."""
    growth, span = attention.temperature or (0.0, 0.0)
    functions = {
        "sigmoid": native.GateFunction.SIGMOID_GATE,
        "softplus": native.GateFunction.SOFTPLUS,
    }
    return {
        "gates_heads": attention.gates_heads,
        "gate_function": functions[attention.gate_function],
        "limit": attention.limit or 0.0,
        "growth": growth,
        "span": span,
    }


def of_latent(latent: SharedLatent | None) -> dict[str, Any]:
    """Numbers of all layers' latents."""
    if latent is None:
        return {}
    return {
        "rank": latent.rank,
        "plain": latent.plain,
        "value": latent.value,
        "put_apart": latent.put_apart,
        "latent_eps": latent.norm.eps,
    }


def scale_of(factor: float) -> float:
    """0 for a factor that changes nothing."""
    return 0.0 if factor == 1 else factor


def limits(decoder: Decoder) -> dict[str, float]:
    """The numbers of a clamped activation."""
    of_experts = (f.mlp for f in decoder.layers if isinstance(f.mlp, ExpertsMLP))
    experts = next(of_experts, None)
    if experts is None or experts.limit is None:
        return {}
    return {"mlp_limit": experts.limit, "mlp_slope": experts.slope}
