"""Gemma 3 in GGUF: a tiny model's logits are those of Transformers, and each thing that makes it a
Gemma matters.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from support import gguf_files as files
from support.gguf_files import F32, IDS, STRING, U32, logits, ours
from support.tiny import BASE
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from longdraft import InputError, build, generate, load
from longdraft.backends.packed_linear import PackedLinear
from longdraft.models.gguf import config as gguf_config
from longdraft.models.gguf import file as gguf
from longdraft.models.gguf import gemma3, model
from longdraft.ops import native
from longdraft.ops.packed import Packed

# the last layer sees all tokens
WINDOW = 8
LAYERS = 6
PARTS = files.PARTS | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@cache
@torch.inference_mode(False)
def stock():
    torch.manual_seed(0)
    sizes = {
        **BASE,
        "vocab_size": files.VOCAB,
        "num_hidden_layers": LAYERS,
        "sliding_window": WINDOW,
    }
    # larger than hidden size by heads, as in the smallest one
    sizes |= {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
    }
    config = Gemma3TextConfig(**sizes, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    return model


def saved(
    folder, hf=None, offset: float = 1.0, quantized: str | None = None, change=lambda metadata: None
):
    hf = hf or stock()
    tensors = {}
    for name, p in hf.named_parameters():
        x = p.detach()
        stored = files.name_of(name, PARTS)
        if quantized and x.dim() == 2:
            tensors[stored] = (
                quantized,
                tuple(x.shape),
                files.blocks(quantized, tuple(x.shape), len(tensors), 0.002),
            )
        else:
            tensors[stored] = (
                "F32",
                tuple(x.shape),
                files.plain("F32", x + offset if x.dim() == 1 else x),
            )
    metadata = files.sizes(_Flat(hf.config), "gemma3") | files.tokenizer()
    del metadata["gemma3.rope.dimension_count"]  # as converters leave it out
    metadata["gemma3.attention.sliding_window"] = (U32, WINDOW)
    change(metadata)
    return files.write(folder / "model.gguf", metadata, tensors)


class _Flat:
    """The config with one rotary base: that of the layers that see all tokens."""

    def __init__(self, config):
        self.__dict__ = config.__dict__ | {
            "rope_parameters": config.rope_parameters["full_attention"]
        }


def put(key: str, kind: int, value):
    return lambda metadata: metadata.update({f"gemma3.{key}": (kind, value)})


def test_a_file_is_the_model_it_was_made_from(tmp_path):
    assert IDS.shape[1] > 2 * WINDOW
    assert torch.allclose(ours(saved(tmp_path)), logits(stock()), atol=1e-4)


@pytest.mark.parametrize(
    ("patch", "options"),
    [
        ({}, {"offset": 0.0}),
        ({}, {"change": put("attention.sliding_window", U32, 64)}),
        ({}, {"change": put("rope.freq_base_swa", F32, 1e6)}),
        ({}, {"change": put("rope.freq_base", F32, 1e4)}),
        ({"PERIOD": 3}, {}),
        ({"LAYERS_27B": LAYERS}, {}),
        (
            {"scale_embedding": lambda table: setattr(table, "embed_scale", torch.tensor(1.0))},
            {},
        ),
    ],
    ids=[
        "norms without 1",
        "window",
        "local base",
        "global base",
        "layers",
        "query scale",
        "embedding scale",
    ],
)
def test_each_difference_to_llama_matters(tmp_path, monkeypatch, patch, options):
    """Planted faults: with any of these wrong, logits differ."""
    for name, value in patch.items():
        monkeypatch.setattr(gemma3 if hasattr(gemma3, name) else model, name, value)
    assert not torch.allclose(ours(saved(tmp_path, **options)), logits(stock()), atol=1e-2)


@pytest.mark.full
def test_a_quantized_file_is_the_model_and_stays_packed(tmp_path):
    path = saved(tmp_path, quantized="Q8_0")
    lm, tokenizer = load(str(path), "float32", activations="full")
    assert tokenizer.eos_token == "<|end|>"
    linears = [m for m in lm.hf.modules() if isinstance(m, torch.nn.Linear | PackedLinear)]
    assert len(linears) == 7 * LAYERS + 1 and all(isinstance(m, PackedLinear) for m in linears)
    if native.library() is not None:
        assert lm.backend.name == "native"
    theirs = AutoModelForCausalLM.from_config(stock().config, attn_implementation="eager").eval()
    stored = gguf.read(path).tensors
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            weights = stored[files.name_of(name, PARTS)].read()
            p.copy_(weights.dequantized() if isinstance(weights, Packed) else weights - 1)
    want = generate(lm, [IDS[0].tolist()], max_new_tokens=12, eos=())
    assert (
        theirs.generate(IDS, max_new_tokens=12, do_sample=False, eos_token_id=None)[
            :, IDS.shape[1] :
        ].tolist()
        == want
    )
    for method in ("vegas", "suffix"):
        assert generate(lm, [IDS[0].tolist()], build(method, lm), max_new_tokens=12, eos=()) == want


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda metadata: metadata.pop("gemma3.attention.sliding_window"), "no sliding window"),
        (put("attention.sliding_window_pattern", U32, 4), "every 4"),
        (put("rope.scaling.type", STRING, "yarn"), "yarn"),
    ],
)
def test_what_no_gemma_3_has_is_one_line(tmp_path, change, names):
    def apply(metadata):
        put("rope.scaling.factor", F32, 8.0)(metadata)
        change(metadata)

    with pytest.raises(InputError, match=names) as error:
        ours(saved(tmp_path, change=apply))
    assert "\n" not in str(error.value)


def test_linear_scaling_is_that_of_the_layers_that_see_all_tokens(tmp_path):
    def scaled(metadata):
        put("rope.scaling.type", STRING, "linear")(metadata)
        put("rope.scaling.factor", F32, 8.0)(metadata)

    file = gguf.read(saved(tmp_path, change=scaled))
    rope = gguf_config.config_of(file).rope_parameters
    assert (
        rope["full_attention"]["factor"] == 8.0
        and rope["sliding_attention"]["rope_type"] == "default"
    )
