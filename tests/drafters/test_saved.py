"""Drafters on disk: what was saved comes back, for the same target; anything else is one clear
line.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny

from longdraft import InputError
from longdraft.audit import audit_log
from longdraft.bench import records
from longdraft.drafters import checkpoint as saved
from longdraft.drafters.glide.block import Glide
from longdraft.drafters.heads.drafter import MedusaHeads
from longdraft.drafters.kinds import KINDS, load_weights
from longdraft.drafters.released import Released
from longdraft.drafters.small_model import kind as small_model
from longdraft.methods import drafter_weights
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.models.identity import fingerprint
from longdraft.models.lm import LM as Model
from longdraft.training import checkpoint, data, plot

LM = tiny.target("llama")
each_kind = pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("lm", "budget")])


def other(name: str = "llama", dtype: torch.dtype = torch.float32, seed: int = 1) -> Model:
    return Model(tiny.stock(name, seed, dtype), "somebody/other")


def equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    mine = a.state_dict()
    theirs = b.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A saved GLIDE block."""
    KINDS["glide"].save(KINDS["glide"].random(LM, 3), tmp_path / "glide", LM, {"steps": 7})
    return tmp_path / "glide"


def edit(folder: Path, **fields) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["longdraft"] |= fields
    (folder / "config.json").write_text(json.dumps(config))


@each_kind
def test_what_was_saved_comes_back(tmp_path, kind):
    part = KINDS[kind].random(LM, 3)
    KINDS[kind].save(part, tmp_path / kind, LM, {"steps": 7})
    back = KINDS[kind].load(str(tmp_path / kind), LM)
    assert equal(part, back) and type(back) is type(part) and not back.training
    assert KINDS[kind].options_of(back) == KINDS[kind].options_of(part)
    assert sorted(p.name for p in tmp_path.iterdir()) == [kind]
    assert json.loads((tmp_path / kind / "training.json").read_text()) == {"steps": 7}


@each_kind
def test_the_targets_tables_are_not_in_it(tmp_path, kind):
    KINDS[kind].save(KINDS[kind].random(LM, 3), tmp_path / kind, LM, {})
    weights = load_file(tmp_path / kind / "model.safetensors")
    tables = (LM.hf.get_input_embeddings().weight, LM.hf.get_output_embeddings().weight)
    assert not any(
        t.shape == table.shape and torch.equal(t, table)
        for t in weights.values()
        for table in tables
    )


def test_options_come_back(tmp_path):
    block = Glide(LM, window=9, with_norm=True)
    KINDS["glide"].save(block, tmp_path / "g", LM, {})
    back = KINDS["glide"].load(str(tmp_path / "g"), LM)
    assert (back.window, back.with_norm) == (9, True)
    some = Glide(LM, vocab=30)
    some.vocabulary.tokens.mul_(3)
    KINDS["glide"].save(some, tmp_path / "s", LM, {})
    assert KINDS["glide"].load(str(tmp_path / "s"), LM).vocabulary.tokens.tolist() == list(
        range(0, 90, 3)
    )
    heads = MedusaHeads(64, 2, torch.randn(2, 96, 64))
    KINDS["medusa"].save(heads, tmp_path / "m", LM, {})
    assert equal(heads, KINDS["medusa"].load(str(tmp_path / "m"), LM))


@pytest.mark.parametrize("wrong", [[5, 3, 7], [3, 3, 7], [3, 5, 96], [-1, 3, 5]])
def test_draft_tokens_that_are_none_are_refused(tmp_path, wrong):
    block = Glide(LM, vocab=3)
    block.vocabulary.tokens.copy_(torch.tensor(wrong))
    KINDS["glide"].save(block, tmp_path / "s", LM, {})
    with pytest.raises(InputError, match="draft tokens"):
        KINDS["glide"].load(str(tmp_path / "s"), LM)


def test_the_layout_is_that_of_speculators(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == config["speculators_model_type"] == "longdraft-glide"
    assert config["speculators_version"] and config["dtype"] == "float32"
    verifier = config["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": "llama", "architectures": ["LlamaForCausalLM"]}


def test_weights_keep_their_dtype_and_follow_the_targets(tmp_path):
    part = KINDS["eagle3"].random(LM, 3)
    target = Model(tiny.stock("llama", dtype=torch.bfloat16))
    KINDS["eagle3"].save(part, tmp_path / "e", LM, {})
    back = KINDS["eagle3"].load(str(tmp_path / "e"), target)
    assert next(back.parameters()).dtype == torch.bfloat16 and back.d2t.dtype == torch.long
    assert load_file(tmp_path / "e" / "model.safetensors")["q.weight"].dtype == torch.float32


def test_the_fingerprint_knows_a_target_in_any_dtype():
    mine = fingerprint(LM)
    assert mine == fingerprint(Model(tiny.stock("llama", dtype=torch.bfloat16)))
    assert mine["digest"] != fingerprint(other())["digest"]


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.layers.2.self_attn.k_proj.weight", "model.norm.weight"]
)
def test_the_fingerprint_sees_one_tensor_change(name):
    target = Model(tiny.stock("llama"))
    with torch.no_grad():
        dict(target.hf.named_parameters())[name].mul_(1.05)
    assert fingerprint(target)["digest"] != fingerprint(LM)["digest"]


