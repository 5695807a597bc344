"""A decoder layer as data: its norms, projections, rotation, attention and MLP.

`describe` finds this in the modules of a model. What computes a layer, counts its weights or checks
their shapes reads it from here. The default of a field means that a layer has none of it; a backend
names the fields that it reads, and `described_fields.unread` finds what it would leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from longdraft.backends.packed_linear import PackedLinear


@dataclass(frozen=True)
class Linear:
    """A product with a matrix, plus a bias if the module (or its LinearRows) has one.

    name: of the module. shape: (outputs, inputs) by the config.
    """

    module: Any
    name: str
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """The number of elements in the matrix."""
        return int(self.module.out_features) * int(self.module.in_features)


@dataclass(frozen=True, eq=False)
class LinearRows:
    """Some rows of a linear layer whose outputs are several projections side by side."""

    weight: Tensor
    bias: Tensor | None

    @property
    def out_features(self) -> int:
        return len(self.weight)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]


@dataclass(frozen=True)
class Norm:
    """kind "rms": numbers over their root mean square; "layer": the same without their mean. They
    are multiplied by weights, or with plus_one by 1 + weights; "layer" adds the module's bias.

    name: of the module. shape: (numbers,) by the config.
    """

    module: Any
    name: str
    shape: tuple[int, ...]
    eps: float
    kind: Literal["rms", "layer"] = "rms"
    plus_one: bool = False


@dataclass(frozen=True)
class Rotation:
    """Rotary positions. kind: `rope_type` of the config. frequencies: of each pair of numbers; a
    head begins with the numbers that are rotated. scaling: of cosines and sines. interleaved: the
    numbers of a pair lie side by side; otherwise as far apart as there are pairs.
    """

    kind: str
    frequencies: Tensor
    scaling: float
    interleaved: bool = False

    @property
    def size(self) -> int:
        """How many numbers of a head are rotated."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True)
class SharedLatent:
    """One latent and one rotated part for all heads, from which keys and values are expanded
    (DeepSeek V2, sec. 2.1).

    rank, rotated: their numbers, which `Attention.k` makes side by side; norm: of the latent.
    expand: for each head the rows that make the `plain` numbers of a key from a latent, then those
    that make the `value` numbers of a value. A query has plain + rotated numbers, and a key those
    that are expanded and the rotated part.
    q_down, q_norm: Attention.q reads what these make of the layer's input; None: that input.
    put_apart: numbers that are rotated together lie side by side before the rotation, and as far
    apart as there are pairs behind it.
    """

    norm: Norm
    expand: Linear
    rank: int
    plain: int
    rotated: int
    value: int
    q_down: Linear | None = None
    q_norm: Norm | None = None
    put_apart: bool = False


@dataclass(frozen=True)
class Attention:
    """heads, key_heads: how many query heads and key heads. dim: numbers of a head.

    scale: of the scores. q_norm, k_norm: before the rotation, or behind it with late_norms; of each
    head, or with joint_norms of all heads together. gated: q has the
    numbers of a head, then gates: the sigmoid of a gate multiplies a number of the output.
    gates: the same of a projection of their own, with one gate of each number or of each head,
    which goes through gate_function. window: how many positions a node sees; None: all. cap: of
    the scores, by cap * tanh(x / cap). sinks: a further score of each head, whose share of the
    softmax has no value. limit: queries, keys and values are limited to [-limit, limit], before
    the rotation and behind joint norms. temperature (growth, span): scores of a node at position p
    are multiplied by 1 + growth * log(1 + floor(p / span)). latent: of which keys and values are
    made; then v is None, and a latent with its rotated part is one key head, which has `dim`
    numbers.
    """

    q: Linear
    k: Linear
    v: Linear | None
    o: Linear
    heads: int
    key_heads: int
    dim: int
    scale: float
    rotation: Rotation | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    joint_norms: bool = False
    late_norms: bool = False
    gated: bool = False
    window: int | None = None
    cap: float | None = None
    sinks: Tensor | None = None
    gates: Linear | None = None
    gate_function: Literal["sigmoid", "softplus"] = "sigmoid"
    limit: float | None = None
    temperature: tuple[float, float] | None = None
    latent: SharedLatent | None = None

    @property
    def gates_heads(self) -> bool:
        """Whether `gates` has one of each head."""
        return self.gates is not None and self.gates.shape[0] == self.heads


