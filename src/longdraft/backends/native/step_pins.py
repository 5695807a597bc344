"""The weights of a model's layers as the kernels read them."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from longdraft.backends.decoder_layer import ExpertsMLP, Norm, SharedLatent
from longdraft.backends.packed_linear import (
    FEWEST_OUTPUTS,
    EightBitInputs,
    PackedLinear,
    PackedRows,
)
from longdraft.ops import native
from longdraft.ops.native import pins
from longdraft.ops.packed import GROUP, quantized


class StepPins(pins.Pins):
    """Keeps the tensors of modules alive whose addresses the kernels hold."""

    def norm(self, module: Any | None) -> int | None:
        return None if module is None else self.float(module.weight)

    def weights(self, norm: Norm | None) -> int | None:
        """The weights that a norm multiplies by."""
        if norm is not None and not hasattr(norm.module, "weight"):
            return self.float(torch.ones(norm.shape))
        if norm is None or not norm.plus_one:
            return self.norm(norm and norm.module)
        return self.raw(1 + norm.module.weight.detach().float())

    def bias(self, norm: Norm | None) -> int | None:
        return None if norm is None else self.float(getattr(norm.module, "bias", None))

    def linear(self, module: Any) -> native.Linear:
        if isinstance(module, PackedLinear):
            return self.packed(
                module.stored, self.float(module.bias), isinstance(module, EightBitInputs)
            )
        if isinstance(module, PackedRows):
            return self.packed(module.stored, self.float(module.bias), module.rounds)
        return self.numbers(module.weight, self.float(module.bias))

    def filled(self, module: Any) -> native.Linear:
        """A layer, filled up to the outputs that a product has at least."""
        if isinstance(module, PackedLinear) or module.out_features >= FEWEST_OUTPUTS:
            return self.linear(module)
        bias = None if module.bias is None else _filled(module.bias.detach())
        return self.numbers(_filled(module.weight.detach()), self.float(bias))

    def drafting(self, module: Any) -> native.Linear:
        """A drafter's layer. Of bfloat16 the kernels get a copy in 8 bits: drafts wait for weights
        to be read.
        """
        half = isinstance(module, nn.Linear) and module.weight.dtype == torch.bfloat16
        if not half or module.in_features % GROUP:
            return self.linear(module)
        return self.packed(quantized(module.weight, 8), self.float(module.bias), False)

    def latent(self, latent: SharedLatent) -> dict[str, Any]:
        """A layer's fields of latents. What multiplies queries is a copy, since a product reads
        rows of outputs.
        """
        weight = latent.expand.module.weight.detach()
        plain, value = weight.view(-1, latent.plain + latent.value, latent.rank).split(
            [latent.plain, latent.value], 1
        )
        down = latent.q_down
        return {
            "k_norm": self.weights(latent.norm),
            "q_down": native.Linear() if down is None else self.linear(down.module),
            "q_down_norm": self.weights(latent.q_norm),
            "to_latent": self._each(plain.mT.contiguous(), None),
            "from_latent": self._each(value, None),
        }

    def experts(self, mlp: ExpertsMLP) -> Any:
        """A pointer to its experts; what it points to is kept."""
        gate, up, down = self._matrices(mlp)
        shared = mlp.shared_gate and mlp.shared_gate.module.weight[0]
        return ctypes.pointer(
            native.Experts(
                count=mlp.count,
                chosen=mlp.chosen,
                router=self._router(mlp),
                gate=gate,
                up=up,
                down=down,
                scoring=native.Scoring[mlp.scoring.upper()],
                normalized=mlp.normalized,
                scale=mlp.share_scale,
                correction=self.float(mlp.correction),
                corrects_scores=mlp.corrects_scores,
                groups=mlp.groups,
                chosen_groups=mlp.chosen_groups,
                group_bests=mlp.group_bests,
                shared_gate=self.float(shared),
                shared_scale=mlp.shared_scale,
            )
        )

    def _matrices(self, mlp: ExpertsMLP) -> tuple[Any, Any, Any]:
        """[count] layers each: the gates of all experts, if they have some, what is up, and what is
        down.
        """
        if isinstance(mlp.gate_up, tuple):
            gate, up, down = (self._of_all(x, mlp.count) for x in (*mlp.gate_up, mlp.down))
            return gate, up, down
        if not isinstance(mlp.gate_up, Tensor):
            return None, self._of_all(mlp.gate_up, mlp.count), self._of_all(mlp.down, mlp.count)
        assert isinstance(mlp.down, Tensor)
        gate_up = mlp.gate_up.mT if mlp.transposed else mlp.gate_up
        down = mlp.down.mT if mlp.transposed else mlp.down
        if not mlp.gated:
            up, down = self._each(gate_up, mlp.gate_up_bias), self._each(down, mlp.down_bias)
            return None, up, down
        gate, up = _halves(gate_up, mlp.interleaved)
        bias = mlp.gate_up_bias
        biases = (None, None) if bias is None else _halves(bias, mlp.interleaved)
        return (
            self._each(gate, biases[0]),
            self._each(up, biases[1]),
            self._each(down, mlp.down_bias),
        )

    def _of_all(self, weights: Tensor | PackedLinear, count: int) -> Any:
        """A matrix of each expert, without biases unless it is packed -> [count] layers."""
        if isinstance(weights, Tensor):
            return self._each(weights, None)
        return self._parts(weights, count)

    def _parts(self, layer: PackedLinear, count: int) -> Any:
        """A layer with the rows of one expert after the other's, as [count] layers."""
        size = layer.out_features // count
        stored = layer.stored
        rounds = isinstance(layer, EightBitInputs)
        layers = []
        for first in range(0, layer.out_features, size):
            rows = slice(first, first + size)
            bias = None if layer.bias is None else layer.bias[rows]
            layers.append(self.packed(stored.rows(rows), self.float(bias), rounds))
        return (native.Linear * count)(*layers)

    def _router(self, mlp: ExpertsMLP) -> native.Linear:
        """In float32, and filled up to the outputs that a product has at least."""
        weight, bias = mlp.router.detach().float(), mlp.router_bias
        bias = None if bias is None else _filled(bias.detach())
        return self.numbers(_filled(weight), self.float(bias))

    def _each(self, weights: Tensor, biases: Tensor | None) -> Any:
        """weights [count,outputs,inputs] -> [count] layers."""
        layers = [
            self.numbers(w, self.float(None if biases is None else biases[e]))
            for e, w in enumerate(weights.detach())
        ]
        return (native.Linear * len(layers))(*layers)


def _filled(x: Tensor) -> Tensor:
    """x with rows of zeros behind its own, so that it has as many as a product has outputs at
    least.
    """
    return torch.cat([x, x.new_zeros(max(FEWEST_OUTPUTS - len(x), 0), *x.shape[1:])])


def _halves(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """The parts of x [count,outputs,...] for gates and for up."""
    if interleaved:
        return x[:, ::2], x[:, 1::2]
    size = x.shape[1] // 2
    return x[:, :size], x[:, size:]
