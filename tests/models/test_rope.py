"""--rope: a model whose rotations are scaled is the one that Transformers builds from such a
config.json.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from support import tiny
from support.another_target import check_bench
from support.place import SHORT
from transformers import AutoModelForCausalLM

from longdraft import InputError
from longdraft.core.tree import Tree
from longdraft.drafters.kinds import KINDS
from longdraft.models.identity import fingerprint
from longdraft.models.loading import load_lm
from longdraft.ops import native

SCALED = {"yarn:2": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}}
SCALED |= {"linear:3": {"rope_type": "linear", "factor": 3.0}}
NATIVE = {"llama", "qwen3", "qwen2", "mistral-window"}
PROMPT = 700  # tokens: more than the tiny models' 512 positions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(name) -> a tiny model on disk."""
    root = tmp_path_factory.mktemp("rope")

    def saved(name: str):
        if not (root / name).exists():
            tiny.stock(name).save_pretrained(root / name)
        return root / name

    return saved


def scaled(folder, rope: str, out):
    """Transformers' own model of the same weights, whose config.json has this scaling."""
    shutil.copytree(folder, out)
    config = json.loads((out / "config.json").read_text())
    config["rope_parameters"] |= SCALED[rope]
    config["max_position_embeddings"] = int(512 * SCALED[rope]["factor"])
    (out / "config.json").write_text(json.dumps(config))
    return AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager").eval()


def last_logits(lm, prompt: list[int], tail: int) -> torch.Tensor:
    """Logits [tail,V] of the prompt's last tokens: the rest is prefilled."""
    cache = lm.new_cache(1, len(prompt))
    lm.prefill(prompt[:-tail], cache)
    return lm(Tree.chain(torch.tensor([prompt[-tail:]])), cache)[0].float()


def test_the_own_positions_are_those_that_are_extended(folder):
    """Phi3's config has another number of original positions, which Transformers would prefer."""
    lm = load_lm(str(folder("phi3")), "float32", "cpu", "yarn:2")
    assert (
        lm.config.rope_parameters["original_max_position_embeddings"] == 512
        and lm.positions == 1024
    )


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.parametrize("rope", SCALED)
@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen2", "mistral-window", "glm4", "deepseek"])
def test_logits_are_those_of_transformers(folder, tmp_path, name, rope):
    """On the native backend, where it computes the model, and on Transformers' layers; beyond the
    own positions.
    """
    lm, [prompt] = load_lm(str(folder(name)), "float32", "cpu", rope), tiny.prompts(PROMPT)
    want = scaled(folder(name), rope, tmp_path / "scaled")(torch.tensor([prompt])).logits[0, -6:]
    computed = name in {*NATIVE, *tiny.DESCRIBED} and native.library() is not None
    assert (lm.backend.name == "native") is computed
    assert lm.positions == 512 * SCALED[rope]["factor"] and lm.rope == rope
    torch.testing.assert_close(last_logits(lm, prompt, 6), want, rtol=1e-3, atol=1e-3)
    plain = last_logits(load_lm(str(folder(name)), "float32", "cpu"), prompt, 6)
    assert (plain - want).abs().max() > 0.1  # without the scaling they are others
    lm.backend = lm.eager
    torch.testing.assert_close(last_logits(lm, prompt, 6), want, rtol=1e-3, atol=1e-3)


BAD = [
    "yarn",
    "yarn:",
    ":2",
    "ntk:2",
    "yarn:1",
    "yarn:0.5",
    "yarn:-2",
    "yarn:x",
    "yarn:nan",
    "yarn:inf",
    "linear:1e9",
]


@pytest.mark.parametrize("text", [*BAD, "yarn:2:2", "YARN:2", ""])
def test_what_is_no_scaling_is_refused(folder, text):
    with pytest.raises(InputError, match="KIND:FACTOR like yarn:2"):
        load_lm(str(folder("llama")), "float32", "cpu", text)