@dataclass(frozen=True)
class ShortConvolution:
    """o(c * convolution(b * x)) in place of attention. inputs: b, c and x, side by side."""

    inputs: Linear
    convolution: Any
    o: Linear


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net: a recurrence in place of attention.

    qkv: queries, keys and values before `convolution`, whose outputs go through `activation`.
    z: gates of the outputs, which `norm` reads beside them. b, a: what beta and the decay are
    computed from, the latter with log_rate and step_bias. beta_scale: of the sigmoids of b.
    """

    qkv: Linear
    z: Linear
    b: Linear
    a: Linear
    o: Linear
    convolution: Any
    activation: str
    log_rate: Tensor
    step_bias: Tensor
    norm: Norm
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    beta_scale: float = 1.0


@dataclass(frozen=True)
class MambaTwo:
    """A selective state space in place of attention (Mamba-2, sec. 7).

    inputs: gates, then what goes through `convolution` and `activation` (values, keys and queries
    of the state space), then time steps. log_rate, step_bias, skip: of each head. limits: of time
    steps. norm: of outputs times their gates, over each group's share of them.
    """

    inputs: Linear
    convolution: Any
    activation: str
    log_rate: Tensor
    step_bias: Tensor
    skip: Tensor
    limits: tuple[float, float]
    norm: Norm
    o: Linear
    heads: int
    dim: int
    groups: int
    states: int
    norm_groups: int


# What takes the place of attention.
Recurrent = DeltaNet | ShortConvolution | MambaTwo


@dataclass(frozen=True)
class GatedMLP:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate. activation:
    "silu", or the name of another's class. slopes (p, n, s) of an xIELU: p x^2 + s x of what is
    positive, n (exp(x) - 1 - x) + s x of the rest.
    """

    gate: Linear | None
    up: Linear
    down: Linear
    activation: str
    slopes: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class ExpertsMLP:
    """Gated MLPs, of which a node goes through those that the router scores highest.

    router: weights [count,width]. chosen: how many of the experts a node goes through. Shares are
    the softmax of the router's scores, or by `scoring` the sigmoid of each. An expert's output is
    multiplied by its share, divided by the sum of the chosen experts' if `normalized`, and by
    share_scale. correction [count]: is added to shares, or to the router's scores if
    `corrects_scores`, where experts are chosen, and nowhere else.
    groups: experts lie in so many groups, and are chosen from the chosen_groups of them whose
    group_bests best have the largest sum.

    gate_up, down: the matrices of all experts, [count,outputs,inputs], or [count,inputs,outputs] if
    `transposed`; the outputs of gates come before those of up, or between them if `interleaved`,
    or the two are apart. Without `gated` it has those of up alone.
    Packed ones are layers of gates, up and down, each with the rows of one expert after the other's
    and with their biases.
    shared: an MLP that every node goes through as well; the sigmoid of shared_gate multiplies it,
    and shared_scale.
    activation: as in GatedMLP; or "clamped": gate and up are limited to `limit`, the gate goes
    through x * sigmoid(slope * x), and up is increased by 1.
    """

    router: Tensor
    count: int
    chosen: int
    normalized: bool
    gate_up: Tensor | tuple[Tensor, Tensor] | PackedLinear | tuple[PackedLinear, PackedLinear]
    down: Tensor | PackedLinear
    activation: str
    router_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    transposed: bool = False
    interleaved: bool = False
    gated: bool = True
    limit: float | None = None
    slope: float = 1.0
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    share_scale: float = 1.0
    correction: Tensor | None = None
    corrects_scores: bool = False
    groups: int = 1
    chosen_groups: int = 1
    group_bests: int = 2
    shared: GatedMLP | None = None
    shared_gate: Linear | None = None
    shared_scale: float = 1.0

    @property
    def inner(self) -> int:
        """The numbers inside one expert."""
        if isinstance(self.down, PackedLinear):
            return self.down.in_features
        return self.down.shape[1 if self.transposed else 2]

    @property
    def products(self) -> int:
        """Multiply-adds of one node in its experts, with their biases."""
        gate_up = self.gate_up if isinstance(self.gate_up, tuple) else (self.gate_up,)
        held = (*gate_up, self.down, self.gate_up_bias, self.down_bias)
        of_experts = sum(_numbers(part) for part in held if part is not None)
        return self.router.numel() + self.chosen * of_experts // self.count


def _numbers(weights: Tensor | PackedLinear) -> int:
    if isinstance(weights, Tensor):
        return weights.numel()
    of_bias = 0 if weights.bias is None else weights.bias.numel()
    return weights.in_features * weights.out_features + of_bias


@dataclass(frozen=True)
class DecoderLayer:
    """x + residual_scale * mixer_output_norm(mixer(input_norm(x))), then the same with `mlp` and
    its norms. None: x itself. parallel: `mlp` reads x too, through its own norm if it has one, else
    what the mixer reads, and both are added to x. A layer may have a mixer alone or an MLP alone.
    """

    mixer: Attention | Recurrent | None
    mlp: GatedMLP | ExpertsMLP | None
    input_norm: Norm | None
    mlp_norm: Norm | None
    mixer_output_norm: Norm | None = None
    mlp_output_norm: Norm | None = None
    residual_scale: float = 1.0
    parallel: bool = False

    @property
    def linears(self) -> list[Linear]:
        return [part for part in self._parts() if isinstance(part, Linear)]

    @property
    def norms(self) -> list[Norm]:
        return [part for part in self._parts() if isinstance(part, Norm)]

    @property
    def products(self) -> int:
        """Multiply-adds of one node, without attention to keys."""
        total = sum(linear.numbers for linear in self.linears)
        if isinstance(self.mixer, Recurrent):
            total += self.mixer.convolution.weight.numel()
        if isinstance(self.mlp, ExpertsMLP):
            total += self.mlp.products
        return total

    def _parts(self) -> Iterator[Any]:
        shared = self.mlp.shared if isinstance(self.mlp, ExpertsMLP) else None
        latent = self.mixer.latent if isinstance(self.mixer, Attention) else None
        for part in filter(None, (self.mixer, latent, self.mlp, shared, self)):
            yield from (getattr(part, field.name) for field in fields(part))


@dataclass(frozen=True)
class Decoder:
    """The layers of a model, with the embedding before them and norm and head behind them.

    rotation: the first of its layers'; None: nothing is rotated. embedding_scale: multiplies
    embeddings, to which a row of `positions` is added, that of position 0 being first_position;
    then they go through embedding_norm. logit_divisor: divides the head's outputs.
    logit_cap: of the logits, by cap * tanh(x / cap).
    """

    embedding: Linear
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Linear
    rotation: Rotation | None
    positions: Linear | None = None
    first_position: int = 0
    embedding_norm: Norm | None = None
    embedding_scale: float = 1.0
    logit_divisor: float = 1.0
    logit_cap: float | None = None

    @property
    def attentions(self) -> list[Attention]:
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention)]

    @property
    def recurrent(self) -> list[Recurrent]:
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, Recurrent)]

    @property
    def norms(self) -> list[Norm]:
        return [self.norm, *(norm for layer in self.layers for norm in layer.norms)]
