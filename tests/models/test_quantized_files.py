"""Checkpoints in the formats of GPTQ, AWQ, compressed-tensors, MLX and bitsandbytes stay packed
where a form holds them: each weight is that of its format's formula, drafts are lossless, and
damaged files are one line.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from support import quantized_files as files
from support import tiny
from support.listed import make
from support.quantized_files import FORMATS, saved

from longdraft import InputError, Sampler, generate
from longdraft.backends.packed_linear import EightBitInputs, PackedLinear
from longdraft.core.tree import Tree
from longdraft.models.identity import fingerprint
from longdraft.models.loading import load_lm
from longdraft.models.quantized import awq, bnb, forms, fp4, gptq
from longdraft.ops import native
from longdraft.ops.packed import IQ4, Packed

IDS = torch.tensor(tiny.prompts(40))
# a form of each number of bits, and one that is unpacked
SOME = ("gptq", "awq", "gptq, 8 bits, asymmetric", "w8a8", "mlx, groups of 32, tied", "fp8")
SOME += ("bitsandbytes, 8 bits", "mxfp4", "nvfp4", "mlx, mxfp4")
DAILY = {("gptq", "greedy", "full"), ("awq", "T=1", "int8"), ("w8a8", "T=1", "full")}
DAILY |= {("mxfp4", "greedy", "int8"), ("nvfp4", "T=1", "full")}
SAMPLERS = {"greedy": Sampler(), "T=1": Sampler(temperature=1.0)}


def layers(lm: Any, form: files.Format) -> dict[str, Any]:
    """The layers that a format quantizes, with their names."""
    linear = (torch.nn.Linear, PackedLinear)
    names = {n: m for n, m in lm.hf.named_modules() if isinstance(m, linear)}
    return names if form.tables else {n: m for n, m in names.items() if n != "lm_head"}


def check_weights(folder: Any, name: str, model: str = "llama") -> Any:
    """The model of a checkpoint, and one with the same numbers that is not packed."""
    form = FORMATS[name]
    hf = saved(folder, form, model)
    lm = load_lm(str(folder), "float32", activations="full")
    found = layers(lm, form)
    assert len(found) >= 21
    for layer, module in found.items():
        assert torch.equal(module.weight, hf.get_submodule(layer).weight), layer
        if form.bits:
            assert module.packed.bits == form.bits
        else:
            assert type(module) is torch.nn.Linear
    assert torch.equal(lm.hf.get_input_embeddings().weight, hf.get_input_embeddings().weight)
    return lm, hf


def check_logits(lm: Any, hf: Any) -> None:
    want = hf(input_ids=IDS, use_cache=False).logits
    found = lm(Tree.chain(IDS), lm.new_cache(1, 64))
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)
    if native.library() is not None:
        assert lm.backend.name == "native"


@pytest.mark.parametrize("name", FORMATS)
@torch.inference_mode()
def test_every_weight_is_that_of_the_formula_in_the_smallest_form(tmp_path, name):
    """So logits are those of the unpacked model."""
    lm, hf = check_weights(tmp_path, name)
    check_logits(lm, hf)
    note = lm.note or ""
    assert ("are unpacked" in note) == (FORMATS[name].bits == 0)
    assert ("activations of 8 bits" in note) == name.startswith(("w8a8", "bitsandbytes, 8"))
    assert ("activations of 4 bits" in note) == (name == "nvfp4")


@pytest.mark.parametrize("name", ["gptq", "awq", "mlx", "fp8", "bitsandbytes, nf4"])
@torch.inference_mode()
def test_biases_are_kept(tmp_path, name):
    check_logits(*check_weights(tmp_path, name, "qwen2"))


CASES = [
    pytest.param(
        name,
        sampler,
        activations,
        id=f"{name}-{sampler}-{activations}",
        marks=[] if (name, sampler, activations) in DAILY else pytest.mark.full,
    )
    for name in SOME
    for sampler in SAMPLERS
    for activations in ("full", "int8")
    if activations == "full" or FORMATS[name].bits
]


@pytest.mark.parametrize("name, sampler, activations", CASES)
def test_drafts_are_lossless(tmp_path, name, sampler, activations):
    saved(tmp_path, FORMATS[name])
    lm = load_lm(str(tmp_path), "bfloat16", activations=activations)
    rounds = [isinstance(m, EightBitInputs) for m in layers(lm, FORMATS[name]).values()]
    assert any(rounds) == (activations == "int8")
    options: dict[str, Any] = {"max_new_tokens": 16, "sampler": SAMPLERS[sampler], "seed": 3}
    prompts = tiny.prompts(70, 31)
    want = generate(lm, prompts, **options)
    for method in ("lookup", "vegas", "fill"):
        drafter = make(method, lm) if method != "vegas" else make(method, lm, min_budget=16)
        assert generate(lm, prompts, drafter, **options) == want


@torch.inference_mode()
def test_the_model_is_known_by_its_numbers(tmp_path):
    """Packed or not, it is the same target; other codes are another."""
    hf = saved(tmp_path / "packed", FORMATS["gptq"])
    hf.save_pretrained(tmp_path / "plain")

    def other(tensors, config):
        tensors["model.layers.0.mlp.up_proj.qweight"] ^= 1

    saved(tmp_path / "other", FORMATS["gptq"], change=other)
    packed, plain, changed = (
        fingerprint(load_lm(str(tmp_path / n))) for n in ("packed", "plain", "other")
    )
    assert packed == plain
    assert packed["digest"] != changed["digest"]


@pytest.mark.parametrize("name", ["gptq", "awq"])
@torch.inference_mode()
def test_weights_of_fewer_bits_leave_packed_layers_alone(tmp_path, name):
    saved(tmp_path, FORMATS[name])
    lm = load_lm(str(tmp_path), "float32", weights="int4")
    alone = load_lm(str(tmp_path), "float32")
    for layer, module in layers(alone, FORMATS[name]).items():
        assert torch.equal(module.weight, lm.hf.get_submodule(layer).weight)
    assert isinstance(lm.hf.lm_head, PackedLinear) and lm.hf.lm_head.bits == 8
    assert not isinstance(alone.hf.lm_head, PackedLinear)


@pytest.mark.full
@torch.inference_mode()
def test_planted_faults_are_caught(tmp_path, monkeypatch):
    faults = {
        "zeros off by one": (gptq, "FORMATS", ("gptq_v2", "gptq"), "gptq"),
        "the order of outputs": (awq, "PLACES", range(8), "awq"),
        "the next step of 8 bits": (bnb, "STEPS", 128, "bitsandbytes, 8 bits"),
        "the levels of other codes": (fp4, "FP4", IQ4, "nvfp4"),
        "the next group": (forms, "spread", _next_group(forms.spread), "compressed"),
    }
    for place, key, value, name in faults.values():
        with monkeypatch.context() as patch:
            patch.setattr(place, key, value)
            if key == "FORMATS":
                patch.setattr(gptq, "scheme", _later_version(gptq.scheme))
                patch.setitem(_schemes(), "gptq", gptq.scheme)
            with pytest.raises(AssertionError):
                check_weights(tmp_path / name, name)
        check_weights(tmp_path / name, name)


def _schemes() -> Any:
    from longdraft.models.quantized import reader

    return reader.SCHEMES


def _later_version(scheme: Any) -> Any:
    return lambda settings: scheme(settings | {"checkpoint_format": "gptq_v2"})


def _next_group(spread: Any) -> Any:
    return lambda numbers, *sizes: spread(numbers.roll(1, 1), *sizes)


LAYER = "model.layers.1.mlp.down_proj"


def without(leaf: str):
    return lambda tensors, config: tensors.pop(f"{LAYER}.{leaf}")


def made(leaf: str, change):
    def apply(tensors, config):
        tensors[f"{LAYER}.{leaf}"] = change(tensors[f"{LAYER}.{leaf}"])

    return apply


def settings(**new: Any):
    def apply(tensors, config):
        key = "quantization" if "quantization" in config else "quantization_config"
        config[key] = config[key] | new

    return apply


def described(**new: Any):
    def apply(tensors, config):
        config["quantization_config"]["config_groups"] = {"g": {"weights": new}}

    return apply


def infinite(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.view(-1)[3] = torch.inf
    return x


DAMAGED: dict[str, tuple[str, Any, str]] = {
    "3 bits": ("gptq", settings(bits=3), "with bits 3"),
    "true bits": ("gptq", settings(bits=True), "with bits True"),
    "odd bits": ("gptq", settings(bits=[4]), r"with bits \[4\]"),
    "a group of 0": ("gptq", settings(group_size=0), "group_size 0"),
    "another group": ("gptq", settings(group_size=64), "the config implies"),
    "a group of text": ("gptq", settings(group_size="32"), "group_size 32"),
    "marlin": ("gptq", settings(checkpoint_format="marlin"), "checkpoint_format marlin"),
    "no zeros": ("gptq", without("qzeros"), "qzeros is missing"),
    "no scales": ("gptq", without("scales"), "scales is missing"),
    "short codes": ("gptq", made("qweight", lambda x: x[:-1]), "the config implies"),
    "codes of 64 bits": ("gptq", made("qweight", lambda x: x.long()), "contains int64"),
    "scales of integers": ("gptq", made("scales", lambda x: x.int()), "contains int32"),
    "infinite scales": ("gptq", made("scales", infinite), "not finite"),
    "a group too far": ("gptq", made("g_idx", lambda x: x + 1), "names groups beyond"),
    "a group below": ("gptq", made("g_idx", lambda x: x - 1), "names groups beyond"),
    "an odd version": ("awq", settings(version="gemv"), "version gemv"),
    "8 bits of AWQ": ("awq", settings(bits=8), "bits 8"),
    "no layers": ("awq", settings(quant_method="compressed-tensors"), "without config_groups"),
    "no codes": ("compressed", without("weight_packed"), "weight is missing"),
    "another shape": (
        "compressed",
        made("weight_shape", lambda x: x + 1),
        "weight_shape is not 64x128",
    ),
    "odd words": ("compressed", made("weight_packed", lambda x: x[:, 1:]), "has 15 words"),
    "odd scales": ("compressed", made("weight_scale", lambda x: x[:, 1:]), "weight_scale is 64x3"),
    "2 bits": ("compressed", described(num_bits=2), "num_bits 2"),
    "no description": ("compressed", settings(config_groups={"g": {}}), "without a description"),
    "rotated": ("compressed", settings(transform_config={"a": 1}), "sparse or transformed"),
    "nan in FP8": ("fp8", made("weight", lambda x: (x.float() * torch.nan).to(x.dtype)), "finite"),
    "6 bits of MLX": ("mlx", settings(bits=6), "bits 6"),
    "another mode": ("mlx", settings(mode="mxfp8"), "mode mxfp8"),
    "MXFP4 of other groups": ("mlx, mxfp4", settings(group_size=64), "group_size 64"),
    "MXFP4 of 8 bits": ("mlx, mxfp4", settings(bits=8), "bits 8"),
    "a power that is no number": ("mlx, mxfp4", made("scales", lambda x: x | 255), "not finite"),
    "a scale that is no number": ("mlx, nvfp4", made("scales", lambda x: x | 127), "not finite"),
    "few powers": ("mxfp4", made("weight_scale", lambda x: x[:, 1:]), "the config implies"),
    "FP4 with zeros": (
        "mxfp4",
        lambda tensors, config: tensors.update(
            {f"{LAYER}.weight_zero_point": torch.ones(64, 4, dtype=torch.uint8)}
        ),
        "weight_zero_point beside numbers of 4 bits",
    ),
    "no number of the matrix": ("nvfp4", without("weight_global_scale"), "the config implies"),
    "a matrix times 0": ("nvfp4", made("weight_global_scale", lambda x: 0 * x), "not finite"),
    "scales in bfloat16": ("nvfp4", made("weight_scale", lambda x: x.bfloat16()), "bfloat16"),
    "a layer of its own": ("mlx", settings(**{LAYER: {"bits": 3}}), "bits 3"),
    "no biases": ("mlx", without("biases"), "biases is missing"),
    "a bias that it lacks": (
        "gptq",
        lambda tensors, config: tensors.update({f"{LAYER}.bias": torch.ones(64)}),
        "has no tensor",
    ),
    "another layer": (
        "gptq",
        lambda tensors, config: tensors.update({"model.x.qweight": torch.ones(4, 4)}),
        "is no linear layer",
    ),
    "no norm": (
        "gptq",
        lambda tensors, config: tensors.pop("model.norm.weight"),
        "model.norm.weight are missing",
    ),
}


EIGHT, FOUR = "bitsandbytes, 8 bits", "bitsandbytes, nf4, nested"
STATE = "weight.quant_state.bitsandbytes__nf4"


def stated(**new: Any):
    """The state of a layer with other values."""

    def change(x: torch.Tensor) -> torch.Tensor:
        state = json.loads(bytes(x.tolist())) | new
        return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)

    return made(STATE, change)


DAMAGED |= {
    "neither": (EIGHT, settings(load_in_8bit=False), "not one of load_in_8bit"),
    "both": (EIGHT, settings(load_in_4bit=True), "not one of load_in_8bit"),
    "odd names": (EIGHT, settings(llm_int8_skip_modules="lm_head"), "no list of names"),
    "an order of GPUs": (EIGHT, made("weight_format", lambda x: x + 2), "order of a GPU"),
    "no maxima": (EIGHT, without("SCB"), "contains codes without"),
    "infinite maxima": (EIGHT, made("SCB", infinite), "not finite"),
    "few maxima": (EIGHT, made("SCB", lambda x: x[1:]), "the config implies"),
    "no state": (FOUR, without(STATE), "has no quant_state"),
    "a damaged state": (FOUR, made(STATE, lambda x: x[3:]), "is damaged"),
    "a state of a list": (FOUR, made(STATE, lambda x: torch.tensor([91, 93]).byte()), "is damaged"),
    "another shape of 4 bits": (FOUR, stated(shape=[128, 64]), "is not 64x128"),
    "no block": (FOUR, stated(blocksize=0), "blocksize of 0"),
    "other blocks": (FOUR, stated(blocksize=128), "the config implies"),
    "no nested block": (FOUR, stated(nested_blocksize="256"), "nested_blocksize of 256"),
    "no offset": (FOUR, stated(nested_offset=None), "nested_offset of None"),
    "few codes": (FOUR, made("weight", lambda x: x[1:]), "bytes for 8192 codes"),
    "a short table": (FOUR, made("weight.quant_map", lambda x: x[1:]), "the config implies"),
    "no nested table": (FOUR, without("weight.nested_quant_map"), "is missing"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_not_read_is_one_line(tmp_path, case):
    name, change, words = DAMAGED[case]
    saved(tmp_path, FORMATS[name], change=change)
    with pytest.raises(InputError, match=words) as found:
        load_lm(str(tmp_path), "float32")
    assert "\n" not in str(found.value)


def test_bitsandbytes_computes_nearly_the_same_weights(tmp_path):
    """It multiplies by the maximum, then by 1/127, and rounds to float32 each time."""
    form = FORMATS[EIGHT]
    stored, _ = form.write(64, 128, torch.Generator().manual_seed(0))

    def change(tensors, config):
        tensors |= {f"{LAYER}.{leaf}": x for leaf, x in stored.items()}
        del config["quantization_config"]["quant_method"]  # as older versions wrote it

    saved(tmp_path, form, change=change)
    found = load_lm(str(tmp_path), "float32").hf.get_submodule(LAYER).weight
    theirs = stored["weight"] * stored["SCB"][:, None] * 7.874015718698502e-3
    torch.testing.assert_close(found, theirs, rtol=2.0**-22, atol=0)


def test_biases_of_zeros_are_no_biases(tmp_path):
    """AutoGPTQ writes them for layers that have none."""

    def change(tensors, config):
        tensors[f"{LAYER}.bias"] = torch.zeros(64)

    saved(tmp_path, FORMATS["gptq"], change=change)
    assert load_lm(str(tmp_path), "float32").hf.get_submodule(LAYER).bias is None


def test_a_truncated_file_is_one_line(tmp_path):
    saved(tmp_path, FORMATS["awq"])
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="is damaged") as found:
        load_lm(str(tmp_path), "float32")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "name, most",
    [
        ("gptq", 1.0),
        ("awq, symmetric", 1.0),
        ("w8a8", 1.07),
        (EIGHT, 1.13),
        ("mlx", 1.12),
        ("mxfp4", 1.06),
        ("nvfp4", 2.7),
        ("mlx, nvfp4", 2.3),
        ("awq", 1.2),
    ],
)
def test_memory_is_nearly_that_of_the_file(tmp_path, name, most):
    """Bytes of a weight in memory over those in the file."""
    form = FORMATS[name]
    stored, _ = form.write(64, 128, torch.Generator().manual_seed(0))
    in_file = sum(x.nbytes for n, x in stored.items() if n != "g_idx")
    saved(tmp_path, form)
    packed: Packed = load_lm(str(tmp_path), "float32").hf.get_submodule(LAYER).packed
    assert packed.shape == (64, 128)
    assert packed.nbytes / in_file <= most
