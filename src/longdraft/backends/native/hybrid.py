"""The forward pass of a model with recurrent layers: native calls from one to the next, and its
mixer between.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from longdraft.backends import stock
from longdraft.backends.decoder_layer import LINEARS, NORMS
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass
from longdraft.backends.native.gated_delta import GatedDelta
from longdraft.backends.native.step import NativeStep
from longdraft.core import KVCache, Tree
from longdraft.ops import native

FAMILY = {"Qwen3_5ForCausalLM"}
MLP = ("gate", "up", "down")


class HybridStep(NativeStep):
    """A model of FAMILY. Its pass stops at each recurrent layer, whose states are the cache's."""

    def __init__(self, hf: Any, windows: dict[int, int]):
        self.mixers = dict[int, GatedDelta]()
        super().__init__(hf, windows)
        self.model.gated = True
        self.without_keys = set(self.mixers)

    def _norm(self, module: Any) -> int | None:
        return None if module is None else self._pins.raw(1 + module.weight.detach().float())

    def _layer(self, layer: Any, window: int, number: int) -> native.Layer:
        norms = {part.field: self._norm(part.of(layer)) for part in NORMS}
        if hasattr(layer, "self_attn"):
            linears = {part.field: self._pins.linear(part.of(layer)) for part in LINEARS}
            return native.Layer(**linears, **norms, window=window, kind=native.LayerKind.DECODER)
        mixer = self.mixers[number] = GatedDelta(layer.linear_attn, self._pins)
        linears = {
            part.field: self._pins.linear(part.of(layer)) for part in LINEARS if part.field in MLP
        }
        return native.Layer(**linears, **mixer.linears, **norms, kind=native.LayerKind.RECURRENT)

    def _compute(self, p: native.Pass, tree: Tree, cache: KVCache, start: int) -> None:
        scans, (B, W) = RecurrentPass(tree, cache, start), (p.rows, p.nodes)
        with self.lock:
            for layer, mixer in sorted(self.mixers.items()):
                inputs = mixer.inputs(B, W)
                p.mixer_inputs = inputs.data_ptr()
                self.lib.longdraft_step(self.model, p, self.work, self.half)
                mixed = mixer(self.lib, scans, inputs, B, W)
                p.mixed = mixed.data_ptr()
                p.resume = layer + 1
            self.lib.longdraft_step(self.model, p, self.work, self.half)
        scans.finish()


def is_hybrid(hf: Any) -> bool:
    """Whether every module is Transformers' own or plain torch, and the sizes are those that
    HybridStep computes.
    """
    kind = type(hf)
    if kind.__name__ not in FAMILY or not kind.__module__.startswith("transformers.models."):
        return False
    own = sys.modules[kind.__module__]
    if not all(
        (type(m) is nn.Conv1d or stock.known(m, own)) and not stock.changed(m) for m in hf.modules()
    ):
        return False
    layers = hf.model.layers
    eps = hf.config.rms_norm_eps
    nets = [layer.linear_attn for layer in layers if hasattr(layer, "linear_attn")]
    return (
        0 < len(nets) < len(layers)
        and hf.model.rotary_emb.inv_freq.dim() == 1
        and all(
            type(n.in_proj_b) is type(n.in_proj_a) is nn.Linear and n.in_proj_b.bias is None
            for n in nets
        )
        and all(
            n.activation == "silu" and n.head_v_dim % 16 == 0 and n.value_dim % 16 == 0
            for n in nets
        )
        and all(getattr(m, "variance_epsilon", getattr(m, "eps", eps)) == eps for m in hf.modules())
    )
