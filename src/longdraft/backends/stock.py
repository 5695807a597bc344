"""Checks that a model's modules and shapes are those of its config and of Transformers' own
code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from longdraft.backends.decoder_layer import Decoder
from longdraft.backends.describe import described
from longdraft.backends.layer_configs import layer_configs
from longdraft.backends.packed_linear import PackedLinear
from longdraft.errors import InputError
from longdraft.families import family_of


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
    decoder = stock_decoder(hf)
    if decoder is None:
        return
    for name, actual, expected in _shapes(decoder, c.num_hidden_layers):
        if actual != expected:
            wrong, right = ("x".join(map(str, shape)) for shape in (actual, expected))
            raise InputError(
                f"this {kind}'s {name} has shape {wrong}, but its config.json implies "
                f"{right}: use weights and a config"
                " that belong together"
            )
    if decoder.rotation is None:
        return
    rotated = decoder.rotation.size
    dim = decoder.attentions[0].dim
    family = family_of(hf)
    if decoder.attentions[0].latent is not None:
        return
    if rotated != dim and not (family is not None and family.partial):
        raise InputError(
            f"this {kind} rotates {rotated} of a head's {dim} dimensions, "
            f"but {kind} rotates all of"
            " them: remove partial_rotary_factor from its config.json"
        )


def _shapes(
    decoder: Decoder, layers: int
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """(name, shape, shape by the config) of every weight, bias and norm of a decoder that has this
    many layers by its config.
    """
    yield "list of layers", (len(decoder.layers),), (layers,)
    for part in (decoder.embedding, decoder.head, decoder.norm):
        yield from _module(part.name, part.module, part.shape)
    first = decoder.attentions[0]
    for i, (layer, attention) in enumerate(zip(decoder.layers, decoder.attentions, strict=True)):
        yield f"layer {i}'s head", (attention.dim,), (first.dim,)
        for part in (*layer.linears, *layer.norms):
            yield from _module(f"layer {i}'s {part.name}", part.module, part.shape)


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


def stock_decoder(hf: Any) -> Decoder | None:
    """The description of a model whose layers are all like Llama's; None for another model, or one
    with an adapter, a quantized weight of another library, a hook or a wrapper.
    """
    family = family_of(hf)
    return described(hf) if family is not None and family.native == "decoder" else None
