"""The outline of a quantized checkpoint, made of its config alone, takes the bytes of the loaded
model, and configs that loading refuses are one line.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import tiny
from support.quantized_files import FORMATS, SIZES, saved, saved_oss

from longdraft import InputError
from longdraft.backends.packed_linear import PackedLinear
from longdraft.cli import main
from longdraft.models.loading import load_lm
from longdraft.models.memory_traffic import weights_of
from longdraft.models.outline import outline
from longdraft.models.quantized import forms, planned
from longdraft.models.quantized.scheme import MOST_DOUBLINGS, doublings

# whose config does not tell that scales or zeros are simpler than usual
SIMPLER = {"awq, symmetric": 1.2, "mlx, 8 bits": 1.21}
DAILY = ("gptq", "awq", "compressed, sorted", "w8a8, asymmetric", "mlx", "bitsandbytes, 8 bits")
NAMES = [n if n in DAILY else pytest.param(n, marks=pytest.mark.full) for n in FORMATS]


def check_bytes(folder: Any, name: str, model: str = "llama") -> None:
    saved(folder, FORMATS[name], model)
    loaded, planned = load_lm(str(folder), activations="full"), outline(str(folder))
    assert all(p.is_meta for p in planned.hf.parameters())
    if name in SIMPLER:
        assert loaded.nbytes() < planned.nbytes() < SIMPLER[name] * loaded.nbytes()
    else:
        assert weights_of(planned) == weights_of(loaded)
        for kind in ("int8", "int4"):
            assert planned.saving(kind) == loaded.saving(kind)


@pytest.mark.parametrize("name", NAMES)
def test_an_outline_has_the_bytes_of_the_loaded_model(tmp_path, name):
    check_bytes(tmp_path, name)


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_packed_experts_are_counted(tmp_path, name):
    check_bytes(tmp_path, name, "qwen3-moe")


def test_experts_of_gpt_oss_are_packed_on_a_cpu(tmp_path):
    saved_oss(tmp_path)
    loaded = weights_of(load_lm(str(tmp_path), activations="full"))
    packed, unpacked = (weights_of(outline(str(tmp_path), packs_experts=p)) for p in (True, False))
    assert packed.shared == unpacked.shared == loaded.shared
    assert 0.95 * loaded.experts < packed.experts <= loaded.experts < 0.5 * unpacked.experts


def test_other_forms_are_caught(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(planned, "put", lambda hf, scheme: "")
        with pytest.raises(AssertionError):
            check_bytes(tmp_path / "unpacked", "gptq")
    monkeypatch.setitem(forms.SUMS, 8, forms.PackedForm(8, 16, True))
    with pytest.raises(AssertionError):
        check_bytes(tmp_path / "halves", "gptq, 8 bits, asymmetric")


def config_of(folder: Any, name: str, **new: Any) -> str:
    """A folder with nothing but a config."""
    form = FORMATS[name]
    folder.mkdir(exist_ok=True)
    made = tiny.stock("llama", **SIZES, **form.options).config.to_dict()  # type: ignore[arg-type]
    text = made | {"architectures": ["LlamaForCausalLM"], form.key: form.settings | new}
    (folder / "config.json").write_text(json.dumps(text))
    return str(folder)


GROUP = FORMATS["compressed"].settings["config_groups"]["group_0"]


@pytest.mark.parametrize(
    "name, new, left",
    [
        ("gptq", {"lm_head": True}, 0),
        ("gptq", {"dynamic": {r"-:.*\.up_proj": {}}}, 3),
        ("awq", {"modules_to_not_convert": ["up_proj", "layers.1.self_attn"]}, 3 + 4),
        ("compressed", {"ignore": ["re:.*proj", "lm_head"]}, 21),
        ("compressed", {"ignore": ["model.layers.0.mlp.up_proj", "lm_head"]}, 1),
        ("compressed", {"config_groups": {"g": GROUP | {"targets": ["re:.*down_proj"]}}}, 18),
        ("mlx", {"model.layers.2.mlp.up_proj": False}, 1),
        ("bitsandbytes, 8 bits", {"llm_int8_skip_modules": ["mlp"]}, 9),
    ],
)
def test_what_a_config_leaves_out_is_not_packed(tmp_path, name, new, left):
    hf = outline(config_of(tmp_path, name, **new)).hf
    head = isinstance(hf.lm_head, PackedLinear)
    assert head == ("lm_head" in new or name in ("mlx", "bitsandbytes, 8 bits"))
    count = sum(isinstance(m, PackedLinear) for m in hf.modules())
    assert count - head == 21 - left


REFUSED = [
    ("gptq", {"bits": 3}, "with bits 3"),
    ("gptq", {"dynamic": {"-:(": {}}}, "is no regular expression"),
    ("gptq", {"dynamic": {"-:(.+)+x": {}}}, "could take very long"),
    ("awq", {"version": "gemv"}, "version gemv"),
    ("awq", {"modules_to_not_convert": "lm_head"}, "no list of names"),
    ("compressed", {"config_groups": {}, "transform_config": {"a": 1}}, "transformed"),
    ("bitsandbytes, 8 bits", {"load_in_8bit": False}, "not one of load_in_8bit"),
    ("gptq", {"quant_method": "hqq"}, "quantized (hqq)"),
]


@pytest.mark.parametrize("name, new, words", REFUSED)
def test_what_loading_refuses_is_one_line(tmp_path, name, new, words):
    with pytest.raises(InputError) as found:
        outline(config_of(tmp_path, name, **new))
    assert words in str(found.value)
    assert "\n" not in str(found.value)


USUAL = (  # as AutoRound, GPTQModel and llm-compressor write them
    r".*lm_head.*",
    r"model\.layers\.(?:0|1|2|31)\.mlp\..*",
    r".*\.layers\.(\d+)\.self_attn\.[qkv]_proj$",
    r"visual.*|.*mtp.*",
)
SLOW = ("(a+)+b", "(a|a)*b", r"(a\+)*b", "a?" * 25 + "b", ".*" * 5 + "b", "(a|a)" * 25 + "b")


def test_expressions_that_may_take_long_are_told_from_usual_ones():
    assert all(doublings(pattern) <= MOST_DOUBLINGS for pattern in USUAL)
    assert all(doublings(pattern) > MOST_DOUBLINGS for pattern in SLOW)
    with pytest.raises(AssertionError):  # planted: repeats alone are counted
        assert all(6 * pattern.count("*") > MOST_DOUBLINGS for pattern in SLOW)


def test_plan_reads_such_a_config(tmp_path, capsys):
    words = ["--device", "H200", "--context", "4096", "--methods", "vegas"]
    times = []
    for name in ("gptq", "gptq, sorted"):
        status = main(["plan", "-m", config_of(tmp_path / name, name), *words, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert status == 0
        assert any("stay packed (GPTQ)" in note for note in found["notes"])
        times.append(found["predictions"]["4096"][0]["plain"])
    assert times[0] < times[1]