def test_another_targets_drafter_is_refused_unless_asked_for(folder):
    with pytest.raises(
        InputError, match=r"trained for llama, whose weights are not this target's.*--any-target"
    ):
        KINDS["glide"].load(str(folder), other())
    assert equal(
        KINDS["glide"].load(str(folder), other(), any_target=True), KINDS["glide"].random(LM, 3)
    )
    with pytest.raises(InputError, match="whose hidden_size is 64; here it is 48"):
        KINDS["glide"].load(str(folder), other("llama-6of3"), any_target=True)


DEEP = '{"longdraft": ' * 100_000 + "1" + "}" * 100_000
ODD_FILES = {
    "deep": (DEEP, "nested too deeply"),
    "a deep list": ("[" * 100_000, "nested too deeply"),
    "a list": ("[1, 2]", "does not contain a JSON object"),
    "a number": ("7", "does not contain a JSON object"),
    "not a number": ('{"longdraft": NaN}', "NaN is not a number in JSON"),
    "infinite": ('{"longdraft": -Infinity}', "-Infinity is not a number in JSON"),
    "cut short": ('{"longdraft": {"kind"', "unreadable"),
    "bytes": ("\ud800", "unreadable"),
    "a string for ours": ('{"longdraft": "glide"}', "not in longdraft's layout"),
    "large": (" " * (1 << 24) + "{}", "16 MB"),
}


@pytest.mark.parametrize("case", ODD_FILES)
def test_odd_configs_are_one_line(case, folder):
    text, words = ODD_FILES[case]
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    readers = [lambda: KINDS["glide"].load(str(folder), LM), lambda: Released.of(folder)]
    readers = readers[:1] if "layout" in words else readers
    for read in readers:
        with pytest.raises(InputError, match=words) as error:
            read()
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


ODD_FIELDS = {
    "kind": ([["glide"], {}, 7, None], "holds a drafter of kind"),
    "options": ([{"window": [3]}, {"window": "x"}, {"depth": 1}, {"window": 1e400}], "bad options"),
    "target": ([{"hidden_size": [64]}], "whose"),
}


@pytest.mark.parametrize("field", ODD_FIELDS)
def test_odd_fields_are_one_line(field, folder):
    for value in ODD_FIELDS[field][0]:
        edit(folder, **{field: value})
        with pytest.raises(InputError) as error:
            KINDS["glide"].load(str(folder), LM)
        assert "\n" not in str(error.value)


def test_an_odd_name_of_the_target_is_no_fault(folder):
    """It is only said; who it was trained for is a matter of sizes and digest."""
    file = folder / "config.json"
    for odd in ([], "x", {"verifier": []}, {"verifier": {"name_or_path": None}}):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"speculators_config": odd}))
        KINDS["glide"].load(str(folder), LM)
        with pytest.raises(InputError, match="trained for another target"):
            KINDS["glide"].load(str(folder), other())


def test_auto_takes_an_odd_folder_for_what_it_would_be(folder):
    """What `auto` is given is then read as a small model, or refused, by whoever reads that
    kind.
    """
    for odd in ("x", ["glide"], {"kind": ["glide"]}, {"kind": "nope"}, {}):
        (folder / "config.json").write_text(json.dumps({"longdraft": odd}))
        assert DrafterWeights(str(folder))._offered(tiny.target("llama")) == ["budget"]
    (folder / "config.json").write_text(DEEP)
    with pytest.raises(InputError, match="nested too deeply"):
        DrafterWeights(str(folder))._offered(tiny.target("llama"))


def test_other_files_that_are_nested_too_deeply(tmp_path, monkeypatch):
    """Wherever else a file that somebody may have been given is read."""
    file = tmp_path / "x.json"
    deep = "[" * 100_000
    file.write_text(deep)
    with pytest.raises(InputError, match="line 1: not JSON"):
        records.load([file])
    for damaged in (b"no gzip", gzip.compress(b'{"task": 1}')[:-9]):
        (tmp_path / "x.jsonl.gz").write_bytes(damaged)
        with pytest.raises(InputError, match="cannot read"):
            records.load([tmp_path / "x.jsonl.gz"])
    with pytest.raises(InputError, match="is no audit"):
        audit_log._read(file)
    file.write_text(json.dumps({"task": "audit", "runs": [3]}))
    with pytest.raises(InputError, match="is no audit"):
        audit_log._read(file)
    (tmp_path / "log.jsonl").write_text(deep)
    with pytest.raises(InputError, match="holds no run"):
        plot.read(tmp_path)
    (tmp_path / "log.jsonl").write_text('["event"]')
    with pytest.raises(InputError, match="not the log"):
        plot.read(tmp_path)
    for text in (deep, "[1]"):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(InputError, match="unreadable checkpoint"):
            checkpoint.load(tmp_path, None, [])
    file.write_text('{"text": ' * 100_000)
    with pytest.raises(InputError, match="give JSON lines"):
        data.json_lines(file, "x")
    monkeypatch.setattr(small_model, "cached_file", lambda *a, **k: str(file))
    assert small_model._vocabulary(LM) == {}
    file.write_text('{"model": {"vocab": {"a": [1]}}}')
    assert small_model._vocabulary(LM) == {}


