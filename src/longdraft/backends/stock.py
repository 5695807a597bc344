"""Checks that a model's modules and shapes are those of its config and of Transformers' own
code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers.activations import ACT2FN

from longdraft.backends.decoder_layer import LINEARS, NORMS, Sizes
from longdraft.backends.layer_configs import layer_configs
from longdraft.backends.packed_linear import EightBitInputs, PackedLinear
from longdraft.errors import InputError
from longdraft.families import family_of

PLAIN = {nn.Linear, PackedLinear, EightBitInputs, nn.Embedding, nn.ModuleList}
RECORDERS = ("transformers.", "longdraft.backends.architecture")  # modules whose hooks only record
SILU = {nn.SiLU, type(ACT2FN["silu"])}


def refuse(hf: Any, windows: Mapping[int, object]) -> None:
    """Raises InputError for a model whose shapes contradict each other (in stock models, those of
    weights too).
    """
    c = hf.config.get_text_config()
    kind = c.model_type
    if c.vocab_size < 1:
        raise InputError(
            f"this {kind} has no vocabulary: its config.json is not that of a language model"
        )
    for layer in layer_configs(c):
        heads, keys = (
            getattr(layer, name, None) for name in ("num_attention_heads", "num_key_value_heads")
        )
        if isinstance(heads, int) and isinstance(keys, int) and (keys < 1 or heads % keys):
            raise InputError(
                f"this {kind} has {heads} query heads for {keys} key heads: "
                "num_attention_heads in its config.json"
                " must be a multiple of num_key_value_heads"
            )
    for layer, window in windows.items():
        if isinstance(window, int) and window < 1:
            raise InputError(
                f"this {kind} has a sliding_window of {window} in layer {layer}: it must "
                "be 1 or more"
            )
    if not is_stock(hf):
        return
    for name, actual, expected in _shapes(hf):
        if actual != expected:
            wrong, right = ("x".join(map(str, shape)) for shape in (actual, expected))
            raise InputError(
                f"this {kind}'s {name} has shape {wrong}, but its config.json implies "
                f"{right}: use weights and a config"
                " that belong together"
            )
    rotary = hf.model.rotary_emb
    dim = hf.model.layers[0].self_attn.head_dim
    if 2 * len(rotary.inv_freq) != dim:
        raise InputError(
            f"this {kind} rotates {2 * len(rotary.inv_freq)} of a head's {dim} dimensions, "
            f"but {kind} rotates all of"
            " them: remove partial_rotary_factor from its config.json"
        )


def _shapes(hf: Any) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """(name, shape, shape by the config) of every weight, bias and norm that a stock model
    computes with.
    """
    c = hf.config
    model = hf.model
    sizes = Sizes.of(hf)
    yield "list of layers", (len(model.layers),), (c.num_hidden_layers,)
    yield from _module("embed_tokens", model.embed_tokens, (c.vocab_size, sizes.width))
    yield from _module("lm_head", hf.lm_head, (c.vocab_size, sizes.width))
    yield from _module("norm", model.norm, (sizes.width,))
    for i, layer in enumerate(model.layers):
        yield f"layer {i}'s head", (layer.self_attn.head_dim,), (sizes.head,)
        for part in (*LINEARS, *NORMS):
            yield from _module(f"layer {i}'s {part.name}", part.of(layer), part.shape(sizes))


def _module(
    name: str, module: Any, shape: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    bias = getattr(module, "bias", None)
    if isinstance(module, PackedLinear):
        yield name, module.stored.shape, shape
    elif (weight := getattr(module, "weight", None)) is not None:
        yield name, tuple(weight.shape), shape
    if bias is not None:
        yield f"{name}.bias", tuple(bias.shape), shape[:1]


def is_stock(hf: Any) -> bool:
    """Whether every module is Transformers' own or plain torch: no adapter, quantized weight, hook
    or wrapper.
    """
    family = family_of(hf)
    if family is None or family.native != "decoder":
        return False
    own = sys.modules[type(hf).__module__]
    if not all(known(m, own) and not changed(m) for m in hf.modules()):
        return False
    norms = {m.variance_epsilon for m in hf.modules() if hasattr(m, "variance_epsilon")}
    return (
        norms <= {hf.config.rms_norm_eps}
        and len({layer.self_attn.scaling for layer in hf.model.layers}) == 1
    )


def known(module: nn.Module, own: Any) -> bool:
    kind = type(module)
    activation = kind.__module__ in ("torch.nn.modules.activation", "transformers.activations")
    return activation or kind in PLAIN or getattr(own, kind.__name__, None) is kind


def changed(module: nn.Module) -> bool:
    # torch has no public list of a module's hooks
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]  # pyright: ignore[reportPrivateUsage]
    # Hooks of Transformers and of Architecture only record what passes through.
    strange = any(not getattr(hook, "__module__", "").startswith(RECORDERS) for hook in hooks)
    return strange or "forward" in vars(module)
