"""What longdraft asks of a Transformers model besides its forward pass, without changing a module in use."""

from __future__ import annotations

import threading
from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import MoeModelOutputWithPast

from longdraft.errors import InputError


def listen(hf: Any) -> threading.local:
    """Make the model's layers and final norm hand what enters them to the calling thread's `taps`, if it has set any.

    The hooks stay, so that no thread changes the modules while another runs them.
    """
    listening, body = threading.local(), hf.get_decoder()

    def catch(n: int) -> Any:
        def hook(module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
            captured = getattr(listening, "captured", None)
            if captured is not None and n in captured.spec.hidden:
                captured.states[n] = args[0] if args else kwargs["hidden_states"]

        return hook

    for n, place in enumerate([*body.layers, body.norm]):
        place.register_forward_pre_hook(catch(n), with_kwargs=True)
    return listening


class _Headed(torch.nn.Module):
    """In place of a decoder: hands on the state [1,N,d] that it is given, as if its layers had made it."""

    def forward(self, *args: Any, longdraft_state: Tensor, **kwargs: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=longdraft_state)


def without_layers(hf: Any) -> Any:
    """A model that shares hf's modules but for its decoder, in whose place stands _Headed. hf itself is not changed."""
    body = hf.get_decoder()
    path = next(name for name, module in hf.named_modules() if module is body).split(".")
    top = here = _shallow(hf)
    for name in path[:-1]:
        below = _shallow(here._modules[name])
        here._modules[name] = below
        here = below
    here._modules[path[-1]] = _Headed()
    return top


def _shallow(module: Any) -> Any:
    """The same module with a table of submodules of its own."""
    twin = copy(module)
    twin._modules = dict(module._modules)
    return twin


def windows_of(config: Any) -> dict[int, int]:
    """{layer: window} of the layers that see only the latest tokens, read from the config.

    Not from the attention argument: some architectures put the window in their mask alone. Raises InputError on layer
    types that are not attention over keys and values.
    """
    c = config.get_text_config()
    types = getattr(c, "layer_types", None)
    window: int | None = getattr(c, "sliding_window", None)
    if types is None:
        used = getattr(c, "use_sliding_window", True)
        return dict.fromkeys(range(c.num_hidden_layers), window) if window is not None and used else {}
    odd = sorted(set(types) - {"full_attention", "sliding_attention"})
    if odd:
        raise InputError(
            f"{c.model_type} has {odd[0]} layers, which cannot be rolled back: use a model of full or sliding attention"
        )
    return {i: window for i, kind in enumerate(types) if kind == "sliding_attention" and window is not None}


def rotates(hf: Any, ropes: set[str]) -> bool:
    """Whether all positions are rotations of these kinds, which any number gives, also beyond those trained on."""
    kinds = getattr(getattr(hf.get_decoder(), "rotary_emb", None), "rope_type", None)
    return kinds is not None and set(kinds.values() if isinstance(kinds, dict) else [kinds]) <= ropes


def experts_of(config: Any) -> int:
    """How many experts a layer chooses from; 0 where it has none."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((n for name in names if (n := getattr(config, name, None))), 0)
