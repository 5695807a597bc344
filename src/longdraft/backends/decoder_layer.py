"""The decoder layer that native kernels compute: which of Transformers' modules it has, and their
sizes.

`stock` checks a model by this list, and `native` gives the kernels its modules: Layer in
ops/native/interface.h has a field for each of them, and ops/native/forward.h computes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any


@dataclass(frozen=True)
class Part:
    """A linear layer or a norm. field: of the kernels' Layer. path: of its module, below
    Transformers' decoder layer.

    size: names of Sizes' fields: (outputs, inputs) of a linear layer, (numbers,) of a norm.
    """

    field: str
    path: str
    size: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the module alone."""
        return self.path.rpartition(".")[2]

    def of(self, layer: Any) -> Any | None:
        """The module in a decoder layer; None if the layer has none, as Llama has no q_norm."""
        return reduce(lambda module, name: getattr(module, name, None), self.path.split("."), layer)

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(getattr(sizes, name) for name in self.size)


@dataclass(frozen=True)
class Sizes:
    """width: of the residual stream. queries, keys: all heads together. mlp: of the hidden layer.
    head: one head.
    """

    width: int
    queries: int
    keys: int
    mlp: int
    head: int

    @staticmethod
    def of(hf: Any) -> Sizes:
        """Those that a model's config implies, and its first layer for a head."""
        c = hf.config
        head = int(hf.model.layers[0].self_attn.head_dim)
        heads = c.num_attention_heads * head, c.num_key_value_heads * head
        return Sizes(c.hidden_size, *heads, c.intermediate_size, head)


LINEARS = (
    Part("q", "self_attn.q_proj", ("queries", "width")),
    Part("k", "self_attn.k_proj", ("keys", "width")),
    Part("v", "self_attn.v_proj", ("keys", "width")),
    Part("o", "self_attn.o_proj", ("width", "queries")),
    Part("gate", "mlp.gate_proj", ("mlp", "width")),
    Part("up", "mlp.up_proj", ("mlp", "width")),
    Part("down", "mlp.down_proj", ("width", "mlp")),
)
NORMS = (
    Part("input_norm", "input_layernorm", ("width",)),
    Part("mlp_norm", "post_attention_layernorm", ("width",)),
    Part("q_norm", "self_attn.q_norm", ("head",)),
    Part("k_norm", "self_attn.k_norm", ("head",)),
)
