"""GGUF files of models with recurrent layers, latents or matrices in parts: what converters changed
is undone, packed weights stay packed, and layers for further tokens are found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import gguf_files as files
from support import mtp_files
from support.gguf_converters import KINDS, difference, saved, stock, tensors_of
from support.gguf_files import BOOL, F32, I32, U32, logits
from torch import Tensor

from longdraft import InputError, Sampler, build, generate, load
from longdraft.backends.packed_experts import PackedExperts
from longdraft.backends.packed_linear import PackedLinear
from longdraft.drafters.mtp.checkpoint import has_layers, read_mtp
from longdraft.drafters.mtp.drafter import Mtp
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.method import ANY
from longdraft.models.gguf import architectures, blocks, changes, joined
from longdraft.models.gguf import config as gguf_config
from longdraft.models.gguf import file as gguf
from longdraft.models.gguf import model as gguf_model
from longdraft.models.loading import load_lm
from longdraft.ops.packed import Packed

PROMPT = files.IDS[0].tolist()
RUN = ("granitehybrid", "nemotron_h", "nemotron_h_moe", "qwen3next", "qwen35", "deepseek2")
RUN = [kind for kind in RUN if kind in KINDS]


@pytest.mark.full
@pytest.mark.whole
@torch.inference_mode(False)
@pytest.mark.parametrize("kind", RUN)
def test_every_method_says_what_plain_decoding_says(tmp_path, kind):
    lm, _ = load(saved(tmp_path, kind, stock(kind)), "float32")
    assert lm.backend.name == "native"
    for sampler in (Sampler(), Sampler(temperature=1.0)):
        want = generate(lm, [PROMPT], max_new_tokens=24, eos=(), sampler=sampler, seed=3)
        for method in ("suffix", "vegas"):
            made = generate(
                lm, [PROMPT], build(method, lm), max_new_tokens=24, eos=(), sampler=sampler, seed=3
            )
            assert made == want


DENSE = ("granitehybrid without experts", "nemotron_h", "qwen35")


@pytest.mark.full
@torch.inference_mode(False)
@pytest.mark.parametrize("kind", [kind for kind in DENSE if kind in KINDS])
def test_files_run_in_the_kernels_in_bfloat16(tmp_path, kind):
    """A tensor that stays in float32 would leave the model to Transformers' modules."""
    lm, _ = load(saved(tmp_path, kind, stock(kind)))
    assert lm.backend.name == "native"
    want = generate(lm, [PROMPT], max_new_tokens=16, eos=())
    assert generate(lm, [PROMPT], build("suffix", lm), max_new_tokens=16, eos=()) == want


# Planted faults -----------------------------------------------------------------------------------

FORGOTTEN = {
    "value heads that are tiled": ("qwen35", {"tiled": False}),
    "value heads that are not": ("qwen3next", {"tiled": True}),
    "norms plus one": ("qwen3next", {"minus_one": False}),
    "the norm that is not": ("qwen35", {"own_norm": " "}),
    "norms without their mean": ("nemotron", {"minus_one": False}),
    "the order of rows": ("granitehybrid without experts", {"turned": False}),
}


@torch.inference_mode(False)
@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_change_that_is_not_undone_is_noticed(tmp_path, what, monkeypatch):
    kind, fault = FORGOTTEN[what]
    row = replace(architectures.ARCHITECTURES[kind.split()[0]], **fault)
    for module in (gguf_model, gguf_config):
        monkeypatch.setattr(module, "ARCHITECTURES", {kind.split()[0]: row})
    assert difference(tmp_path, kind) > 1e-3


def parts_in_order(config: Any, parts: list[Any]) -> Any:
    """The fault: rows of a delta net stay where the file has them."""
    return joined.stacked(parts)


def keys_as_they_lie(config: Any, parts: list[Any]) -> Any:
    """The fault: keys of latents are not transposed."""
    keys, values = parts
    return torch.cat([keys.reshape(keys.mT.shape), values], 1).flatten(0, 1)


JOINS = {
    "qwen3next": ("linear_attn.in_proj_qkvz", parts_in_order),
    "deepseek2": ("self_attn.kv_b_proj", keys_as_they_lie),
    "granitehybrid": (
        "shared_mlp.input_linear",
        lambda config, parts: joined.stacked(parts[::-1]),
    ),
}


