"""Texts of models that read images, too: native kernels compute the decoder inside, and what is not
known around it is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
import torch
from support.tiny_families import OLD
from torch import nn
from transformers import CONFIG_MAPPING

from longdraft import Sampler, build, generate
from longdraft.backends.describe import describe, described
from longdraft.backends.known_modules import Unknown
from longdraft.core import Tree
from longdraft.families import family_of
from longdraft.models.lm import LM
from longdraft.models.multimodal import text_model
from longdraft.ops import native

if native.library() is None:
    pytest.skip("no build of the native kernels runs here", allow_module_level=True)

DAILY = ("glm4v", "aya_vision", "hunyuan_vl")
OTHERS = (
    *("qwen2_vl", "qwen3_vl_moe", "granite4_vision"),
    *("qwen2_5_vl", "qwen2_5_omni_thinker", "qwen3_vl", "qwen3_omni_moe_thinker", "cosmos3_omni"),
    *("cosmos3_edge", "glm46v", "glm4v_moe", "glm_ocr", "paddleocr_vl", "granite_docling"),
    *("cohere2_vision", "emu3", "lfm2_vl", "aria"),
)
each_kind = pytest.mark.parametrize(
    "kind", [*DAILY, *(pytest.param(kind, marks=pytest.mark.full) for kind in OTHERS)]
)


@torch.no_grad()
def model(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model whose norms, biases and positions show."""
    if kind not in CONFIG_MAPPING:
        pytest.skip("this version of Transformers lacks it")
    config = tiny_models.config(kind)
    config.get_text_config().update(changes)
    hf = tiny_models.build(config)
    hf.generation_config.eos_token_id = None
    for name, weights in hf.named_parameters():
        if name.endswith("norm.weight") and weights.dim() == 1:
            nn.init.normal_(weights, 1.0, 0.3)
        elif weights.dim() == 1:
            nn.init.normal_(weights, std=0.3)
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            nn.init.normal_(weights, std=0.2)
    return hf.to(dtype)


def texts(hf: Any) -> LM:
    lm = LM(text_model(hf), "tiny")
    if OLD and not lm.exact:
        pytest.skip("this version of Transformers has other classes")
    assert lm.backend.name == "native" and lm.exact
    return lm


def tokens(lm: LM, count: int) -> list[int]:
    """Tokens that stand for no image."""
    return [3 if n in lm.hf.placeholders else n for n in tiny_models.prompt(count)]


def error(lm: LM, hf: Any) -> float:
    """The largest difference of logits, as a share of the largest."""
    given = torch.tensor([tokens(lm, 40)])
    hf.set_attn_implementation("eager")
    right = hf(input_ids=given, use_cache=False).logits
    return float(
        (lm(Tree.chain(given), lm.new_cache(1, 64)) - right).abs().max() / right.abs().max()
    )


@torch.inference_mode()
@each_kind
def test_texts_equal_those_of_transformers(kind: str) -> None:
    hf = model(kind)
    lm = texts(hf)
    assert error(lm, hf) < 1e-3
    # planted: other norms
    backend: Any = lm.backend
    backend.step.model.eps = 0.5
    assert error(lm, hf) > 1e-2


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    ["glm4v", *(pytest.param(k, marks=pytest.mark.full) for k in ("qwen3_vl_moe", "hunyuan_vl"))],
)
def test_drafts_change_nothing(kind: str) -> None:
    lm = texts(model(kind, torch.bfloat16))
    given = [tokens(lm, n) for n in (40, 17)]
    drafter = build("vegas", lm, gamma=3, min_budget=12)
    for sampler in (Sampler(), Sampler(temperature=1.0)):
        plain = generate(lm, given, max_new_tokens=16, sampler=sampler, eos=())
        drafted = generate(lm, given, drafter, max_new_tokens=16, sampler=sampler, eos=())
        assert drafted == plain


@pytest.mark.skipif(OLD, reason="older versions of Transformers have it under another name")
@torch.inference_mode()
def test_a_rotation_of_another_base_is_computed() -> None:
    """HunYuan-VL's checkpoints stretch it."""
    ropes = {
        "rope_type": "dynamic",
        "alpha": 50.0,
        "rope_theta": 1e4,
        "mrope_section": [2, 2, 2, 2],
    }
    hf = model("hunyuan_vl", rope_parameters=ropes)
    lm = texts(hf)
    rotation = describe(lm.hf).rotation
    assert rotation is not None and rotation.kind == "ntk_alpha"
    assert error(lm, hf) < 1e-3


def test_another_class_around_the_decoder_is_of_no_family() -> None:
    hf = model("aya_vision")
    assert family_of(hf) is not None
    hf.__class__ = type("Other", (type(hf),), {})
    assert family_of(hf) is None and described(hf) is None


PLANTED = {
    "a hook": lambda hf: hf.model.register_forward_hook(lambda module, args, out: None),
    "another forward": lambda hf: setattr(hf.model, "forward", lambda **given: None),
    "a part of another file": lambda hf: setattr(hf, "model", beside(hf.model)),
    "a number": lambda hf: setattr(hf.model, "multiplier", 2.0),
}


def beside(inner: Any) -> nn.Module:
    other = nn.Module()
    other.language_model = inner.language_model
    return other


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("what", PLANTED)
def test_what_is_not_known_around_the_decoder_is_refused(what: str) -> None:
    hf = model("glm4v")
    describe(hf)
    PLANTED[what](hf)
    with pytest.raises(Unknown):
        describe(hf)
