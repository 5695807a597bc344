"""A drafter's folder: what was saved is what is loaded, for its own target, and all else is one clear line."""

from __future__ import annotations

import json

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from longdraft import InputError, Sampler, build, generate, saved
from longdraft.model import LM
from longdraft.parts import PARTS

METHOD = {
    "glide": ("longspec", {"widths": "2,3", "window": "16"}),
    "heads": ("tokenswift", {"budget": "24", "sink": "4"}),
    "medusa": ("medusa", {}),
    "eagle2": ("eagle2", {"topk": "4", "levels": "2", "nodes": "12"}),
    "eagle3": ("eagle3", {"topk": "4", "levels": "2", "nodes": "12"}),
}


@pytest.mark.parametrize("kind", saved.KINDS)
def test_what_was_saved_is_what_is_loaded(kind, tmp_path):
    lm, folder = tiny.target("llama"), tmp_path / kind
    part = PARTS[kind](lm, 7)
    saved.save(part, kind, folder, lm, {"steps": 3})
    found = saved.load(kind, str(folder), lm)
    assert saved.KINDS[kind].options(found) == saved.KINDS[kind].options(part)
    for (name, mine), (other, theirs) in zip(found.state_dict().items(), part.state_dict().items(), strict=True):
        assert name == other and torch.equal(mine, theirs)
    assert json.loads((folder / "training.json").read_text()) == {"steps": 3}
    assert not any(p.requires_grad for p in found.parameters())
    method, options = METHOD[kind]
    prompts = tiny.prompts(40)
    texts = [
        generate(lm, prompts, drafter, max_new_tokens=12, sampler=Sampler(1.0))
        for drafter in (None, build(method, lm, options, found))
    ]
    assert texts[0] == texts[1]


def test_the_targets_own_tables_are_not_in_the_folder(tmp_path):
    lm = tiny.target("llama")
    saved.save(PARTS["glide"](lm, 0), "glide", tmp_path / "g", lm, {})
    names = list(load_file(tmp_path / "g" / "model.safetensors"))
    assert names and not [n for n in names if "embed" in n or "head" in n or "target" in n]


def test_a_fingerprint_is_of_the_weights_and_not_of_the_dtype():
    lm = tiny.target("llama")
    exact = LM(tiny.stock("llama", dtype=torch.bfloat16))
    assert saved.fingerprint(exact) == saved.fingerprint(LM(tiny.stock("llama", dtype=torch.bfloat16).float()))
    assert saved.fingerprint(lm) != saved.fingerprint(LM(tiny.stock("llama", 1)))
    moved = tiny.stock("llama")
    with torch.no_grad():
        moved.model.layers[1].mlp.up_proj.weight[0] += 1
    assert saved.fingerprint(lm) != saved.fingerprint(LM(moved))


def spoil(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def reshaped(folder):
    weights = load_file(folder / "model.safetensors")
    weights["weight"] = weights["weight"][:, :3].contiguous()
    save_file(weights, folder / "model.safetensors")


def surplus(folder):
    save_file({**load_file(folder / "model.safetensors"), "odd": torch.zeros(1)}, folder / "model.safetensors")


BAD = {
    "no folder": (lambda f: f.rename(f.with_name("gone")), "no drafter at"),
    "no json": (lambda f: (f / "config.json").write_text("{"), "unreadable config.json"),
    "another config": (
        lambda f: (f / "config.json").write_text('{"model_type": "llama"}'),
        "not in longdraft's layout",
    ),
    "another kind": (lambda f: spoil(f, lambda c: c["longdraft"].update(kind="glide")), "kind glide"),
    "odd options": (lambda f: spoil(f, lambda c: c["longdraft"].update(options={})), "bad options"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
    "pickle": (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x02}"), "is damaged"),
    "misshapen": (reshaped, "weight is"),
    "surplus": (surplus, "a surplus odd"),
    "another target": (lambda f: spoil(f, lambda c: c["longdraft"]["target"].update(digest="0")), "--any-target"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_folder_is_one_line(case, tmp_path):
    lm, folder = tiny.target("llama"), tmp_path / "m"
    saved.save(PARTS["medusa"](lm, 0), "medusa", folder, lm, {})
    change, words = BAD[case]
    change(folder)
    with pytest.raises(InputError, match=words) as error:
        saved.load("medusa", str(folder), lm)
    assert "\n" not in str(error.value)


def test_another_targets_drafter_is_taken_when_asked(tmp_path):
    lm = tiny.target("llama")
    saved.save(PARTS["medusa"](lm, 0), "medusa", tmp_path / "m", lm, {})
    other = LM(tiny.stock("llama", 1), "other")
    with pytest.raises(InputError, match="not this target's"):
        saved.load("medusa", str(tmp_path / "m"), other)
    assert saved.load("medusa", str(tmp_path / "m"), other, anyhow=True) is not None


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    lm = tiny.target("llama")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        saved.save(PARTS["medusa"](lm, 0), "medusa", tmp_path / "file" / "m", lm, {})