@torch.inference_mode(False)
@pytest.mark.parametrize("kind", [kind for kind in JOINS if kind in KINDS])
def test_parts_that_are_joined_in_another_way_are_noticed(tmp_path, kind, monkeypatch):
    module, join = JOINS[kind]
    row = architectures.ARCHITECTURES[kind]
    faulty = {module: replace(row.joined[module], join=join)}
    monkeypatch.setattr(gguf_model, "ARCHITECTURES", {kind: replace(row, joined=faulty)})
    assert difference(tmp_path, kind) > 1e-3


@torch.inference_mode(False)
def test_a_decay_that_is_taken_for_its_logarithm_is_noticed(tmp_path, monkeypatch):
    if "granitehybrid" in KINDS:
        monkeypatch.setattr(changes, "logarithm_of", lambda decay: decay)
        assert difference(tmp_path, "granitehybrid") > 1e-3


def test_the_logarithm_of_a_decay_gives_the_same_decay():
    before = torch.cat([torch.randn(5000) * 3, torch.randn(5000) * 0.01])
    decay = -before.exp()
    assert torch.equal(-changes.logarithm_of(decay).exp(), decay)
    half = torch.empty(5000).uniform_(0.01, 4).bfloat16()
    assert torch.equal(changes.logarithm_of(-half.float().exp()).bfloat16(), half)
    with pytest.raises(InputError, match="must decay"):
        changes.logarithm_of(torch.tensor([-1.0, 0.5]))


# Each number matters ------------------------------------------------------------------------------

OTHER = {
    ("granitemoe with an MLP for all", "residual_scale"): (F32, 1.0),
    ("granitehybrid", "rope__scaling__finetuned"): (BOOL, True),
    ("granitehybrid", "ssm__time_step_rank"): (U32, 4),
    ("granitehybrid", "expert_used_count"): (U32, 1),
    ("nemotron_h", "attention__layer_norm_rms_epsilon"): (F32, 0.5),
    ("qwen3next", "rope__dimension_count"): (U32, 8),
    ("qwen35moe", "expert_used_count"): (U32, 1),
    ("deepseek2", "expert_weights_scale"): (F32, 1.0),
    ("deepseek2", "expert_group_used_count"): (U32, 1),
    ("deepseek2", "rope__freq_base"): (F32, 100.0),
    ("deepseek2 of V2", "expert_used_count"): (U32, 1),
    ("mistral3", "attention__temperature_scale"): (F32, 0.1),
    ("olmo2 with windows", "attention__sliding_window"): (U32, 5),
    ("ernie4_5-moe", "expert_used_count"): (U32, 1),
    ("minimax-m2", "rope__dimension_count"): (U32, 4),
    ("hunyuan-moe", "expert_used_count"): (U32, 1),
    ("llama with experts", "expert_used_count"): (U32, 1),
}


@torch.inference_mode(False)
@pytest.mark.parametrize(("kind", "key"), OTHER)
def test_each_number_matters(tmp_path, kind, key):
    if kind not in KINDS:
        return
    change = {key: OTHER[kind, key]}
    try:
        assert difference(tmp_path, kind, **change) > 1e-3
    except InputError as error:  # sizes that the tensors do not have
        assert key == "ssm__time_step_rank" and "the metadata implies" in str(error)


@torch.inference_mode(False)
@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("granitehybrid", {"ssm__inner_size": (U32, 100)}, "100 numbers of 8 heads"),
        ("qwen35", {"ssm__group_count": (U32, 3)}, "4 value heads for 3 key heads"),
        ("qwen35", {"nextn_predict_layers": (I32, -1)}, "claims -1 layers"),
        ("deepseek2", {"attention__key_length_mla": (U32, 8)}, "claims keys of 8 numbers"),
        ("deepseek2", {"expert_group_count": (U32, 3)}, "of 3 groups of 8 experts"),
        ("deepseek2 of V2", {"expert_weights_norm": (BOOL, True)}, "divides shares"),
        ("hunyuan-moe", {"expert_shared_feed_forward_length": (U32, 5)}, "5 inside the one"),
        ("minimax-m2", {"expert_gating_func": (U32, 1)}, "expert_gating_func 1"),
        ("nemotron_h", {"block_count": (U32, 0)}, "claims 0 layers"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, kind, change, why):
    if kind in KINDS:
        with pytest.raises(InputError, match=why):
            load(saved(tmp_path, kind, stock(kind), **change))


WRONG = (0, 1, 3, 4_000_000_000)
MANY = [k for k in KINDS if k in (*RUN, "granitemoe", "minicpm3", "ernie4_5-moe", "hunyuan-moe")]


