"""Decoder layers of a target's own class, beside those of the target, as native kernels compute
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from longdraft.backends.decoder_layer import Attention, GatedMLP, Norm
from longdraft.backends.describe import Finder
from longdraft.backends.described_fields import LLAMA_LIKE, unread
from longdraft.backends.known_modules import Unknown
from longdraft.backends.stock import stock_decoder
from longdraft.core.draft_layers import DraftLayer
from longdraft.families import family_of
from longdraft.models.lm import LM

# The fields that DraftLayers reads. A drafter has its own window.
READ = {**LLAMA_LIKE, Attention: LLAMA_LIKE[Attention] | {"window"}}


def stock_parts(target: LM, layer: Any, beside: Sequence[nn.Module]) -> dict[str, Any] | None:
    """This decoder layer and its rotation, described as DraftLayers are.

    None unless the target's own layers are of the same class, and the kernels know it and the
    modules beside it.
    """
    hf: Any = target.hf
    family = family_of(hf)
    decoder = stock_decoder(hf)
    if family is None or decoder is None or decoder.rotation is None:
        return None
    if any(a.rotation is not decoder.rotation for a in decoder.attentions):
        return None
    finder = Finder(family, hf.config.get_text_config(), {None: decoder.rotation})
    try:
        made = finder.layer(layer)
        norms = [*made.norms, *_norms(finder, beside)]
    except Unknown:
        return None
    attention = made.mixer
    mlp = made.mlp
    if unread(made, READ) or mlp is None or mlp.activation != "silu":
        return None
    assert isinstance(attention, Attention) and isinstance(mlp, GatedMLP)
    if mlp.gate is None or made.input_norm is None or made.mlp_norm is None or attention.v is None:
        return None
    if {norm.eps for norm in norms} != {decoder.norm.eps} or attention.scale != attention.dim**-0.5:
        return None
    draft = DraftLayer(
        q=attention.q.module,
        k=attention.k.module,
        v=attention.v.module,
        o=attention.o.module,
        gate=mlp.gate.module,
        up=mlp.up.module,
        down=mlp.down.module,
        input_norm=made.input_norm.module,
        mlp_norm=made.mlp_norm.module,
        q_norm=attention.q_norm and attention.q_norm.module,
        k_norm=attention.k_norm and attention.k_norm.module,
    )
    return {
        "layers": [draft],
        "heads": attention.heads,
        "key_heads": attention.key_heads,
        "dim": attention.dim,
        "mlp": mlp.gate.shape[0],
        "eps": decoder.norm.eps,
        "frequency": decoder.rotation.frequencies,
        "scaling": decoder.rotation.scaling,
    }


def _norms(finder: Finder, modules: Sequence[nn.Module]) -> Iterator[Norm]:
    """The norms among these modules; the others must be linear layers. Raises Unknown."""
    for module in modules:
        part: Any = module
        if hasattr(part, "in_features"):
            finder.linear(part, "", (part.out_features, part.in_features))
        else:
            yield finder.norm(part, "", len(part.weight))
