"""The base of features: what one can change of passes, of attention and of what is cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from longdraft import ops
from longdraft.backends.attention_pass import AttentionPass
from longdraft.backends.current_pass import CurrentPass
from longdraft.backends.features.span import Span
from longdraft.core import KVCache


@dataclass(slots=True)
class Call:
    """A layer's call of the attention function, which features change before it is computed.

    layer: whose keys are attended to. query [B,H,T,D] of the last T new nodes; key, value [B,K,W,D]
    of all, W = 0 where they are cached already. mask: one that the model has made. arguments: by
    name, those that would change the result; a feature that knows one takes it out. compute: as
    ops.attend, which attends in each row; None: ops.attend.
    """

    module: Any
    layer: Any
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    softcap: float | None
    sink: Tensor | None
    arguments: dict[str, Any]
    compute: Callable[..., ops.Attended] | None = None


Attend = Callable[[Call], Tensor]
Groups = Callable[[int, int, Tensor], list[list[ops.Segment]]]
"""(layer, row, its queries [H,T,D]) -> the keys that they may read; a list per key head where these
differ."""


@dataclass(frozen=True)
class Slot:
    """One token's cache entry in a layer: `heads` keys and values of these widths.

    products: multiply-adds of one node with one slot, over all query heads.
    """

    heads: int
    key: int
    value: int
    products: int


def plain_slot(config: Any) -> Slot:
    """The slot that a layer with this config caches for a token."""
    queries = int(config.num_attention_heads)
    heads = getattr(config, "num_key_value_heads", None)
    heads = int(heads or (1 if getattr(config, "multi_query", False) else queries))
    key = int(getattr(config, "head_dim", None) or config.hidden_size // queries)
    value = int(getattr(config, "v_head_dim", None) or key)
    return Slot(heads, key, value, queries * (key + value))


class Feature:
    """One difference of a model from plain attention. The defaults change nothing.

    models, computed: for the table of docs/adding-an-architecture.md, the models that have it and
    how longdraft computes it. layer_types: those of configs that it computes. calls: of attention
    by each layer in a pass. by_path: whether a pass can only run nodes that follow each other.
    undivided: why the heads of a model that has it cannot be divided among processes; "": they can.
    spans {layer: what its nodes see}: of the layers that do not attend to everything.
    """

    models: ClassVar[str] = ""
    computed: ClassVar[str] = ""
    layer_types: ClassVar[frozenset[str]] = frozenset()
    calls: ClassVar[int] = 1
    by_path: ClassVar[bool] = False
    undivided: ClassVar[str] = ""
    spans: Mapping[int, Span] = MappingProxyType({})

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        """The feature of a Transformers model; None: the model does not have it."""
        raise NotImplementedError

    @classmethod
    def refuse(cls, config: Any) -> str | None:
        """Why a model with this config cannot run, as a verb and its objects; None: it can."""
        return None

    @classmethod
    def keeps_state(cls, model: type, config: Any) -> bool:
        """Whether the state that this class of models keeps is one that the feature rolls back."""
        return False

    def path(
        self, cache: KVCache, ancestors: list[int], nodes: list[int], dtype: torch.dtype
    ) -> AttentionPass:
        """The computation of a pass over nodes that follow each other, for a feature that is
        `by_path`.

        cache: of one row. ancestors: scratch nodes before the new ones.
        """
        raise NotImplementedError

    def around(self, p: CurrentPass) -> AbstractContextManager[object]:
        """Inside, the model's modules run the pass. What the feature needs it keeps in p.kept."""
        return nullcontext()

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        """The layer's outputs [B,T,H,Dv]; proceed: attention without this feature.

        Layers of a drafter attend outside of the model's passes: there p.kept has nothing.
        """
        return proceed(call)

    def groups(self, proceed: Groups, layer: int, b: int, q: Tensor) -> list[list[ops.Segment]]:
        """Same contract as Groups; proceed: the computation without this feature."""
        return proceed(layer, b, q)

    def positions(self, position: Tensor, cache: KVCache) -> Tensor:
        """The positions that nodes at position [B,W] are computed at."""
        return position

    def slot(self, layer: int) -> Slot | None:
        """The slot that this layer caches for a token; None: the same as without this feature."""
        return None


def overriding(features: Iterable[Feature], name: str) -> list[Any]:
    """This method of the features whose class does not leave it as it is, in their order."""
    return [
        getattr(f, name) for f in features if getattr(type(f), name) is not getattr(Feature, name)
    ]


def wrapped(methods: Iterable[Any], innermost: Callable[..., Any]) -> Callable[..., Any]:
    """The methods around each other, the first one outermost: each calls the next by `proceed`."""
    function = innermost
    for method in reversed(list(methods)):
        function = partial(method, function)
    return function
