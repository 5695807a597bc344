"""The model's passes against Transformers' own attention, and the models that are refused in one
line.
"""

from __future__ import annotations

import ast
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from support import tiny
from support.structure import branching, check_tree_pass, close
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
)

import longdraft
from longdraft import InputError, Sampler, build, generate
from longdraft.backends.architecture import NAME, attend_plainly, attention
from longdraft.backends.current_pass import CurrentPass, passing
from longdraft.backends.features.windows import windows_of
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.models import support
from longdraft.models.lm import LM

SRC = Path(longdraft.__file__).parent
SMALL = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize("model", tiny.CONFIGS)
def test_a_tree_pass_is_one_stock_pass_per_path(model):
    check_tree_pass(model)


@pytest.mark.parametrize("model", ["llama", "gpt-oss", "deepseek", "gemma2-softcap"])
def test_prompts_of_many_tokens(model):
    """Above 128 queries attention takes another way."""
    check_tree_pass(model, lengths=(200, 131), chunk=1024)


def test_every_architecture_that_is_not_probed_is_tested_here():
    assert not support.TESTED - {config.model_type for config in tiny.CONFIGS.values()}


@torch.inference_mode()
@pytest.mark.parametrize("model", tiny.MAIN)
def test_nodes_in_several_passes(model):
    """Drafting level by level on scratch slots gives what one pass over the whole tree gives."""
    lm = tiny.target(model)
    prompts = tiny.prompts(40, 27)
    tree = branching(2)
    caches = [lm.new_cache(2, 64) for _ in range(2)]
    for cache in caches:
        for b, prompt in enumerate(prompts):
            lm.prefill(prompt, cache.row(b))
    whole = lm(tree, caches[0])
    parts = []
    for start, end in ((0, 1), (1, 3), (3, 6), (6, 7)):
        mask = tree.mask[:, :end, :end]
        part = Tree(tree.tokens[:, :end], tree.parent[:, :end], tree.depth[:, :end], mask)
        parts.append(lm(part, caches[1], start))
    close(torch.cat(parts, 1), whole)


KEPT = {"first": [0], "last": [2], "ends": [0, 2], "all": [0, 1, 2]}


@pytest.mark.each_value
@torch.inference_mode()
@pytest.mark.parametrize("model", ["llama", "llama-torch", "gpt-oss", "qwen3-moe"])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("rows", KEPT)
def test_tapped_weights_are_stock_attention_weights(model, rows, split):
    lm = tiny.target(model)
    eager = tiny.eager(model)
    prompts = tiny.prompts(40, 27)
    cache = lm.new_cache(2, 64)
    chain = Tree.chain(torch.tensor([[5, 17, 33], [8, 9, 10]]))
    for b, prompt in enumerate(prompts):
        lm.prefill(prompt, cache.row(b))
    captured = Captures(CaptureSpec(rows, "weights", split))
    lm(chain, cache, captured=captured)
    assert captured.covered.tolist() == [41, 28]  # the root's slot included
    assert sorted(captured.scores) == [
        i for i in range(lm.config.num_hidden_layers) if i not in lm.windows
    ]
    for b, prompt in enumerate(prompts):
        ids = torch.tensor([prompt + chain.tokens[b].tolist()])
        n = len(prompt)
        weights = eager(input_ids=ids, output_attentions=True, use_cache=False).attentions
        for layer, scores in captured.scores.items():
            want = weights[layer][0][:, [n + i for i in KEPT[rows]], : n + 1]  # [H,R,S]
            want = want.view(2 if split else 1, -1, *want.shape[1:]).mean(1).transpose(0, 1)
            close(scores[b, ..., : n + 1], want)
            assert (scores[b, ..., n + 1 :] == float("-inf")).all()


