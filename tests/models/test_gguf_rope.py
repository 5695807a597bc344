"""Rotary positions of GGUF files: today's keys, older ones, and those that are refused as they
change the result.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support import gguf_converters as converters
from support import gguf_files as files
from support.gguf_files import BOOL, F32, IDS, STRING, U32, logits, ours, saved, stock

from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.models.gguf import rope
from longdraft.models.gguf.file import GGUF
from longdraft.models.loading import load_lm
from longdraft.ops import native as native_kernels

LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "rope_theta": 10000.0,
}
KEYS = {
    "scaling.type": (STRING, "yarn"),
    "scaling.factor": (F32, 4.0),
    "scaling.original_context_length": (U32, 128),
}


class _Frozen(dict):
    def __hash__(self):
        return hash(tuple(sorted(self.items(), key=str)))


def scaled(**rope):
    """A model with these rope_parameters."""
    return stock(rope_parameters=_Frozen(rope))


def with_keys(keys: dict):
    return lambda metadata, tensors: metadata.update(
        {f"llama.rope.{key}": value for key, value in keys.items()}
    )


@pytest.mark.parametrize(
    ("keys", "like"),
    [
        ({"scaling.type": (STRING, "linear"), "scaling.factor": (F32, 4.0)}, LINEAR),
        ({"scaling.factor": (F32, 4.0)}, LINEAR),
        ({"scale_linear": (F32, 4.0)}, LINEAR),
        ({"scaling.factor": (F32, 4.0), "scale_linear": (F32, 2.0)}, LINEAR),
        ({"scaling.type": (STRING, "none"), "scaling.factor": (F32, 4.0)}, None),
        ({"scaling.factor": (F32, 0.0)}, None),
        ({"scale_linear": (F32, 0.0)}, None),
        ({"scaling.type": (STRING, "linear"), "scaling.factor": (F32, 0.0)}, None),
        ({"scaling.finetuned": (BOOL, True), "scaling.attn_factor": (F32, 1.0)}, None),
        (KEYS, YARN),
        (KEYS | {"scaling.yarn_beta_fast": (F32, 16.0), "scaling.yarn_beta_slow": (F32, 2.0)},
         YARN | {"beta_fast": 16.0, "beta_slow": 2.0}),
        (KEYS | {"scaling.attn_factor": (F32, 0.5)},
        YARN | {"attention_factor": 0.5693147180559945}),
        (KEYS | {"scaling.yarn_ext_factor": (F32, 1.0), "scaling.yarn_log_multiplier": (F32, 0.0)},
        YARN),
        (KEYS | {"scaling.yarn_ext_factor": (F32, -1.0), "scaling.yarn_attn_factor": (F32,
        1.1386294)}, YARN),
    ],
)  # fmt: skip
def test_rotations_are_those_of_the_metadata(tmp_path, keys, like):
    hf = stock() if like is None else scaled(**like)
    assert torch.equal(ours(saved(tmp_path, hf=hf, change=with_keys(keys))), logits(hf))
    if like is not None:  # planted: scaling that is ignored
        assert not torch.allclose(logits(stock()), logits(hf), atol=1e-2)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"scaling.attn_factor": (F32, 0.5)}, "rope.scaling.attn_factor = 0.5"),
        (KEYS | {"scaling.attn_factor": (F32, 0.0)}, "rope.scaling.attn_factor = 0.0"),
        (KEYS | {"scaling.yarn_ext_factor": (F32, 0.0)}, "yarn_ext_factor = 0.0"),
        (
            {"scaling.factor": (F32, 4.0), "scaling.yarn_ext_factor": (F32, 1.0)},
            "yarn_ext_factor = 1.0",
        ),
        (KEYS | {"scaling.yarn_attn_factor": (F32, 1.0)}, "yarn_attn_factor = 1.0"),
        (KEYS | {"scaling.yarn_log_multiplier": (F32, 1.0)}, "yarn_log_multiplier = 1.0"),
        (KEYS | {"scaling.yarn_beta_slow": (F32, 0.0)}, "yarn_beta_slow = 0.0"),
        (KEYS | {"scaling.alpha": (F32, 2.0)}, "rope.scaling.alpha = 2.0"),
        ({"new_kind": (STRING, "x")}, "rope.new_kind = x"),
        ({"scaling.type": (STRING, "longrope")}, "'longrope'"),
        ({"scaling.factor": (F32, -2.0)}, "by -2.0"),
        ({"scale_linear": (F32, float("nan"))}, "nan"),
    ],
)
def test_a_key_that_would_change_the_result_is_refused_by_name(tmp_path, keys, why):
    with pytest.raises(InputError, match=re.escape(why)) as error:
        ours(saved(tmp_path, change=with_keys(keys)))
    assert "\n" not in str(error.value)


def test_the_native_backend_has_the_magnitude_too(tmp_path):
    path = saved(tmp_path, change=with_keys(KEYS | {"scaling.attn_factor": (F32, 0.5)}))
    lm = load_lm(str(path), "float32")
    assert native_kernels.library() is None or lm.backend.name == "native"
    native = lm(Tree.chain(IDS), lm.new_cache(1, 64))
    lm.backend = lm.eager
    torch.testing.assert_close(
        native, lm(Tree.chain(IDS), lm.new_cache(1, 64)), rtol=1e-3, atol=1e-3
    )
    assert torch.allclose(
        native, logits(scaled(**YARN, attention_factor=0.5693147180559945)), atol=1e-3
    )


def test_rotary_factors_of_llama_3(tmp_path):
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    hf = stock(rope_parameters=_Frozen(rope))
    base = 500000.0 ** -(torch.arange(8) / 8)

    def factors(metadata, tensors, by=1.0):
        found = base / hf.model.rotary_emb.inv_freq * torch.tensor([1.0] * 6 + [by] * 2)
        tensors["rope_freqs.weight"] = ("F32", (8,), files.plain("F32", found))

    path = saved(tmp_path, hf=hf, change=factors)
    assert torch.allclose(ours(path), logits(hf), atol=1e-5)
    with pytest.raises(InputError, match="Llama 3"):
        ours(saved(tmp_path, hf=hf, change=lambda m, t: factors(m, t, 0.5)))


def test_factors_of_frequencies_and_a_scaling_are_refused(tmp_path):
    def change(metadata, tensors):
        tensors[rope.FACTORS] = ("F32", (8,), files.plain("F32", torch.ones(8)))
        with_keys(KEYS)(metadata, tensors)

    with pytest.raises(InputError, match="scales its rotary positions twice"):
        ours(saved(tmp_path, change=change))


@pytest.mark.parametrize(
    ("keys", "tensors", "why"),
    [
        ({"scaling.factor": 4.0}, (), "scaling.factor = 4.0"),
        ({"scale_linear": 4.0}, (), "scaling.factor = 4.0"),
        ({"scaling.attn_factor": 1.19}, (), "attn_factor = 1.19"),
        ({"scaling.type": "yarn", "scaling.factor": 2.0}, (), "scaling.factor = 2.0"),
        ({}, ("rope_factors_long.weight",), "rope_factors_long.weight"),
    ],
)
def test_files_that_transformers_reads_are_refused_with_a_scaling_that_it_ignores(
    keys, tensors, why
):
    metadata = {f"phi3.rope.{key}": value for key, value in keys.items()}
    file = GGUF(Path("x.gguf"), metadata, dict.fromkeys(tensors))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=re.escape(why)):
        rope.check_unscaled(file, "phi3")
    rope.check_unscaled(GGUF(Path("x.gguf"), {"phi3.rope.freq_base": 1e4}, {}), "phi3")


# Of other architectures ---------------------------------------------------------------------------

LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    "attention_factor": 1.2,
}


@pytest.mark.parametrize("original", [20, 200])  # the text is longer, or shorter
@pytest.mark.parametrize("fault", ["", "long", "short"])
@torch.inference_mode(False)
def test_factors_for_long_texts_and_for_short_ones(tmp_path, original, fault):
    given = LONG_ROPE | {"original_max_position_embeddings": original}
    hf = converters.stock("phi3", rope_parameters=given, original_max_position_embeddings=original)
    factors = {
        f"rope_factors_{name}.weight": torch.tensor(LONG_ROPE[f"{name}_factor"])
        * (2 if name == fault else 1)
        for name in ("long", "short")
    }
    path = converters.saved(
        tmp_path,
        "phi3",
        hf,
        factors,
        rope__scaling__original_context_length=(U32, original),
        rope__scaling__attn_factor=(F32, 1.2),
    )
    used = "short" if original == 200 else "long"
    same = torch.allclose(ours(path), logits(hf), atol=1e-4)
    assert same == (fault != used)


@pytest.mark.parametrize(("kind", "by"), [("mistral3", 1.0), ("deepseek2", 0.1)])
@pytest.mark.parametrize("fault", [1.0, 2.0])
@torch.inference_mode(False)
def test_yarns_multiplier(tmp_path, kind, by, fault):
    """Files of DeepSeek have a tenth of what its config has."""
    given = YARN | {"mscale": 0.7, "mscale_all_dim": 0.7, "original_max_position_embeddings": 128}
    if kind == "mistral3":
        given["llama_4_scaling_beta"] = 0.5
    hf = converters.stock(kind, rope_parameters=given)
    path = converters.saved(
        tmp_path,
        kind,
        hf,
        context_length=(U32, hf.config.max_position_embeddings),
        rope__scaling__type=(STRING, "yarn"),
        rope__scaling__factor=(F32, 4.0),
        rope__scaling__original_context_length=(U32, 128),
        rope__scaling__yarn_log_multiplier=(F32, 0.7 * by * fault),
    )
    same = torch.allclose(ours(path), logits(hf), atol=1e-4)
    # where both of its numbers are equal, the rotations of a Mistral do not depend on them
    assert same == (fault == 1.0 or kind == "mistral3")
