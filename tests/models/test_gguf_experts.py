"""GGUF files of mixtures of experts: their matrices stay packed, and the model is the file's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from support import gguf_files as files
from support.gguf_files import BOOL, F32, U32, logits, ours, saved, stock

from longdraft import build, generate
from longdraft.backends.packed_experts import PackedExperts
from longdraft.backends.packed_linear import PackedLinear
from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.models.gguf import config as gguf_config
from longdraft.models.gguf import experts
from longdraft.models.gguf import file as gguf
from longdraft.models.gguf import model as gguf_model
from longdraft.models.loading import load_lm
from longdraft.ops import native
from longdraft.ops.packed import Packed

KIND = "qwen3_moe"
KINDS = (KIND, "gpt_oss")
IDS = files.IDS


def check_plain(tmp_path, model: str) -> None:
    hf = stock(model)
    assert torch.equal(ours(saved(tmp_path, hf=hf)), logits(hf))


@pytest.mark.parametrize("model", KINDS)
def test_a_file_of_plain_weights_is_the_model_it_was_made_from(tmp_path, model):
    check_plain(tmp_path, model)


def no_sinks(name: str, kind: str) -> str | None:
    """The fault: sinks are not known."""
    found = module_of(name, kind)
    return None if found and found.endswith("sinks") else found


module_of = gguf_model.module_of


@pytest.mark.parametrize("model", KINDS)
def test_gates_that_are_taken_for_up_are_noticed(tmp_path, model, monkeypatch):
    monkeypatch.setattr(experts, "MATRICES", ("up", "gate", "down"))
    with pytest.raises(AssertionError):
        check_plain(tmp_path, model)


def test_each_part_of_gpt_oss_matters(tmp_path, monkeypatch):
    """Planted faults: without its sinks the file is refused, and with another window, base or
    factor of its rotations, logits differ.
    """
    with monkeypatch.context() as patch:
        patch.setattr(gguf_model, "module_of", no_sinks)
        with pytest.raises(InputError, match="attn_sinks"):
            check_plain(tmp_path, "gpt_oss")
    hf = stock("gpt_oss")
    for key, kind, value in (
        ("attention.sliding_window", U32, 9),
        ("rope.freq_base", F32, 1e4),
        ("rope.scaling.factor", F32, 8.0),
    ):
        change = partial(changed, f"gpt-oss.{key}", kind, value)
        assert not torch.allclose(ours(saved(tmp_path, hf=hf, change=change)), logits(hf))


def changed(key: str, kind: int, value, metadata, tensors) -> None:
    metadata[key] = (kind, value)


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "MXFP4"])
@torch.inference_mode()
def test_experts_stay_packed(tmp_path, model, kind):
    lm = load_lm(str(saved(tmp_path, hf=stock(model), quantized=kind)), "float32")
    packed = [m for m in lm.hf.modules() if isinstance(m, PackedExperts)]
    assert len(packed) == lm.config.num_hidden_layers
    assert all(isinstance(x, PackedLinear) for m in packed for x in (m.gate, m.up, m.down))
    assert not any(p.is_meta for p in lm.hf.parameters())
    if native.library() is None:
        return
    assert lm.backend.name == "native" and lm.exact
    wide = lm(Tree.chain(IDS), lm.new_cache(1, 256))
    alone = lm(Tree.root(IDS[:, 0]), lm.new_cache(1, 256))
    assert torch.equal(wide[:, :1], alone)
    lm.backend = lm.eager
    want = lm(Tree.chain(IDS), lm.new_cache(1, 256))
    assert (wide - want).abs().median() < 0.01 * want.abs().median()


def numbers_of(stored: gguf.Stored) -> torch.Tensor:
    packed = stored.read()
    assert isinstance(packed, Packed)
    return packed.dequantized().view(stored.shape)


@torch.inference_mode()
def test_experts_of_which_one_matrix_is_not_packed_are_unpacked(tmp_path):
    """They are the model whose other matrices are dequantized."""

    def change(metadata, tensors):
        for name, (kind, shape, _) in list(tensors.items()):
            if name.endswith("ffn_down_exps.weight"):
                x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
                tensors[name] = ("F16", shape, files.plain("F16", x))
                assert kind == "Q8_0"

    path = saved(tmp_path, hf=stock(KIND), quantized="Q8_0", change=change)
    file = gguf.read(path)
    hf = gguf_model.build(file, gguf_config.config_of(file), torch.float32)
    module = hf.model.layers[1].mlp.experts
    assert not isinstance(module, PackedExperts)
    gate, up = (file.tensors[f"blk.1.ffn_{part}_exps.weight"] for part in ("gate", "up"))
    want = [numbers_of(x) for x in (gate, up)]
    assert torch.equal(module.gate_up_proj, torch.cat(want, 1))
    assert torch.isfinite(logits(hf)).all()


@pytest.mark.full
@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("method", ["vegas", "fill"])
def test_a_packed_model_decodes_losslessly(tmp_path, model, method):
    lm = load_lm(str(saved(tmp_path, hf=stock(model), quantized="MXFP4")), "bfloat16")
    prompt = (IDS[0].tolist() * 3)[:90]
    made = generate(lm, [prompt], build(method, lm), max_new_tokens=24, eos=())
    assert made == generate(lm, [prompt], max_new_tokens=24, eos=())


@pytest.mark.parametrize(
    "key, kind, value, names",
    [
        ("expert_shared_count", U32, 1, "expert_shared_count 1"),
        ("expert_weights_norm", BOOL, False, "expert_weights_norm False"),
        ("expert_weights_scale", F32, 2.5, "expert_weights_scale 2.5"),
        ("expert_gating_func", U32, 2, "expert_gating_func 2"),
        ("expert_used_count", U32, 9, "9 of 4 experts"),
        ("expert_count", U32, 8, "implies 8x64x64"),
        ("expert_feed_forward_length", U32, 32, "implies 4x32x64"),
    ],
)
def test_what_is_not_read_is_one_line(tmp_path, key, kind, value, names):
    change = partial(changed, f"qwen3moe.{key}", kind, value)
    path = saved(tmp_path, hf=stock(KIND), change=change)
    with pytest.raises(InputError, match=names) as found:
        load_lm(str(path), "float32")
    assert "\n" not in str(found.value)


def test_a_matrix_of_two_dimensions_is_no_matrix_of_experts(tmp_path):
    path = saved(tmp_path, hf=stock(KIND), quantized="Q8_0")
    file = gguf.read(path)
    name = "blk.0.ffn_up_exps.weight"
    flat = replace(file.tensors[name], shape=(4 * 64, 64))
    wrong = replace(file, tensors=file.tensors | {name: flat})
    with pytest.raises(InputError, match="256x64"):
        gguf_config.config_of(wrong)