@torch.inference_mode()
@pytest.mark.parametrize("torch_only", [False, True])
def test_tapped_logits_are_what_softmax_takes(torch_only):
    """With one head and one row the weights are the softmax of the logits."""
    config = {**tiny.BASE, "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 32}
    torch.manual_seed(0)
    lm = LM(AutoModelForCausalLM.from_config(tiny.LlamaConfig(**config)))
    lm.backend = lm.eager if torch_only else lm.backend
    cache = lm.new_cache(1, 64)
    root = Tree.root(torch.tensor([5]))
    lm.prefill(tiny.prompts(30)[0], cache)
    logits = Captures(CaptureSpec("last", "logits"))
    weights = Captures(CaptureSpec("last", "weights"))
    lm(root, cache, captured=logits), lm(root, cache, captured=weights)
    for layer in range(3):
        close(weights.scores[layer], logits.scores[layer].softmax(-1))
        assert float(logits.scores[layer].std()) > 0


@torch.inference_mode()
@pytest.mark.parametrize("model", ["qwen3", "qwen3-torch", "gpt-oss"])
def test_tapped_states_are_stock_hidden_states(model):
    lm = tiny.target(model)
    eager = tiny.eager(model)
    prompt = tiny.prompts(30)[0]
    cache = lm.new_cache(1, 64)
    captured = Captures(CaptureSpec(hidden=(0, 2)))
    lm.prefill(prompt, cache)
    chain = Tree.chain(torch.tensor([[5, 17, 33]]))
    lm(chain, cache, captured=captured)
    want = eager(
        input_ids=torch.tensor([[*prompt, 5, 17, 33]]), output_hidden_states=True, use_cache=False
    )
    for i in (0, 2):
        close(captured.states[i], want.hidden_states[i][:, 30:])


# Refusals -----------------------------------------------------------------------------------------


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


NO_INTERFACE = ["openai-gpt", "xlm", "xlnet", "cpmant"]
STATEFUL = ["rwkv", "xlstm"]


@pytest.mark.parametrize("kind", NO_INTERFACE + STATEFUL)
def test_architectures_that_cannot_run_right_are_refused(kind):
    with pytest.raises(InputError) as error:
        support.refuse(AutoConfig.for_model(kind))
    words = "attention interface" if kind in NO_INTERFACE else "rolled back"
    assert words in one_line(error) and ": use a" in one_line(error)


@pytest.mark.parametrize("kind", ["clip_vision_model", "vit"])
def test_what_is_no_causal_language_model_is_refused(kind):
    with pytest.raises(InputError, match="not a causal language model"):
        support.refuse(AutoConfig.for_model(kind))


@pytest.mark.parametrize("kind", sorted(support.TESTED))
def test_what_is_tried_is_not_refused(kind):
    support.refuse(AutoConfig.for_model(kind))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"alibi": torch.zeros(1)}, "passes alibi"),
        ({"is_causal": False}, "is_causal=False"),
        ({"attention_mask": torch.zeros(1, 1, 2, 2)}, "a custom mask"),
    ],
)
def test_an_unknown_attention_argument_is_refused(arguments, words):
    """Whatever changes the numbers of attention and is not computed here."""
    q = torch.zeros(1, 2, 2, 4)
    module = torch.nn.Linear(1, 1)
    call = {"attention_mask": None, **arguments}
    inside = passing(CurrentPass(attend=attend_plainly))
    with inside, pytest.raises(InputError, match=words) as error:
        attention(module, q, q, q, **call)
    one_line(error)


def test_attention_outside_of_passes_is_refused():
    q = torch.zeros(1, 2, 2, 4)
    with pytest.raises(InputError, match="Linear attends outside of longdraft's passes") as error:
        attention(torch.nn.Linear(1, 1), q, q, q, None)
    one_line(error)


def test_a_model_that_skips_the_interface_is_refused():
    """A layer whose attention goes another way is noticed by the number of calls."""
    model = deepcopy(tiny.stock("llama"))
    # its own config names another attention
    model.model.layers[1].self_attn.config = deepcopy(model.config)
    lm = LM(model)
    model.model.layers[1].self_attn.config._attn_implementation = "eager"
    lm.backend = lm.eager
    with pytest.raises(InputError, match=r"attends 2 times .* needs 3"):
        lm(Tree.root(torch.tensor([5])), lm.new_cache(1, 8))


@pytest.mark.parametrize("model", ["llama", "gpt-oss", "gemma2-softcap", "phi3"])
def test_the_probe_passes_what_is_right(model):
    hf = tiny.stock(model)
    before = deepcopy(hf.config)
    support.probe(hf)
    assert hf.config.to_dict() == before.to_dict()


@pytest.mark.parametrize("fault", ["scale", "window", "softcap", "sink"])
def test_the_probe_catches_a_wrong_attention(fault, monkeypatch):
    """Each thing that attention must be told, lost on the way."""
    good = attention
    lost = {"scale": {"scaling": 1.0}, "softcap": {"softcap": None}, "sink": {"s_aux": None}}.get(
        fault, {}
    )

    def bad(*args, **kwargs):
        return good(*args, **{**kwargs, **lost})

    hf = tiny.stock({"softcap": "gemma2-softcap", "window": "qwen3-mixed"}.get(fault, "gpt-oss"))
    monkeypatch.setattr("longdraft.backends.native.fits", lambda *a: False)
    if fault == "window":
        monkeypatch.setattr("longdraft.backends.features.windows.windows_of", lambda config: {})
    AttentionInterface.register(NAME, bad)
    try:
        with pytest.raises(InputError, match="differs from Transformers' own") as error:
            support.probe(hf)
        one_line(error)
    finally:
        AttentionInterface.register(NAME, good)


def test_windows_come_from_the_config():
    assert windows_of(tiny.CONFIGS["mistral-window"]) == {0: 24, 1: 24, 2: 24}
    assert windows_of(tiny.CONFIGS["qwen3-mixed"]) == {0: 24, 2: 24}
    assert windows_of(tiny.CONFIGS["gpt-oss"]) == {0: 24, 2: 24}
    assert windows_of(tiny.CONFIGS["llama"]) == {}
    assert (
        windows_of(tiny.Qwen3Config(**tiny.BASE, sliding_window=24, use_sliding_window=False)) == {}
    )


