"""Models of `longdraft fetch` by name: as targets, and a small one that drafts for a larger. No
test downloads.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from support import gguf_files as files

from longdraft import InputError
from longdraft.methods.drafter_weights import DrafterWeights, how_to_get
from longdraft.models import fetch
from longdraft.models.loading import load_lm

TARGET = "qwen2.5-coder-1.5b"
SMALL = "qwen2.5-coder-0.5b"
OTHER = "smollm2"
PAIRED = ["sd", "sd-sparse", "budgetdraft", "specextend", "triforce", "auto"]


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """Tiny files in place of the catalog's; OTHER has two tokens exchanged."""
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path))
    tiny = {
        TARGET: {"quantized": "Q8_0"},
        SMALL: {"hf": files.stock(num_hidden_layers=1)},
        OTHER: {"change": files.tokens(lambda t: [*t[:3], t[4], t[3], *t[5:]])},
    }
    known = {}
    for name, options in tiny.items():
        (tmp_path / name).mkdir()
        file = files.saved(tmp_path / name, **options)
        known[name] = replace(fetch.SOURCES[name], file=file.name, size=file.stat().st_size)
    monkeypatch.setattr(fetch, "SOURCES", known)
    return known


def errors(err: str) -> list[str]:
    """Without the note of how the target was loaded."""
    return [line for line in err.splitlines() if not line.startswith("longdraft: note:")]


@pytest.mark.full
@pytest.mark.parametrize("method", PAIRED)
def test_a_fetched_model_drafts_for_a_larger_one(fetched, cli, method):
    words = [
        "generate",
        "abc " * 30,
        "-m",
        TARGET,
        "--drafter",
        SMALL,
        "--method",
        method,
        "--max-new-tokens",
        "12",
    ]
    status, out, _ = cli(*words, "--compare", "--json", "--ignore-eos")
    record = json.loads(out)
    assert (
        status == 0
        and record["equal"] is True
        and record["model"] == TARGET
        and record["drafter"] == SMALL
    )
    assert record["new_tokens"] == 12


def test_a_drafter_with_other_tokens_is_one_line(fetched, cli):
    status, out, err = cli("generate", "hi", "-m", TARGET, "--drafter", OTHER, "--method", "sd")
    assert (status, out) == (2, "") and len(errors(err)) == 1
    assert f"in the drafter {OTHER}" in err and "tokenizer" in err


def test_a_drafter_that_was_not_fetched_is_one_line(fetched, cli, tmp_path):
    (tmp_path / SMALL / "model.gguf").unlink()
    status, out, err = cli("generate", "hi", "-m", TARGET, "--drafter", SMALL, "--method", "sd")
    assert (status, out) == (2, "") and len(errors(err)) == 1 and f"longdraft fetch {SMALL}" in err


def test_the_smaller_model_is_named_where_a_drafter_is_missing(fetched, cli):
    status, _, err = cli("generate", "hi", "-m", TARGET, "--method", "sd")
    assert status == 2 and f"give --drafter {SMALL} or --random-drafter" in err
    status, out, _ = cli("methods", "-m", TARGET)
    assert status == 0 and f"kind lm (none with the model: give --drafter {SMALL} or" in out
    assert "kind glide (none with the model: give --drafter FOLDER or" in out
    assert how_to_get("lm", "bundled") == "give --drafter FOLDER or --random-drafter"


def test_auto_takes_a_model_by_name_or_file_for_a_small_one(fetched, tmp_path):
    target = load_lm(TARGET, "float32")
    for name in (SMALL, str(tmp_path / SMALL / "model.gguf")):
        assert set(DrafterWeights(name, model=TARGET).of("any", target)) == {"lm"}


def test_a_folder_of_that_name_is_the_folder(fetched, monkeypatch, tmp_path):
    (tmp_path / "here" / TARGET).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match=r"no config\.json"):
        load_lm(TARGET, "float32")
    monkeypatch.chdir(tmp_path)
    assert load_lm(f"{TARGET}/model.gguf", "float32").dtype == torch.float32
