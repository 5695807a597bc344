"""Layers and the final norm are read from a decoder of any layout."""

from __future__ import annotations

from dataclasses import replace

import coverage
import pytest
import tiny_models
import torch
from support.listed import weekly

from longdraft.backends.layout import DecoderLayout, layout_of
from longdraft.models.lm import LM

KINDS = {  # the path of the layers, and the class of the final norm
    "gpt2": ("transformer.h", "LayerNorm"),
    "gpt_neox": ("gpt_neox.layers", "LayerNorm"),
    "opt": ("model.decoder.layers", "LayerNorm"),
    "phi": ("model.layers", "LayerNorm"),
    "ctrl": ("transformer.h", "LayerNorm"),
    "modernbert-decoder": ("model.layers", "LayerNorm"),
    "lfm2": ("model.layers", "Lfm2RMSNorm"),
    "bloom": ("transformer.h", "LayerNorm"),
    "fuyu": ("model.language_model.layers", "LayerNorm"),
    "bert": ("bert.encoder.layer", None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_where_layers_and_norm_are(kind):
    hf = tiny_models.build(tiny_models.config(kind))
    layout = layout_of(hf)
    path = next(name for name, m in hf.named_modules() if m is layout.layers)
    assert (path, layout.norm and type(layout.norm).__name__) == KINDS[kind]


def test_the_norm_of_the_embeddings_is_not_the_final_one():
    hf = tiny_models.build(tiny_models.config("bloom"))
    assert layout_of(hf).norm is hf.transformer.ln_f


def test_text_has_as_many_axes_of_positions_as_the_rotation(monkeypatch):
    """HunYuan-VL has four, most models that read images have three."""
    hf = tiny_models.build(tiny_models.config("hunyuan_vl"))
    layout = layout_of(hf)
    position = torch.arange(5)[None]
    cos, _ = layout.rotations(torch.zeros(1), position)
    assert len(layout.rotary.mrope_section) == 4 and cos.shape[-2] == 5
    # planted
    monkeypatch.setattr(
        DecoderLayout, "rotations", lambda self, like, x: self.rotary(like, x.expand(3, -1, -1))
    )
    with pytest.raises(RuntimeError):
        layout.rotations(torch.zeros(1), position)


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_the_head_follows_from_the_last_state(kind):
    lm = LM(tiny_models.build(tiny_models.config(kind)))
    assert coverage.reads_states(lm, tiny_models.prompt(9))
    # planted: a decoder without its norm
    lm.architecture.layout = replace(lm.architecture.layout, tail=())
    assert not coverage.reads_states(lm, tiny_models.prompt(9))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=pytest.mark.full if k in ("gpt2", "phi") else weekly)
        for k in KINDS
        if k not in ("lfm2", "bert")
    ],
)
def test_every_method_on_other_layouts(kind):
    record = coverage.examined(kind, coverage.METHODS)
    assert record["class"] in ("exact", "equal", "refused"), record
