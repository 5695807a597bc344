"""The text model of a multimodal checkpoint.

Modules that read images or sound are left out before weights are read.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel

from longdraft.backends.layout import layout_of
from longdraft.errors import InputError
from longdraft.models.classes import CAUSAL, causal_class

PLACEHOLDER = re.compile(r"(image|video|audio)_token_(?:id|index)")  # names in configs
TOKENS = 12  # of the pass by which two classes are compared


class Absent(AttributeError):
    """A pass asked for a part of what was left out."""


class LeftOut(nn.Module):
    """In place of a module that texts do not need; it has no weights."""

    def __getattr__(self, name: str) -> Any:
        raise Absent(f"{name} belongs to a part of the model that reads no texts, and was left out")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise InputError(
            "only the text part of this model was loaded: leave out images, video and sound"
        )


def without_towers(cls: Any) -> Any:
    """A class whose models are `cls`'s without modules that texts do not need.

    So from_pretrained does not read these. It has the name and the module of cls, by which
    Transformers chooses how to rename a checkpoint's weights.
    """

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        with towers_are_optional():
            cls.__init__(self, config, *args, **kwargs)
        leave_out(self)

    return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__})


@contextmanager
def towers_are_optional() -> Generator[None]:
    """Replace modules that need a package which is not installed by LeftOut, from the beginning.

    timm is such a package.
    """
    made = AutoModel.__dict__["from_config"]

    def from_config(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return made.__func__(cls, *args, **kwargs)
        except ImportError:
            return LeftOut()

    setattr(AutoModel, "from_config", classmethod(from_config))  # noqa: B010
    try:
        yield
    finally:
        setattr(AutoModel, "from_config", made)  # noqa: B010


def leave_out(hf: Any) -> None:
    """Replace what stands beside a decoder and its head by LeftOut.

    Raises InputError if there is no decoder.
    """
    gone = list(_beside_decoder(hf))
    for name in gone:
        owner, _, leaf = name.rpartition(".")
        setattr(hf.get_submodule(owner), leaf, LeftOut())
    inside = tuple(f"{name}." for name in gone)
    tied: dict[str, str] = hf.all_tied_weights_keys
    hf.all_tied_weights_keys = {
        k: v for k, v in tied.items() if not k.startswith(inside) and not v.startswith(inside)
    }


def _beside_decoder(hf: Any) -> Iterator[str]:
    """The outermost modules with weights that are outside the decoder, its embeddings and its head.

    They are neither around nor in these. In the decoder these are separate models, such as what
    makes tokens of images.
    """
    layout = layout_of(hf)
    kept = (layout.layers, hf.get_input_embeddings(), hf.get_output_embeddings())
    parts = set[int]()
    for part in kept:
        if part is not None:
            parts |= set(map(id, part.modules()))
    decoder = {id(m) for m in layout.body.modules()}
    done: tuple[str, ...] = ()
    for name, module in hf.named_modules():
        if not name.startswith(done) and parts.isdisjoint(map(id, module.modules())):
            own = isinstance(module, PreTrainedModel) if id(module) in decoder else True
            if own and next(module.parameters(), None) is not None:
                done += (f"{name}.",)
                yield name


def _around(hf: Any) -> list[Any]:
    """The modules that contain the decoder's layers, the outermost first.

    The model itself is not among them.
    """
    layers = layout_of(hf).layers
    names = next(name for name, m in hf.named_modules() if m is layers).split(".")
    return [hf.get_submodule(".".join(names[:n])) for n in range(1, len(names))]


def text_model(hf: Any) -> Any:
    """The causal language model within a multimodal one, over the same weights.

    It is the multimodal model itself where Transformers has no class for it, or where the class
    computes something else, which is seen by one pass. Its `placeholders` are those of the config.
    """
    inside = next((m for m in _around(hf) if type(m).__name__.endswith(CAUSAL)), None)
    text = inside or _assembled(hf)
    if text is None or not probe(hf, text):
        text = hf
    text.placeholders = placeholders_of(hf.config)
    text.generation_config = hf.generation_config
    text.config.name_or_path = hf.name_or_path
    text.name_or_path = hf.name_or_path
    return text.eval()


def placeholders_of(config: Any) -> dict[int, str]:
    """The tokens in whose place a prompt has images, video or sound.

    {token: what it stands for}.
    """
    matches = ((PLACEHOLDER.fullmatch(name), value) for name, value in vars(config).items())
    return {value: match[1] for match, value in matches if match and isinstance(value, int)}


def _assembled(hf: Any) -> Any:
    """A model of the text config's own class with the decoder and the head of hf.

    None if they do not fit it.
    """
    config = hf.config.get_text_config()
    cls = causal_class(config)
    if cls is None or config is hf.config:
        return None
    with torch.device("meta"):
        text = cls(config)
    prefix = text.base_model_prefix
    decoder = next((m for m in _around(hf) if type(m) is type(getattr(text, prefix, None))), None)
    head = hf.get_output_embeddings()
    if decoder is None or head is None:
        return None
    text.config = decoder.config
    setattr(text, prefix, decoder)
    text.set_output_embeddings(head)
    return None if any(t.is_meta for t in (*text.parameters(), *text.buffers())) else text


@torch.inference_mode()
def probe(hf: Any, text: Any) -> bool:
    """Whether both give the same logits for a text, up to rounding.

    Also if hf needs a module that was left out.
    """
    vocab = hf.config.get_text_config().vocab_size
    ids = torch.arange(3, 3 + TOKENS, device=hf.device)[None] % vocab
    try:
        wanted = hf.eval()(input_ids=ids, use_cache=False).logits.float()
    except (InputError, Absent):
        return True
    logits = text.eval()(input_ids=ids, use_cache=False).logits.float()
    if wanted.shape != logits.shape:
        return False
    return bool((wanted - logits).abs().max() <= 0.01 * wanted.abs().max())
