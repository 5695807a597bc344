"""GGUF files of architectures that differ from a Llama by names, norms, scales or windows: a tiny
model's logits are those of Transformers, and each thing that a file says matters.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.gguf_converters import KINDS, difference, saved, stock
from support.gguf_files import ARRAY, BOOL, F32, STRING, U32

from longdraft import InputError, load
from longdraft.models.gguf import architectures
from longdraft.models.gguf import model as gguf_model


@torch.inference_mode(False)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_the_model_it_was_made_from(tmp_path, kind):
    assert difference(tmp_path, kind) < 1e-4


# A key of the metadata, and a value that is not the model's.
OTHER = {
    ("granite", "attention__scale"): (F32, 1.0),
    ("granite", "embedding_scale"): (F32, 1.0),
    ("granite", "residual_scale"): (F32, 1.0),
    ("granite", "logit_scale"): (F32, 1.0),
    ("exaone4", "attention__sliding_window"): (U32, 9),
    ("exaone4", "attention__sliding_window_pattern"): (ARRAY, (BOOL, [False, True, True])),
    ("gemma2", "attention__sliding_window"): (U32, 9),
    ("gemma2", "attn_logit_softcapping"): (F32, 1.0),
    ("gemma2", "final_logit_softcapping"): (F32, 1.0),
    ("glm4", "rope__dimension_count"): (U32, 4),
    ("command-r", "logit_scale"): (F32, 1.0),
    ("cohere2", "attention__sliding_window"): (U32, 9),
    ("cohere2", "attention__layer_norm_epsilon"): (F32, 0.5),
    ("starcoder2", "attention__sliding_window"): (U32, 9),
    ("phi3", "rope__dimension_count"): (U32, 8),
    ("qwen2moe", "expert_used_count"): (U32, 1),
    ("qwen2moe", "expert_weights_norm"): (BOOL, True),
    ("olmoe", "expert_used_count"): (U32, 1),
    ("glm4moe", "expert_weights_norm"): (BOOL, False),
    ("glm4moe", "expert_weights_scale"): (F32, 1.0),
    ("lfm2", "attention__layer_norm_rms_epsilon"): (F32, 0.5),
    ("olmo2", "attention__layer_norm_rms_epsilon"): (F32, 0.5),
    ("seed_oss", "rope__freq_base"): (F32, 100.0),
    ("smollm3", "rope__freq_base"): (F32, 100.0),
}


@torch.inference_mode(False)
@pytest.mark.parametrize(("kind", "key"), OTHER)
def test_each_number_matters(tmp_path, kind, key):
    if kind in KINDS:
        assert difference(tmp_path, kind, **{key: OTHER[kind, key]}) > 1e-3


# What a row of the table could forget.
FORGOTTEN = {
    "the order of rows": ("granite", {"turned": False}),
    "an order that is none": ("olmo2", {"turned": True}),
    "norms plus one": ("gemma2", {"minus_one": False}),
}


@torch.inference_mode(False)
@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_change_that_is_not_undone_is_noticed(tmp_path, what, monkeypatch):
    kind, changes = FORGOTTEN[what]
    row = replace(architectures.ARCHITECTURES[kind], **changes)
    monkeypatch.setattr(gguf_model, "ARCHITECTURES", {kind: row})
    assert difference(tmp_path, kind) > 1e-3


@torch.inference_mode(False)
@pytest.mark.parametrize(
    ("kind", "key", "value", "why"),
    [
        ("granite", "residual_scale", (F32, -1.0), "residual_scale is -1"),
        ("gemma2", "attention__sliding_window", (U32, 0), "no sliding window"),
        (
            "exaone4",
            "attention__sliding_window_pattern",
            (ARRAY, (BOOL, [True])),
            "1 entries for 3",
        ),
        ("granite", "attention__sliding_window", (U32, 8), "sliding window"),
        ("glm4", "rope__dimension_count", (U32, 64), "rotates 64 of 16"),
        ("granite", "rope__scaling__type", (STRING, "longrope"), "rope scaling"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, kind, key, value, why):
    path = saved(tmp_path, kind, stock(kind), **{key: value})
    with pytest.raises(InputError, match=why):
        load(path)


# Files do not tell these models from others that compute the same.
OF_OTHERS = {"deepseek2 without experts": "deepseek_v3"}


@torch.inference_mode(False)
@pytest.mark.parametrize("kind", KINDS)
def test_files_run_in_the_kernels(tmp_path, kind):
    lm, _ = load(saved(tmp_path, kind, stock(kind)), "float32")
    assert lm.backend.name == "native"
    others = OF_OTHERS.get(kind) == lm.config.model_type
    assert others or lm.config.model_type == stock(kind).config.model_type
