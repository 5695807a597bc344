"""Experts of quantized checkpoints stay packed: those of gpt-oss in MXFP4, and those that are
stored one by one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny
from support.listed import make
from support.quantized_files import FORMATS, saved, saved_oss
from support.tiny_families import OLD
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from longdraft import InputError, Sampler, generate
from longdraft.backends.packed_experts import PackedExperts
from longdraft.core.tree import Tree
from longdraft.models.loading import load_lm
from longdraft.models.quantized import experts, fp4, reader
from longdraft.models.untrusted import neutral
from longdraft.ops import native
from longdraft.ops.packed import IQ4, pack
from longdraft.ops.scales import PlainScales

IDS = torch.tensor(tiny.prompts(40))
MIXTURE = "qwen3-moe"
NAMES = ("gptq", "gptq, asymmetric", "awq", "compressed", "gptq, 8 bits")


def of(lm: Any) -> dict[str, PackedExperts]:
    found = {n: m for n, m in lm.hf.named_modules() if isinstance(m, PackedExperts)}
    assert list(found) == [n for n, _ in lm.hf.named_modules() if n.endswith(".experts")]
    return found


def check_oss(folder: Any) -> None:
    want = saved_oss(folder)
    for name, module in of(load_lm(str(folder), "float32")).items():
        found = module.matrices(torch.float32)
        for leaf in ("gate_up_proj", "down_proj"):
            assert torch.equal(found[leaf].double(), want[f"{name}.{leaf}"])


@torch.inference_mode()
def test_weights_of_gpt_oss_are_those_of_the_file(tmp_path):
    check_oss(tmp_path)


@torch.inference_mode()
def test_other_levels_of_gpt_oss_are_caught(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fp4, "FP4", IQ4)
        with pytest.raises(AssertionError):
            check_oss(tmp_path / "codes")


@torch.inference_mode()
def test_gpt_oss_is_the_model_that_transformers_unpacks(tmp_path):
    """The same weights and logits; biases too."""
    saved_oss(tmp_path)
    hf: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=Mxfp4Config(dequantize=True),
    )
    lm = load_lm(str(tmp_path), "float32", activations="full")
    for name, module in of(lm).items():
        own = hf.get_submodule(name)
        for leaf, matrix in module.matrices(torch.float32).items():
            assert torch.equal(matrix, getattr(own, leaf)), leaf
    want = hf(input_ids=IDS, use_cache=False).logits
    found = lm(Tree.chain(IDS), lm.new_cache(1, 64))
    if not OLD:  # older versions compute other logits from the same weights once they unpacked them
        torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)
    if native.library() is not None:
        assert lm.backend.name == "native"


# of Nemotron-H, experts have no gates
MODELS = [(name, MIXTURE) for name in NAMES]
MODELS += [("gptq", "nemotron-h")] if "nemotron-h" in tiny.CONFIGS else []


@pytest.mark.parametrize(("name", "model"), MODELS)
@torch.inference_mode()
def test_experts_that_are_stored_one_by_one_stay_packed(tmp_path, name, model):
    hf = saved(tmp_path, FORMATS[name], model)
    lm = load_lm(str(tmp_path), "float32", activations="full")
    for layer, module in of(lm).items():
        for leaf, matrix in module.matrices(torch.float32).items():
            assert torch.equal(matrix, getattr(hf.get_submodule(layer), leaf)), leaf
    want = hf(input_ids=IDS, use_cache=False).logits
    found = lm(Tree.chain(IDS), lm.new_cache(1, 64))
    if not OLD:  # older versions compute other logits from the same weights once they unpacked them
        torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)
    if native.library() is not None:
        assert lm.backend.name == "native"


@pytest.mark.full
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=1.0)], ids=["greedy", "T=1"])
@pytest.mark.parametrize("model", ["gpt-oss", MIXTURE])
def test_drafts_are_lossless(tmp_path, model, sampler):
    if model == MIXTURE:
        saved(tmp_path, FORMATS["awq"], model)
    else:
        saved_oss(tmp_path)
    lm = load_lm(str(tmp_path), "bfloat16")
    options: dict[str, Any] = {"max_new_tokens": 16, "sampler": sampler, "seed": 3}
    prompts = tiny.prompts(70, 31)
    want = generate(lm, prompts, **options)
    for method in ("lookup", "fill"):
        assert generate(lm, prompts, make(method, lm), **options) == want


def test_experts_in_other_forms_are_put_into_one():
    """Four and five bits, halves and floats: no number changes."""
    g = torch.Generator().manual_seed(1)
    scale = torch.rand(16, 3, generator=g).half()
    four = pack(4, torch.randint(0, 16, (16, 96), generator=g).byte(), PlainScales(scale, None))
    floats = torch.rand(16, 3, generator=g)
    five = pack(5, torch.randint(0, 32, (16, 96), generator=g).byte(), PlainScales(floats, None))
    whole = experts.stacked([four, five])
    want = torch.cat([four.dequantized(), five.dequantized()])
    assert torch.equal(whole.dequantized(), want)


def test_experts_are_unpacked_where_packed_ones_would_be_slow(tmp_path):
    """Transformers unpacks gpt-oss for a GPU, and for several processes."""
    saved_oss(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert reader.taken(config, packs_experts=False) is None
    assert neutral(config).quantization_config["dequantize"] is True
    assert reader.taken(config, packs_experts=True) is not None
    assert not hasattr(config, "quantization_config")


DAMAGED = {
    "nan": (lambda t, n: t[f"{n}_scales"].fill_(255), "not finite"),
    "no scales": (lambda t, n: t.pop(f"{n}_scales"), "is missing"),
    "short": (lambda t, n: t.update({f"{n}_blocks": t[f"{n}_blocks"][:, 1:]}), "implies"),
    "int8": (lambda t, n: t.update({f"{n}_blocks": t[f"{n}_blocks"].char()}), "contains int8"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_experts_are_one_line(tmp_path, case):
    change, words = DAMAGED[case]
    saved_oss(tmp_path, lambda tensors: change(tensors, "model.layers.1.mlp.experts.down_proj"))
    with pytest.raises(InputError, match=words) as found:
        load_lm(str(tmp_path), "float32")
    assert "\n" not in str(found.value)


def test_a_missing_expert_is_one_line(tmp_path):
    def change(tensors, config):
        for leaf in ("qweight", "qzeros", "scales", "g_idx"):
            del tensors[f"model.layers.1.mlp.experts.2.up_proj.{leaf}"]

    saved(tmp_path, FORMATS["gptq"], MIXTURE, change)
    with pytest.raises(InputError, match=r"mlp\.experts has 11 quantized matrices of 4"):
        load_lm(str(tmp_path), "float32")
