"""Drafters in the layout of `speculators`: read, written back bit for bit, and refused where they
do not fit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import released as r
from support import tiny

from longdraft import InputError, build, generate
from longdraft.cli import main
from longdraft.drafters.dflash.block import random_dflash
from longdraft.drafters.eagle.block import random_eagle3
from longdraft.drafters.kinds import (
    KINDS,
    export_drafter,
    import_released,
    load_weights,
    read_released,
)

LM = tiny.target("llama")
EMBEDDINGS = LM.hf.get_input_embeddings().weight
TEXT = tiny.prompts(33)
LLAMA = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
)


def config(kind: str, tokens: int, layer: dict, **fields) -> dict:
    """config.json, with the fields that all kinds have."""
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    verifier = {"name_or_path": "llama", "architectures": ["LlamaForCausalLM"]}
    choice = {"algorithm": kind, "proposal_methods": [method], "default_proposal_method": "greedy"}
    return fields | {
        "dtype": "float32",
        "tie_word_embeddings": False,
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "speculators_config": choice | {"verifier": verifier},
        "transformer_layer_config": layer,
    }


def layer(**others) -> dict:
    c = {k: v for k, v in r.layer_config().items() if k in LLAMA}
    c |= {
        "head_dim": r.HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "attention_bias": False,
    }
    return (
        c
        | {
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "tie_word_embeddings": False,
        }
        | others
    )


def eagle3(known: int = 40, **fields) -> tuple[r.Weights, dict]:
    weights, _ = r.eagle3(LM, "layers.0", known)
    own = {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": known,
        "norm_before_residual": True,
    }
    own |= {"norm_before_fc": False, "embed_requires_grad": False, "target_hidden_size": None}
    own |= {"eagle_aux_hidden_state_layer_ids": [2, 1, 0]} | fields
    written = layer(model_type="llama", num_hidden_layers=1, mlp_bias=False)
    return weights | {"embed_tokens.weight": EMBEDDINGS}, config("eagle3", 5, written, **own)


def dflash(kinds: tuple[str, ...] = ("sliding", "sliding"), **fields) -> tuple[r.Weights, dict]:
    weights, _ = r.dflash(LM, kinds)
    own = {
        "architectures": ["DFlashDraftModel"],
        "draft_vocab_size": r.V,
        "block_size": 5,
        "mask_token_id": 95,
    }
    own |= {
        "aux_hidden_state_layer_ids": [1, 2],
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
    }
    types = [f"{kind}_attention" for kind in kinds]
    written = layer(model_type="qwen3", num_hidden_layers=len(kinds), layer_types=types)
    written |= {"use_sliding_window": True, "sliding_window": 9}
    return weights, config("dflash", 4, written, **own, target_hidden_size=None) | fields


RELEASES = {
    "eagle3": eagle3,
    "eagle3, all tokens": lambda: eagle3(r.V),
    "eagle3, plain residual": lambda: eagle3(norm_before_residual=False),
    "dflash": dflash,
    "dflash, not causal": lambda: dflash(sliding_window_non_causal=True),
    "dflash, mixed": lambda: dflash(("sliding", "full")),
}


def files(folder: Path) -> tuple[dict, dict]:
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    assert all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_read_is_written_back_as_it_was(tmp_path, name, dtype):
    weights, c = RELEASES[name]()
    weights = {k: v.to(dtype) if v.is_floating_point() else v for k, v in weights.items()}
    c["dtype"] = str(dtype).removeprefix("torch.")
    theirs = r.write(tmp_path / "theirs", weights, c)
    import_released(theirs, tmp_path / "ours", LM)
    made = export_drafter(tmp_path / "ours", tmp_path / "again", LM)
    assert made["kind"] == c["speculators_model_type"] and made["dtype"] == c["dtype"]
    (before, _), (after, written) = files(theirs), files(tmp_path / "again")
    same(before, after)
    assert written == c


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_ours_is_read_back_as_it_was(tmp_path, name):
    module = random_eagle3(LM, 1, 50) if name == "eagle3" else random_dflash(LM, 1, causal=True)
    if name == "dflash":
        module.mask.data.copy_(EMBEDDINGS[7])
    KINDS[name].save(module, tmp_path / "ours", LM, {})
    export_drafter(tmp_path / "ours", tmp_path / "theirs", LM)
    import_released(tmp_path / "theirs", tmp_path / "again", LM)
    (before, ours), (after, again) = files(tmp_path / "ours"), files(tmp_path / "again")
    same(before, after)
    assert ours == again


def test_it_drafts_what_the_same_block_drafts(tmp_path):
    """DFlash by z-lab's names, which count states from the layer before, is the same block."""
    weights, c = dflash()
    mine = {"mask_token_id": 95, "target_layer_ids": [0, 1]}
    fields = {"dflash_config": mine, "block_size": 5, "architectures": ["DFlashDraftModel"]}
    _, theirs = read_released(r.write(tmp_path / "a", weights, c), LM)
    _, zlab = read_released(
        r.write(tmp_path / "b", weights, c["transformer_layer_config"] | fields), LM
    )
    assert theirs.shape == zlab.shape and theirs.taps == [1, 2]
    same(theirs.state_dict(), zlab.state_dict())
    plain = generate(LM, TEXT, max_new_tokens=12)
    for block, method in (
        (theirs, "dflash"),
        (read_released(r.write(tmp_path / "c", *eagle3()), LM)[1], "eagle3"),
    ):
        assert (
            generate(LM, TEXT, build(method, LM, drafter=block.to(LM.dtype)), max_new_tokens=12)
            == plain
        )


