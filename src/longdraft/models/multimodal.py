"""The text model of a multimodal checkpoint: what reads images or sound is left out before weights are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from longdraft.backends.layout import layout_of
from longdraft.errors import InputError
from longdraft.models.classes import CAUSAL, causal_class

TOKENS = 12  # of the pass by which two classes are compared


class LeftOut(nn.Module):
    """In place of a module that texts do not need; it has no weights."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise InputError("only the text part of this model was loaded: leave out images, video and sound")


def without_towers(cls: Any) -> Any:
    """A class whose models are `cls`'s without what texts do not need, so that from_pretrained does not read that.

    It has the name and the module of cls, by which Transformers chooses how to rename a checkpoint's weights.
    """

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, config, *args, **kwargs)
        leave_out(self)

    return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__})


def leave_out(hf: Any) -> None:
    """Replace what stands beside a decoder and its head by LeftOut. Raises InputError if there is no decoder."""
    gone = {f"{path}.{name}".lstrip(".") for path, module in _around(hf) for name in _beside(hf, module)}
    for name in gone:
        owner, _, leaf = name.rpartition(".")
        setattr(hf.get_submodule(owner), leaf, LeftOut())
    tied: dict[str, str] = hf.all_tied_weights_keys
    inside = tuple(f"{name}." for name in gone)
    hf.all_tied_weights_keys = {k: v for k, v in tied.items() if not k.startswith(inside) and not v.startswith(inside)}


def _around(hf: Any) -> Iterator[tuple[str, nn.Module]]:
    """The modules that contain the decoder's layers, with their paths, from the outermost on."""
    layers = layout_of(hf).layers
    names = next(name for name, m in hf.named_modules() if m is layers).split(".")
    for n in range(len(names)):
        path = ".".join(names[:n])
        yield path, hf.get_submodule(path)


def _beside(hf: Any, module: nn.Module) -> list[str]:
    """Children of a module around the layers that are not of the decoder. Those of the decoder itself are, except
    models of their own, such as what makes tokens of images."""
    layout = layout_of(hf)
    kept = (layout.layers, hf.get_input_embeddings(), hf.get_output_embeddings())
    outside = module is not layout.body and all(m is not module for m in layout.body.modules())
    others = {name: m for name, m in module.named_children() if all(k is not p for k in kept for p in m.modules())}
    return [
        name
        for name, m in others.items()
        if (outside or isinstance(m, PreTrainedModel)) and next(m.parameters(), None) is not None
    ]


def text_model(hf: Any) -> Any:
    """The causal language model within a multimodal one, over the same weights.

    It is the multimodal model itself where Transformers has no class for it, or where the class computes something
    else, which is seen by one pass.
    """
    inside = next((m for _, m in list(_around(hf))[1:] if type(m).__name__.endswith(CAUSAL)), None)
    text = inside or _assembled(hf)
    if text is None or not _same(hf, text):
        return hf
    text.generation_config = hf.generation_config
    text.config.name_or_path = text.name_or_path = hf.name_or_path
    return text.eval()


def _assembled(hf: Any) -> Any:
    """A model of the text config's own class with the decoder and the head of hf; None if they do not fit it."""
    cls = causal_class(hf.config.get_text_config())
    if cls is None:
        return None
    with torch.device("meta"):
        text = cls(hf.config.get_text_config())
    prefix = text.base_model_prefix
    decoder = next((m for _, m in _around(hf) if type(m) is type(getattr(text, prefix, None))), None)
    head = hf.get_output_embeddings()
    if decoder is None or head is None:
        return None
    text.config = decoder.config
    setattr(text, prefix, decoder)
    text.set_output_embeddings(head)
    return None if any(t.is_meta for t in (*text.parameters(), *text.buffers())) else text


@torch.inference_mode()
def _same(hf: Any, text: Any) -> bool:
    """Whether both give the same logits for a text, up to rounding."""
    ids = torch.arange(3, 3 + TOKENS, device=hf.device)[None] % hf.config.get_text_config().vocab_size
    wanted, got = (m.eval()(input_ids=ids, use_cache=False).logits.float() for m in (hf, text))
    return wanted.shape == got.shape and bool((wanted - got).abs().max() <= 0.01 * wanted.abs().max())
