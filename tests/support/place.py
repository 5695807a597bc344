"""A folder with a tiny model, prompts and what can be wrong with either; the command line called in
it.
"""

from __future__ import annotations

import json
import os
import random

import pytest
import torch
from support.tiny import BASE
from transformers import AutoModelForCausalLM, LlamaConfig

from longdraft.cli import main
from longdraft.training import tokenizer as bpe

WORDS = [
    "draft",
    "tree",
    "cache",
    "token",
    "naïve",
    "verify",
    "日本",
    "accept",
    "leaf",
    "été",
    "🎉",
    "root",
    "\n",
]
BRIEF = ("--max-new-tokens", "24", "--dtype", "float32")
SHORT = (*BRIEF, "--ignore-eos")


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model, prompts, and everything that can be wrong with either."""
    root = tmp_path_factory.mktemp("cli")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**BASE, "vocab_size": 320}))
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.25)
    model.save_pretrained(root / "tiny")
    bpe.save(bpe.train([words(3000, 0)], 320), root / "tiny", BASE["max_position_embeddings"])
    for name, count in (("a", 40), ("b", 75), ("long", 2000)):
        (root / f"{name}.txt").write_text(words(count, seed=count), encoding="utf-8")
    (root / "empty.txt").touch()
    (root / "latin1.txt").write_bytes("été".encode("latin-1"))
    (root / "zero.bin").write_bytes(b"ab\0cd")
    config = (root / "tiny" / "config.json").read_text()
    for name, weights in (
        ("bare", None),
        ("pickled", "pytorch_model.bin"),
        ("broken", "model.safetensors"),
    ):
        (root / name).mkdir()
        (root / name / "config.json").write_text(config)
        if weights:
            (root / name / weights).write_bytes(b"not weights")
    (root / "nothing").mkdir()
    before = torch.get_num_threads()
    old = os.getcwd()
    os.chdir(root)
    yield root
    os.chdir(old)
    torch.set_num_threads(before)


@pytest.fixture
def cli(place, capsys):
    """cli(words...) -> (status, standard output, standard error)."""

    def call(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(argv)
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def record(cli):
    """record(words...) -> the JSON object of a generate run on the tiny model."""

    def call(*argv: str) -> dict:
        status, out, err = cli("generate", "-m", "tiny", *SHORT, "--json", *argv)
        assert (status, err) == (0, "")
        assert len(out.splitlines()) == 1
        return json.loads(out)

    return call