def test_a_model_that_cannot_be_scaled_is_refused(folder, tmp_path):
    scaled(folder("llama"), "linear:3", tmp_path / "scaled")
    for name, words in (
        (folder("gpt-oss"), "already scaled .yarn."),
        (tmp_path / "scaled", "already scaled .linear."),
    ):
        with pytest.raises(InputError, match=words):
            load_lm(str(name), "float32", "cpu", "yarn:2")
    with pytest.raises(InputError, match="a rotation per kind of layer"):
        load_lm(str(folder("gemma3")), "float32", "cpu", "yarn:2")
    (tmp_path / "learned").mkdir()
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 96, "model_type": "gpt2"}
    (tmp_path / "learned" / "config.json").write_text(json.dumps(sizes))
    shutil.copy(folder("llama") / "model.safetensors", tmp_path / "learned")
    with pytest.raises(InputError, match="no rotary positions"):
        load_lm(str(tmp_path / "learned"), "float32", "cpu", "yarn:2")


def test_it_is_part_of_the_fingerprint(folder, tmp_path):
    """A drafter for the model with other rotations is another target's. Without --rope nothing
    changes.
    """
    name = str(folder("llama"))
    plain, two, four = (
        load_lm(name, "float32", "cpu", rope) for rope in (None, "yarn:2.0", "yarn:4")
    )
    assert fingerprint(two) == fingerprint(plain) | {"rope": "yarn:2"} != fingerprint(four)
    assert fingerprint(plain) == fingerprint(tiny.target("llama"))
    KINDS["medusa"].save(KINDS["medusa"].random(two, 0), tmp_path / "heads", two, {})
    for other in (plain, four):
        with pytest.raises(InputError, match="rotary positions are not this target's"):
            KINDS["medusa"].load(str(tmp_path / "heads"), other)
        KINDS["medusa"].load(str(tmp_path / "heads"), other, any_target=True)
    KINDS["medusa"].load(str(tmp_path / "heads"), two)


@pytest.mark.full
def test_a_prompt_beyond_the_own_positions(cli, record):
    words = ("--prompt-file", "long.txt", "--prompt-tokens", f"{PROMPT}", "--compare")
    status, _, err = cli("generate", "-m", "tiny", *SHORT, *words)
    assert status == 2 and "512 positions" in err
    found = record(*words, "--rope", "yarn:2")
    assert found["equal"] is True and found["rope"] == "yarn:2" and found["prompt_tokens"] == PROMPT
    assert record("--prompt-file", "a.txt")["rope"] is None


@pytest.mark.full
@pytest.mark.parametrize("rope", ["yarn:2", "linear:2"])
def test_the_audit_under_it_finds_no_difference(cli, tmp_path, rope):
    words = [
        "audit",
        "-m",
        "tiny",
        "--prompt-file",
        "long.txt",
        "--prompt-tokens",
        f"{PROMPT}",
        "--tokens",
        "60",
    ]
    words += ["--out", str(tmp_path / "audit.json"), "--method", "vegas"]
    words += ["-o", "keep_ratio=0.1", "-o", "min_budget=16"]
    status, out, _ = cli(*words, "--rope", rope, "--json")
    found = json.loads(out)
    assert status == 0 and found["rope"] == found["settings"]["rope"] == rope
    assert found["failures"] == 0 and found["tokens"] >= 120 and found["complete"]
    status, _, err = cli(*words, "--resume")
    assert status == 2 and "another rope" in err


@pytest.mark.full
def test_benchmarks_record_it(cli, tmp_path):
    check_bench(cli, tmp_path, "rope", ["yarn:2", "yarn:3"], context=PROMPT)


@pytest.mark.full
def test_trained_drafters_beside_the_model_are_not_used(cli):
    """They were trained for its own rotations."""
    words = ["generate", "hello", "--max-new-tokens", "4", "--rope", "yarn:2", "--json"]
    status, _, err = cli(*words, "--method", "longspec")
    assert status == 2 and "--drafter" in err
    status, out, _ = cli(*words, "--method", "auto", "--compare")
    assert status == 0 and json.loads(out)["equal"] is True
