"""A model's head alone: what Transformers' forward computes after the decoder."""

from __future__ import annotations

from copy import copy
from typing import Any

from torch import Tensor, nn

from longdraft.backends.layout import DecoderLayout


class _Finished:
    """A decoder's output reduced to its last hidden state."""

    def __init__(self, state: Tensor):
        self.last_hidden_state = state

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _NoLayers(nn.Module):
    """Takes the place of a decoder, or of what contains it, and returns `state` [1,N,d]. Numbers
    are the decoder's.
    """

    def __init__(self, decoder: Any, state: Tensor):
        super().__init__()
        self.state = state
        self.numbers = {k: x for k, x in vars(decoder).items() if isinstance(x, int | float)}

    def __getattr__(self, name: str) -> Any:
        # Falcon-H1's head reads a factor; OPT's calls model.decoder
        return self.__dict__["numbers"].get(name, self)

    def forward(self, *args: Any, **kwargs: Any) -> _Finished:
        return _Finished(self.state)


def without_layers(hf: Any, layout: DecoderLayout, state: Tensor) -> Any:
    """A model that shares hf's modules except those below its head, which return `state`. hf is not
    changed.
    """
    top = parent = _shallow(hf)
    for name in layout.below_head[:-1]:
        below = _shallow(parent._modules[name])
        parent._modules[name] = below
        parent = below
    last = layout.below_head[-1]
    parent._modules[last] = _NoLayers(parent._modules[last], state)
    return top


def _shallow(module: Any) -> Any:
    """A copy of the module with its own table of the same submodules."""
    twin = copy(module)
    twin._modules = dict(module._modules)
    return twin