CHANGED = {
    "kind": (eagle3, {"speculators_model_type": "peagle"}, "dflash and eagle3"),
    "algorithm": (eagle3, {"speculators_config": {"algorithm": "dspark"}}, "algorithm dspark"),
    "other weights": (
        dflash,
        {"speculators_model_type": "eagle3", "speculators_config": {}},
        "weights are of dflash",
    ),
    "layer": (eagle3, {"transformer_layer_config": None}, "lacks transformer_layer_config"),
    "vocabulary": (
        eagle3,
        {"transformer_layer_config": layer(vocab_size=99)},
        "which has 99 tokens",
    ),
    "layers read": (
        eagle3,
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        "reads states before layers",
    ),
    "norm": (eagle3, {"norm_before_fc": True}, "norm_before_fc"),
    "rows": (eagle3, {"draft_vocab_size": 41}, "draft_vocab_size of 41"),
    "anchor": (dflash, {"sample_from_anchor": True}, "sample_from_anchor"),
    "projector": (dflash, {"projector_type": "domino"}, "projector_type"),
    "dflash's vocabulary": (dflash, {"draft_vocab_size": 50}, "the whole vocabulary"),
    "mask": (dflash, {"mask_token_id": 500}, "mask token"),
    "last state": (dflash, {"aux_hidden_state_layer_ids": [1, 3]}, "reads states after layers"),
    "ours": (eagle3, {"longdraft": {}}, "give it to --drafter"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_does_not_fit_is_refused(tmp_path, name):
    make, changes, names = CHANGED[name]
    weights, c = make()
    folder = r.write(tmp_path / "theirs", weights, c | changes)
    with pytest.raises(InputError) as raised:
        import_released(folder, tmp_path / "ours", LM)
    assert names in str(raised.value) and len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "ours").exists()


def test_fields_and_tensors_that_are_missing_or_disagree(tmp_path):
    weights, c = eagle3()
    del c["norm_before_residual"]
    with pytest.raises(InputError, match="lacks norm_before_residual"):
        read_released(r.write(tmp_path / "a", weights, c), LM)
    weights, c = eagle3()
    weights["t2d"] = weights["t2d"].roll(1)
    with pytest.raises(InputError, match="d2t and t2d"):
        read_released(r.write(tmp_path / "b", weights, c), LM)
    weights, c = eagle3()
    weights["layers.0.self_attn.q_norm.weight"] = torch.ones(r.HEAD)  # a Qwen3 layer
    with pytest.raises(InputError, match=r"surplus layers\.0\.self_attn\.q_norm"):
        read_released(r.write(tmp_path / "c", weights, c), LM)


def test_what_the_layout_cannot_hold_is_not_written(tmp_path):
    block = random_dflash(LM, 1)
    KINDS["dflash"].save(block, tmp_path / "masked", LM, {})
    with pytest.raises(InputError, match="mask is a separate embedding"):
        export_drafter(tmp_path / "masked", tmp_path / "out", LM)
    KINDS["glide"].save(KINDS["glide"].random(LM, 0), tmp_path / "glide", LM, {})
    with pytest.raises(InputError, match="of kind glide"):
        export_drafter(tmp_path / "glide", tmp_path / "out", LM)
    import_released(r.write(tmp_path / "theirs", *eagle3()), tmp_path / "ours", LM)
    with pytest.raises(InputError, match="give another folder"):
        export_drafter(tmp_path / "ours", tmp_path / "ours", LM)
    with pytest.raises(InputError, match="is not in longdraft's layout"):
        load_weights("eagle3", tmp_path / "theirs", LM)
    assert not (tmp_path / "out").exists()


def test_the_commands(tmp_path, capsys):
    LM.hf.save_pretrained(tmp_path / "target")
    theirs = r.write(tmp_path / "theirs", *eagle3())
    where = {name: str(tmp_path / name) for name in ("target", "ours", "again")}
    assert main(["import", str(theirs), "--out", where["ours"], "-m", where["target"]]) == 0
    assert (
        main(["export-drafter", where["ours"], "--out", where["again"], "-m", where["target"]]) == 0
    )
    assert capsys.readouterr().out.splitlines()[1].startswith("eagle3, ")
    same(files(theirs)[0], files(tmp_path / "again")[0])
    assert (
        main(["export-drafter", where["again"], "--out", where["ours"], "-m", where["target"]]) == 2
    )
    assert len(capsys.readouterr().err.splitlines()) == 1
