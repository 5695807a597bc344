"""The forward pass of a model with recurrent layers: native calls from one to the next, and its
mixer between.
"""

from __future__ import annotations

from typing import Any

from longdraft.backends.decoder_layer import (
    Attention,
    DecoderLayer,
    DeltaNet,
    MambaTwo,
    ShortConvolution,
)
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass
from longdraft.backends.native.gated_delta import GatedDelta
from longdraft.backends.native.selective_scan import SelectiveScan
from longdraft.backends.native.short_convolution import GatedConvolution
from longdraft.backends.native.step import NativeStep
from longdraft.core import KVCache, Tree
from longdraft.ops import native

MIXERS = {DeltaNet: GatedDelta, ShortConvolution: GatedConvolution, MambaTwo: SelectiveScan}


class HybridStep(NativeStep):
    """A model with recurrent layers. Its pass stops at each of them; their states are the
    cache's.
    """

    def __init__(self, hf: Any, windows: dict[int, int]):
        self.mixers = dict[int, GatedDelta | GatedConvolution | SelectiveScan]()
        self.alone = set[int]()  # layers that are an MLP alone
        super().__init__(hf, windows)
        self.without_keys = self.mixers.keys() | self.alone

    def _layer(self, layer: DecoderLayer, number: int) -> native.Layer:
        part = layer.mixer
        if isinstance(part, Attention):
            return super()._layer(layer, number)
        if part is None:
            self.alone.add(number)
            return native.Layer(**self._around(layer), kind=native.LayerKind.ALONE)
        made: Any = MIXERS[type(part)]
        mixer = self.mixers[number] = made(part, self._pins)
        return native.Layer(**self._around(layer), **mixer.linears, kind=native.LayerKind.RECURRENT)

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
