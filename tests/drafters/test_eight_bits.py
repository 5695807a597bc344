"""Drafters stored in 8 bits: what comes back is within a rounding step, and damage is one clear
line.
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny

from longdraft import InputError
from longdraft.cli import main
from longdraft.drafters.kinds import KINDS
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.methods import build, drafter_weights
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.models import eight_bits
from longdraft.models.loading import BUNDLED, load, load_lm

LM = tiny.target("llama")


@pytest.fixture
def glide(tmp_path):
    KINDS["glide"].save(KINDS["glide"].random(LM, 3), tmp_path / "glide", LM, {})
    return tmp_path / "glide"


def test_an_element_moves_by_half_a_step_at_most():
    rows = torch.randn(3, 40, 64) * torch.logspace(-6, 3, 40)[:, None]
    rows[1, 7] = 0.0
    packed = eight_bits.pack(
        {"w": rows, "norm": torch.ones(64), "tokens": torch.arange(2048).view(2, -1)}
    )
    back = eight_bits.unpack(packed)
    assert packed["w"].dtype == torch.int8 and packed["norm"].dtype == torch.float32
    step = rows.abs().amax(-1, keepdim=True) / 127
    assert ((back["w"] - rows).abs() <= step * 0.501).all() and not back["w"][1, 7].any()
    assert torch.equal(back["tokens"], torch.arange(2048).view(2, -1)) and back.keys() == {
        "w",
        "norm",
        "tokens",
    }
    # a broken variant: the bound must notice it
    wrong = eight_bits.unpack(packed | {"w": packed["w"] + 1})
    assert not ((wrong["w"] - rows).abs() <= step * 0.501).all()


def test_a_packed_drafter_is_loaded_as_any_other(glide, capsys):
    out = glide.with_name("packed")
    assert (
        main(["pack-drafter", str(glide), "--out", str(out)]) == 0
        and "in 8 bits" in capsys.readouterr().out
    )
    given, packed = (KINDS["glide"].load(str(folder), LM).state_dict() for folder in (glide, out))
    stored = load_file(out / eight_bits.WEIGHTS)
    assert any(x.dtype == torch.int8 for x in stored.values()) and given.keys() == packed.keys()
    for name, x in given.items():
        assert torch.allclose(packed[name], x, atol=float(x.abs().max()) / 250)
    assert sum(x.nbytes for x in stored.values()) < 0.3 * sum(
        x.nbytes for x in load_file(glide / "model.safetensors").values()
    )


def test_a_packed_small_model_is_loaded_like_a_target(tmp_path):
    small = random_lm(LM, 0)
    folder = tmp_path / "small"
    out = tmp_path / "packed"
    small.hf.save_pretrained(folder)
    eight_bits.store(folder, out)
    given, packed = (load_lm(str(where), "float32").hf.state_dict() for where in (folder, out))
    assert given.keys() == packed.keys()
    assert all(
        torch.allclose(packed[k], x, atol=float(x.abs().max()) / 250) for k, x in given.items()
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda w: w.pop(next(n for n in w if n.endswith(eight_bits.SCALE))),
            "has no scale for each of its rows",
        ),
        (
            lambda w: w.update({n: x[:1] for n, x in w.items() if n.endswith(eight_bits.SCALE)}),
            "has no scale",
        ),
    ],
)
def test_a_damaged_file_is_one_line(glide, change, line):
    out = glide.with_name("packed")
    eight_bits.store(glide, out)
    weights = load_file(out / eight_bits.WEIGHTS)
    change(weights)
    save_file(weights, out / eight_bits.WEIGHTS, eight_bits.MARK)
    with pytest.raises(InputError, match=line):
        KINDS["glide"].load(str(out), LM)


def test_what_cannot_be_packed(glide, tmp_path, capsys):
    out = glide.with_name("packed")
    eight_bits.store(glide, out)
    (tmp_path / "empty").mkdir()
    for folder, to, line in (
        (out, tmp_path / "x", "8 bits already"),
        (glide, out, "not empty"),
        (tmp_path / "empty", tmp_path / "x", "config.json"),
        (tmp_path / "none", tmp_path / "x", "config.json"),
    ):
        assert main(["pack-drafter", str(folder), "--out", str(to)]) == 2
        shown = capsys.readouterr().err
        assert line in shown and len(shown.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_the_bundled_drafters_are_stored_in_8_bits():
    for kind in ("budget", "eagle3", "glide", "heads", "lm", "medusa"):
        assert eight_bits.is_packed(BUNDLED.parent / kind / eight_bits.WEIGHTS), kind
    # a target's weights decide what it says
    assert not eight_bits.is_packed(BUNDLED / eight_bits.WEIGHTS)


# The package longdraft-drafters -------------------------------------------------------------------


def test_drafters_of_a_fetched_model_come_from_their_package(tmp_path, monkeypatch):
    (tmp_path / "longdraft_drafters" / "smollm2" / "glide").mkdir(parents=True)
    (tmp_path / "longdraft_drafters" / "__init__.py").write_text(
        "raise SystemExit('its code was run')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    weights = DrafterWeights(model="smollm2")
    assert weights.beside("glide") == tmp_path / "longdraft_drafters" / "smollm2" / "glide"
    assert (
        weights.beside("eagle3") is None
        and DrafterWeights(model="bundled").beside("glide") == BUNDLED.parent / "glide"
    )


def test_without_the_package_the_line_names_it(monkeypatch):
    monkeypatch.setattr(drafter_weights, "PACKAGE", "longdraft_drafters_that_nobody_has")
    assert DrafterWeights(model="smollm2").beside("glide") is None
    with (
        monkeypatch.context() as patch,
        pytest.raises(InputError, match="or install longdraft-drafters"),
    ):
        patch.setattr(LM, "name", "smollm2")
        build("longspec", LM)
    with pytest.raises(InputError) as error:
        build("longspec", LM)
    assert "longdraft-drafters" not in str(error.value)


def test_the_bundled_target_takes_its_packed_drafters():
    target, _ = load("bundled", "float32")
    for name in ("glide", "lm"):
        assert DrafterWeights(model="bundled").of(name, target) is not None