@torch.inference_mode(False)
@pytest.mark.full
@pytest.mark.parametrize("kind", MANY)
def test_any_number_of_the_metadata_is_an_error_or_a_model(tmp_path, kind):
    hf = stock(kind)
    known = gguf.read(saved(tmp_path, kind, hf)).metadata
    arch = kind.split()[0]
    numbers = [k for k, v in known.items() if k.startswith(f"{arch}.") and type(v) is int]
    assert len(numbers) > 8
    for key in numbers:
        for value in WRONG:
            change = {key.removeprefix(f"{arch}.").replace(".", "__"): (U32, value)}
            file = gguf.read(saved(tmp_path, kind, hf, **change))
            try:
                gguf_model.build(file, gguf_config.config_of(file), torch.float32)
            except InputError as error:
                assert "\n" not in str(error)


@torch.inference_mode(False)
def test_two_tensors_of_one_module_are_refused(tmp_path):
    if "granitehybrid" not in KINDS:
        return
    hf = stock("granitehybrid")
    extra = {
        "blk.0.ffn_down.weight": tensors_of("granitehybrid", hf)["blk.0.ffn_down_shexp.weight"]
    }
    with pytest.raises(InputError, match="has both"):
        load(saved(tmp_path, "granitehybrid", hf, extra))


# Packed weights -----------------------------------------------------------------------------------

WIDE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "head_dim": 64,
    "num_hidden_layers": 4,
}
WIDE_NET = WIDE | {"linear_value_head_dim": 64, "linear_key_head_dim": 32}
WIDE_MAMBA = WIDE | {"mamba_d_head": 64, "shared_intermediate_size": 256, "num_hidden_layers": 3}
OF_EXPERTS = {"moe_intermediate_size": 256}
WIDE_KINDS = {
    "qwen35": WIDE_NET,
    "qwen3next": WIDE_NET | OF_EXPERTS | {"shared_expert_intermediate_size": 256},
    "granitehybrid without experts": WIDE_MAMBA,
    "nemotron_h_moe": WIDE
    | OF_EXPERTS
    | {"mamba_head_dim": 64, "moe_shared_expert_intermediate_size": 256},
}


def unpacked(path: Any) -> Any:
    """The model of a file whose packed tensors are replaced by their numbers."""
    file = gguf.read(path)
    tensors = {}
    for name, stored in file.tensors.items():
        numbers = stored.read()
        plain = numbers if isinstance(numbers, Tensor) else numbers.dequantized()
        data = plain.float().contiguous().view(-1).view(torch.uint8)
        tensors[name] = replace(stored, type=blocks.TYPES[0], data=data)
    plain_file = replace(file, tensors=tensors)
    return gguf_model.build(plain_file, gguf_config.config_of(plain_file), torch.float32)


