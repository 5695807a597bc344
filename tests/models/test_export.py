"""Exported models are what longdraft computed, as Transformers and longdraft read them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.gguf_files import IDS, logits, ours, saved, stock
from transformers import AutoModelForCausalLM, AutoTokenizer

from longdraft import generate, load
from longdraft.errors import InputError
from longdraft.models.export import export

TEXT = "hello <|end|> the tëxt"


@pytest.mark.full
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("quantized", [None, "Q4_1", "Q8_0"])
def test_a_gguf_file_is_exported_with_its_numbers(tmp_path, arch, quantized):
    options = {} if quantized is None else {"quantized": quantized}
    file = saved(tmp_path, hf=stock(arch), **options)
    # an export has no 8-bit activations
    lm, tokenizer = load(str(file), "float32", activations="full")
    size = export(lm, tokenizer, tmp_path / "out")
    assert size == (tmp_path / "out" / "model.safetensors").stat().st_size
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, attn_implementation="eager"
    )
    assert type(theirs) is type(lm.hf)
    assert torch.equal(logits(theirs), ours(file))
    assert theirs.generation_config.eos_token_id == lm.hf.generation_config.eos_token_id
    words = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert words(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    assert words.chat_template == tokenizer.chat_template
    again, _ = load(str(tmp_path / "out"), "float32")
    options = {"max_new_tokens": 8, "eos": ()}
    assert generate(again, [IDS[0].tolist()], **options) == generate(
        lm, [IDS[0].tolist()], **options
    )


@pytest.mark.parametrize("tied", [False, True])
def test_an_output_matrix_that_is_the_embedding_is_written_once(tmp_path, tied):
    lm, tokenizer = load(str(saved(tmp_path, hf=stock(tied=tied), quantized="Q8_0")), "bfloat16")
    export(lm, tokenizer, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is tied and config["dtype"] == "bfloat16"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    head = lm.hf.get_output_embeddings().weight.bfloat16()
    assert torch.equal(theirs.get_output_embeddings().weight, head)


def test_a_folder_that_is_in_use_is_left_alone(tmp_path, cli, place):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    status, _, err = cli("export", "-m", "tiny", "--out", str(tmp_path / "out"))
    assert status == 2 and "not empty" in err and err.count("\n") == 1
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine.txt"]
    status, out, _ = cli(
        "export", "-m", "tiny", "--out", str(tmp_path / "new"), "--dtype", "float32"
    )
    assert status == 0 and "float32" in out and (tmp_path / "new" / "config.json").is_file()
    a, b = (
        AutoModelForCausalLM.from_pretrained(x, dtype=torch.float32)
        for x in ("tiny", tmp_path / "new")
    )
    assert torch.equal(logits(a, IDS % 90), logits(b, IDS % 90))


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    lm, tokenizer = load(str(saved(tmp_path)), "float32")

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokenizer, "save_pretrained", full)
    with pytest.raises(InputError, match="No space left"):
        export(lm, tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.part").exists()