def test_bad_folders_are_explained(tmp_path, folder):
    def refused(words: str, kind: str = "glide", where: Path = folder) -> None:
        with pytest.raises(InputError, match=words) as caught:
            KINDS[kind].load(str(where), LM)
        assert "\n" not in str(caught.value)

    refused("holds a drafter of kind glide; this method needs one of kind eagle3", "eagle3")
    refused("no drafter at", where=tmp_path / "none")
    refused("has no config.json", where=tmp_path)
    weights = load_file(folder / "model.safetensors")
    for words, changed in {
        "lacks q_proj.bias": {k: v for k, v in weights.items() if k != "q_proj.bias"},
        "has a surplus odd": weights | {"odd": torch.ones(1)},
        r"q_proj.bias is \[3\], and \[64\]": weights | {"q_proj.bias": torch.ones(3)},
        "q_proj.bias has dtype torch.int64": weights
        | {"q_proj.bias": torch.ones(64, dtype=torch.long)},
    }.items():
        save_file(changed, folder / "model.safetensors")
        refused(words)
    (folder / "model.safetensors").write_bytes(b"1234")
    refused("is damaged")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused("only pickled weights .pytorch_model.bin., which can run code")
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    for words, fields in {
        "bad options": {"options": {"windows": 3}},
        "holds a drafter of kind magic": {"kind": "magic"},
        "is not in longdraft's layout": {"target": None},
    }.items():
        save_file(weights, folder / "model.safetensors")
        edit(folder, **fields)
        refused(words)
    (folder / "config.json").write_text("{")
    refused("is unreadable")


def test_saving_is_all_or_nothing(tmp_path, folder, monkeypatch):
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(TypeError):  # a fact that is no JSON: found after the weights are written
        KINDS["glide"].save(KINDS["glide"].random(LM, 4), folder, LM, {"x": object()})
    assert (folder / "model.safetensors").read_bytes() == before and not list(tmp_path.glob(".*"))
    KINDS["glide"].save(KINDS["glide"].random(LM, 4), folder, LM, {})
    assert equal(KINDS["glide"].load(str(folder), LM), KINDS["glide"].random(LM, 4))
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="has other files in it"):
        KINDS["glide"].save(KINDS["glide"].random(LM, 4), folder, LM, {})
    monkeypatch.setattr(
        saved, "save_file", lambda *args: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(InputError, match=r"cannot write .* .disk full."):
        KINDS["glide"].save(KINDS["glide"].random(LM, 4), tmp_path / "new", LM, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["glide"]


# Where parts come from ----------------------------------------------------------------------------


def test_a_drafter_beside_the_target_is_found(tmp_path, monkeypatch):
    KINDS["heads"].save(KINDS["heads"].random(LM, 3), tmp_path / "heads", LM, {})
    found = DrafterWeights(model=str(tmp_path))
    assert (
        equal(found.of("heads", LM), KINDS["heads"].random(LM, 3))
        and found.origin("heads") == "heads"
    )
    assert found.of("glide", LM) is None
    monkeypatch.setattr(drafter_weights, "BUNDLED", tmp_path / "target")
    assert equal(DrafterWeights(model="bundled").of("heads", LM), KINDS["heads"].random(LM, 3))
    assert DrafterWeights(random=True, model=str(tmp_path)).origin("heads") == "random, seed 0"


def test_any_target_is_passed_on(folder):
    with pytest.raises(InputError, match="--any-target"):
        DrafterWeights(str(folder)).of("glide", other())
    assert equal(
        DrafterWeights(str(folder), any_target=True).of("glide", other()),
        KINDS["glide"].random(LM, 3),
    )
    with pytest.raises(InputError, match="add --drafter FOLDER"):
        DrafterWeights(any_target=True)


def test_weights_are_taken_from_a_folder_or_as_they_are(folder):
    block = KINDS["glide"].random(LM, 3)
    assert load_weights("glide", block, LM) is block and equal(
        load_weights("glide", folder, LM), block
    )
    assert equal(load_weights("glide", str(folder), other(), any_target=True), block)
    with pytest.raises(
        InputError, match="the drafter is a Glide; this method needs a ChainedHeads, a folder"
    ):
        load_weights("heads", block, LM)
    with pytest.raises(InputError, match="Hub"):  # not reachable in tests
        load_weights("glide", "nobody/nothing", LM)