@pytest.mark.each_value
@torch.inference_mode(False)
@pytest.mark.parametrize("form", ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("kind", WIDE_KINDS)
def test_packed_matrices_stay_packed(tmp_path, kind, form):
    """Also where rows or inputs are moved, or two tensors are one matrix."""
    if kind not in KINDS:
        return
    path = saved(tmp_path, kind, stock(kind, **WIDE_KINDS[kind]), packed=form)
    file = gguf.read(path)
    made = gguf_model.build(file, gguf_config.config_of(file), torch.float32)
    plain = [
        name
        for name, m in made.named_modules()
        if isinstance(m, torch.nn.Linear) and min(m.weight.shape) >= 64
    ]
    assert not [name for name in plain if not name.endswith(("in_proj_ba", "gate"))]
    kinds = (PackedLinear, PackedExperts) if kind == "nemotron_h_moe" else (PackedLinear,)
    assert all(any(isinstance(m, of) for m in made.modules()) for of in kinds)
    assert (logits(made) - logits(unpacked(path))).abs().max() < 2e-3


@pytest.mark.parametrize("form", sorted(files.QUANTIZED))
def test_inputs_that_are_moved_keep_their_numbers(form):
    entries, size = files.SIZES[form]
    data = torch.frombuffer(bytearray(files.blocks(form, (32, 256))), dtype=torch.uint8)
    kind = blocks.TYPES[files.NUMBER[form]]
    packed = kind.unpack(data.view(32, 256 // entries, size), blocks.outside)
    assert isinstance(packed, Packed)
    order = torch.arange(256).view(4, 64)[[2, 0, 3, 1]].flatten()
    moved = changes.with_inputs(packed, order)
    assert isinstance(moved, Packed)
    assert torch.equal(moved.dequantized(), packed.dequantized()[:, order])
    odd = torch.randperm(256)
    mixed = changes.with_inputs(packed, odd)
    assert isinstance(mixed, Tensor)
    assert torch.equal(mixed, packed.dequantized()[:, odd])


# Layers for further tokens ------------------------------------------------------------------------

INNER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
}
OWN = {
    "mtp.fc": "eh_proj",
    "mtp.pre_fc_norm_embedding": "enorm",
    "mtp.pre_fc_norm_hidden": "hnorm",
    "mtp.norm": "shared_head_norm",
}


def further(folder: Any) -> dict[str, Tensor]:
    """The MTP layer of a checkpoint as converters write it."""
    found = {}
    for name, x in load_file(folder / "model.safetensors").items():
        part = name.removesuffix(".weight")
        if not name.startswith("mtp.") or part.endswith("embed_tokens"):
            continue
        inner = part.removeprefix("mtp.layers.0.")
        stored = f"nextn.{OWN[part]}" if part in OWN else INNER[inner]
        is_norm = x.dim() == 1
        found[f"blk.{mtp_files.BODY}.{stored}.weight"] = x + 1 if is_norm else x
    return found


def with_mtp(tmp_path: Any) -> tuple[Any, Any]:
    """(folder, GGUF file) of a model with an MTP layer."""
    made = mtp_files.write(tmp_path / "model", "qwen3_5")
    body = load_lm(str(made.folder), "float32").hf
    path = saved(
        tmp_path,
        "qwen35",
        body,
        further(made.folder),
        words=False,
        block_count=(U32, mtp_files.BODY + 1),
        nextn_predict_layers=(U32, 1),
        full_attention_interval=(U32, 2),
    )
    return made.folder, path


@torch.inference_mode(False)
def test_a_file_has_its_layers_for_further_tokens(tmp_path):
    folder, path = with_mtp(tmp_path)
    assert has_layers(path)
    theirs, ours = (read_mtp(load_lm(str(x), "float32")) for x in (folder, path))
    want = theirs.state_dict()
    found = ours.state_dict()
    assert found.keys() == want.keys()
    for name, x in want.items():
        assert torch.allclose(found[name], x, atol=1e-6), name


@pytest.mark.full
@torch.inference_mode(False)
def test_drafts_of_a_files_own_layers_change_no_token(tmp_path):
    _, path = with_mtp(tmp_path)
    lm = load_lm(str(path), "float32")
    prompt = [t % 96 for t in PROMPT]
    for sampler in (Sampler(), Sampler(temperature=1.0)):
        want = generate(lm, [prompt], max_new_tokens=32, eos=(), sampler=sampler, seed=5)
        made = generate(
            lm, [prompt], build("mtp", lm), max_new_tokens=32, eos=(), sampler=sampler, seed=5
        )
        assert made == want


@torch.inference_mode(False)
@pytest.mark.parametrize("method", ["auto", "fill"])
@pytest.mark.parametrize("new", [32, pytest.param(300, marks=pytest.mark.full)])
def test_such_layers_are_tried_without_being_named(tmp_path, method, new):
    _, path = with_mtp(tmp_path)
    lm = load_lm(str(path), "float32")
    weights = DrafterWeights(model=str(path)).of(ANY, lm)
    assert list(weights) == ["mtp"]
    drafter = build(method, lm, weights)
    assert any(isinstance(source.drafter, Mtp) for source in drafter.sources)
    prompt = [t % 96 for t in PROMPT]
    want = generate(lm, [prompt], max_new_tokens=new, eos=())
    assert generate(lm, [prompt], drafter, max_new_tokens=new, eos=()) == want


@torch.inference_mode(False)
def test_an_incomplete_layer_is_refused(tmp_path, capsys):
    made = mtp_files.write(tmp_path / "model", "qwen3_5")
    body = load_lm(str(made.folder), "float32").hf
    some = further(made.folder)
    del some[f"blk.{mtp_files.BODY}.ffn_up.weight"]
    path = saved(
        tmp_path,
        "qwen35",
        body,
        some,
        words=False,
        block_count=(U32, mtp_files.BODY + 1),
        nextn_predict_layers=(U32, 1),
        full_attention_interval=(U32, 2),
    )
    lm = load_lm(str(path), "float32")
    with pytest.raises(InputError, match="incomplete"):
        read_mtp(lm)
    assert DrafterWeights(model=str(path)).of(ANY, lm) == {}  # nobody named them
    assert "note: no drafts by the model's own mtp:" in capsys.readouterr().err