# Folders ------------------------------------------------------------------------------------------


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, of the 95 printable characters and one more."""
    byte_level = Tokenizer(models.BPE({chr(i): i - 32 for i in range(32, 127)} | {"Ġ": 95}, []))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=byte_level)


@pytest.fixture
def folder(tmp_path):
    """A saved tiny model and its tokenizer."""

    def save(name: str = "llama", **options):
        tiny.stock(name).save_pretrained(tmp_path, **options)
        tokenizer().save_pretrained(tmp_path)
        return tmp_path

    return save


def load(path, dtype: str = "float32"):
    return longdraft.load(str(path), dtype, device="cpu")


@pytest.mark.parametrize("name", [*tiny.MAIN, "qwen2", "gemma2-softcap"])
def test_a_saved_model_loads_and_says_the_same(name, folder):
    lm, words = load(folder(name))
    prompt = words("def main(argv):")["input_ids"]
    assert lm.dtype == torch.float32 and len(prompt) == 15
    options = {"max_new_tokens": 8, "sampler": Sampler(temperature=1.0)}
    want = generate(tiny.target(name), [prompt], **options)
    assert generate(lm, [prompt], build("vegas", lm, min_budget=4), **options) == want
    assert isinstance(words.decode(want[0]), str)


def test_bfloat16_is_the_default(folder):
    lm, _ = longdraft.load(str(folder()), device="cpu")
    assert lm.dtype == torch.bfloat16


def failing(path, dtype: str = "float32") -> str:
    with pytest.raises(InputError) as error:
        load(path, dtype)
    return one_line(error)


def test_a_folder_without_weights(folder):
    path = folder()
    (path / "model.safetensors").unlink()
    assert "has no weights" in failing(path)
    torch.save({}, path / "pytorch_model.bin")
    assert "only pickled weights (pytorch_model.bin)" in failing(path)


def test_a_folder_with_some_of_the_weights(folder):
    from safetensors.torch import load_file, save_file

    path = folder()
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    assert "lacks weights (model.layers.1.mlp.up_proj.weight" in failing(path)


def test_broken_folders(folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no config.json" in failing(empty)
    path = folder()
    (path / "model.safetensors").write_bytes(b"nonsense")
    assert "cannot load" in failing(path)
    (path / "config.json").write_text("{")
    assert "cannot load" in failing(path)
    (path / "config.json").write_text('{"model_type": "no-such-model"}')
    assert "cannot load" in failing(path)


def test_a_folder_without_a_tokenizer(folder):
    path = folder()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink(missing_ok=True)
    assert "cannot load" in failing(path)


def test_a_refused_architecture_in_a_folder(folder):
    path = folder()
    AutoConfig.for_model("xlnet").save_pretrained(path)
    assert "attention interface" in failing(path)
    AutoConfig.for_model("rwkv").save_pretrained(path)
    assert "rolled back" in failing(path)
    (path / "config.json").write_text('{"model_type": "musicgen"}')  # without its parts
    # by Transformers' version
    assert any(words in failing(path) for words in ("has an encoder", "cannot load"))


@pytest.mark.parametrize("name", ["no/such/folder", "/no/such", "a file", "no-such-model"])
def test_a_place_that_is_neither_folder_nor_id(name, tmp_path):
    if name == "a file":
        name = tmp_path / "weights.safetensors"
        name.write_bytes(b"")
    assert "no model folder" in failing(name) and "'bundled'" in failing(name)


def test_an_id_that_cannot_be_fetched():
    words = failing("no-such-owner/no-such-model")
    assert (
        words.startswith("cannot ")
        and "no-such-owner/no-such-model" in words
        and "'bundled'" in words
    )


def test_an_unknown_dtype():
    assert "choose float32 or bfloat16" in failing("bundled", "float16")


def test_positions_and_vocabulary_are_the_models():
    lm = tiny.target("gpt-oss")
    assert (lm.positions, lm.vocab, lm.name) == (512, 96, "gpt-oss")


def test_bytes_of_a_step():
    """The embedding table is not read, a tied head is."""
    config = tiny.LlamaConfig(**tiny.BASE, tie_word_embeddings=True)
    tied = LM(AutoModelForCausalLM.from_config(config))
    loose = tiny.target("llama")
    assert tied.nbytes() == loose.nbytes()
    assert loose.nbytes() == sum(4 * p.numel() for p in loose.hf.parameters()) - 4 * 96 * 64


def outside(text: str) -> list[str]:
    """Attributes of a model (`lm`, `target`) that this source sets."""
    stores = (
        n
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    )
    return sorted(
        ast.unparse(n)
        for n in stores
        if ast.unparse(n.value) in ("lm", "target", "self.lm", "self.target")
    )


@pytest.mark.full
def test_a_model_is_complete_once_it_is_constructed():
    assert outside("lm = load()\nlm.note, x = 'read', 1\nself.target.backend = lm.eager") == [
        "lm.note",
        "self.target.backend",
    ]
    assert {
        str(p): names for p in SRC.rglob("*.py") if (names := outside(p.read_text("utf-8")))
    } == {}
