"""The part of Transformers' cache protocol that modules call while they compute a pass over a
KVCache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from longdraft.backends.current_pass import CurrentPass
from longdraft.errors import InputError


class Expansion(Protocol):
    """How a layer makes keys and values from latents, which attention does not need."""

    def fits(self, latent: Tensor, rotated: Tensor) -> bool:
        """Whether these are a latent and a rotated part of the layer."""
        ...


class IndexKeys(Protocol):
    """Caches the keys of indexers: they give those of the new nodes and get those of all slots."""

    def keys(self, layer: int, k: Tensor) -> Tensor: ...

    def block_keys(self, layer: int, k: Tensor) -> Tensor: ...


class Past:
    """Belongs to one pass. What modules put into it is of the new nodes alone; what is cached stays
    in the KVCache.

    Transformers builds no mask from it: for attention functions that it has no masks for, it asks
    for no sizes.
    latents {layer}: those whose keys and values are not expanded. states {layer: what such a layer
    has put in}, which its attention takes out. choice: for modules with indexers.
    """

    def __init__(self) -> None:
        self.latents: Mapping[int, Expansion] = {}
        self.states = dict[int, tuple[Tensor, Tensor]]()
        self.choice: IndexKeys | None = None

    def update(
        self, k: Tensor, v: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """k, v [B,K,W,D] of the new nodes -> what the module continues with: k and v, unless they
        are latents.

        Then it is tensors without numbers, so that the module computes only the shapes of the
        expanded keys and values, which nothing reads.
        """
        latent = self.latents.get(layer_idx)
        if latent is None or not latent.fits(k, v):
            return k, v
        self.states[layer_idx] = k, v
        return k.to("meta"), v.to("meta")

    def update_indexer(self, k: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        """Keys [B,W,D] of an indexer for the new nodes -> those of all slots [B,S,D]."""
        if self.choice is None:
            raise InputError(
                f"layer {layer_idx} has an indexer, which this backend does not run: use "
                "the eager one"
            )
        return self.choice.keys(layer_idx, k)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Recurrent layers compute every pass as if it were the first one: recurrent_pass.py knows
        their states.
        """

    get_recurrent_state = get_conv_state

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int = 0) -> bool:
        return False

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, **_: Any) -> Tensor:
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: Tensor | None, layer_idx: int, **_: Any
    ) -> None:
        pass

    @property
    def layers(self) -> _Layers:
        return _Layers(self.choice)


@dataclass(frozen=True)
class _Layers:
    """Past.layers[n]: what modules with their own type of cache layer call."""

    choice: IndexKeys | None
    layer: int = -1

    def __getitem__(self, layer: int) -> _Layers:
        return replace(self, layer=layer)

    def update_index(self, k: Tensor) -> Tensor:
        """Keys [B,1,W,D] of an indexer for the new nodes -> those of all slots [B,1,S,D]."""
        if self.choice is None:
            raise InputError(
                f"layer {self.layer} has an indexer, which this backend does not run: use "
                "the eager one"
            )
        return self.choice.block_keys(self.layer, k)


def past_of(p: CurrentPass) -> Past:
    """The pass's Past, which all features that need one share; the model's forward is given it."""
    past: Past = p.arguments.setdefault("past_key_values", Past())
    return past
