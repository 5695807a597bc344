"""The text of multimodal checkpoints is what the whole model says, and nothing else of them is read
or accepted.
"""

from __future__ import annotations

import coverage
import pytest
import tiny_models
import torch
import transformers.modeling_utils
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    RwkvConfig,
    RwkvForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
)

import longdraft
from longdraft import generate
from longdraft.errors import InputError
from longdraft.models import classes, multimodal, support
from longdraft.models.export import export
from longdraft.models.loading import load_lm
from longdraft.server.openai.schema import ChatMessage

# Where the text's own class runs; where there is none; where it scales logits and the multimodal
# one does not.
KINDS = {"mistral3": "MistralForCausalLM", "qwen3_vl": "Qwen3VLForConditionalGeneration"}
KINDS |= {"aya_vision": "AyaVisionForConditionalGeneration"}


class Counted:
    """A safetensors file that notes the names of the tensors whose numbers are read."""

    def __init__(self, file, read):
        self.file = file
        self.read = read

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *given):
        return self.file.__exit__(*given)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def get_tensor(self, name):
        self.read.add(name)
        return self.file.get_tensor(name)

    def get_slice(self, name):
        return CountedSlice(self.file.get_slice(name), name, self.read)


class CountedSlice:
    def __init__(self, part, name, read):
        self.part = part
        self.name = name
        self.read = read

    def __getattr__(self, name):
        return getattr(self.part, name)

    def __getitem__(self, index):
        self.read.add(self.name)
        return self.part[index]


@pytest.fixture
def read(monkeypatch):
    """The names of all tensors that Transformers has read."""
    names = set()
    opened = transformers.modeling_utils.safe_open
    monkeypatch.setattr(
        transformers.modeling_utils, "safe_open", lambda *a, **k: Counted(opened(*a, **k), names)
    )
    return names


def whole(kind, folder):
    """A tiny multimodal model, which is in the folder too."""
    hf = tiny_models.build(tiny_models.config(kind))
    hf.generation_config.eos_token_id = None
    hf.save_pretrained(folder)
    hf.set_attn_implementation("eager")
    return hf


def of_images(names):
    return {
        name
        for name in names
        if any(word in name for word in ("vision", "visual", "projector", "connector"))
    }


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_text_is_what_the_whole_model_says(kind, tmp_path, read):
    hf = whole(kind, tmp_path)
    lm = load_lm(str(tmp_path), "float32", "cpu")
    prompts = [[3 if t in lm.placeholders else t for t in tiny_models.prompt(n)] for n in (23, 9)]
    assert type(lm.hf).__name__ == KINDS[kind] and type(lm.hf).__module__.startswith(
        "transformers."
    )
    assert generate(lm, prompts, max_new_tokens=8, eos=()) == [
        coverage.by_transformers(hf, p)[:8] for p in prompts
    ]
    ids = torch.tensor([prompts[0]])
    same = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(
        logits(lm, ids), hf(input_ids=ids, use_cache=False).logits[0].detach(), **same
    )
    assert read and not of_images(read) and of_images(load_file(tmp_path / "model.safetensors"))


def logits(lm, ids):
    return lm(longdraft.core.Tree.chain(ids), lm.new_cache(1, ids.shape[1]))[0]


def test_a_tower_that_is_read_is_noticed(tmp_path, read, monkeypatch):
    whole("mistral3", tmp_path)
    monkeypatch.setattr(multimodal, "leave_out", lambda hf: None)
    load_lm(str(tmp_path), "float32", "cpu")
    assert of_images(read)


def test_another_class_is_not_taken_for_the_text(tmp_path, monkeypatch):
    """A decoder of other weights, as a wrong prefix would give, does not replace the multimodal
    model's.
    """
    whole("mistral3", tmp_path)
    assembled = multimodal._assembled

    def other(hf):
        text = assembled(hf)
        text.lm_head = torch.nn.Linear(*reversed(text.lm_head.weight.shape), bias=False)
        return text

    monkeypatch.setattr(multimodal, "_assembled", other)
    assert (
        type(load_lm(str(tmp_path), "float32", "cpu").hf).__name__
        == "Mistral3ForConditionalGeneration"
    )


def test_weights_under_a_wrong_prefix_are_missing(tmp_path):
    whole("mistral3", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(
        {k.replace("layers.1.self_attn", "layers.1.attention"): v for k, v in tensors.items()},
        file,
        {"format": "pt"},
    )
    with pytest.raises(InputError, match=r"lacks weights \(.*layers\.1\.self_attn"):
        load_lm(str(tmp_path), "float32", "cpu")


@pytest.mark.full
def test_inside_transformers_generate(tmp_path):
    hf = whole("qwen3_vl", tmp_path)
    given = {
        "input_ids": torch.tensor([tiny_models.prompt(12)]) % 90,
        "max_new_tokens": 6,
        "do_sample": False,
    }
    given |= {"custom_generate": longdraft.hf_generate, "method": "lookup"}
    plain = {
        name: value for name, value in given.items() if name not in ("custom_generate", "method")
    }
    assert torch.equal(hf.generate(**given), hf.generate(**plain))
    image = {"input_ids": torch.tensor([[5, hf.config.image_token_id, 7]])}
    with pytest.raises(InputError, match=r"reads text only: leave out (image|pixel_values)"):
        seen = {"pixel_values": torch.zeros(4, 1536), "image_grid_thw": torch.tensor([[1, 2, 2]])}
        hf.generate(**given | image, **seen, mm_token_type_ids=torch.tensor([[0, 1, 0]]))
    with pytest.raises(InputError, match=r"stands for \w+, and longdraft reads text only"):
        hf.generate(**given | image)


@pytest.mark.full
def test_text_is_exported_without_the_rest(tmp_path):
    for kind in ("mistral3", "qwen3_vl"):
        (folder := tmp_path / kind).mkdir()
        whole(kind, folder)
        lm = load_lm(str(folder), "float32", "cpu")
        if kind == "qwen3_vl":
            with pytest.raises(InputError, match="cannot be exported"):
                export(lm, None, tmp_path / "out")
        else:
            export(lm, Tokenizer(), tmp_path / "out")
            ids = torch.tensor([tiny_models.prompt(9)])
            assert torch.equal(
                logits(load_lm(str(tmp_path / "out"), "float32", "cpu"), ids), logits(lm, ids)
            )


class Tokenizer:
    def save_pretrained(self, folder):
        pass


@pytest.mark.parametrize("part", ["image_url", "input_audio", "video_url", "file"])
def test_messages_with_other_than_text_are_refused_by_name(part):
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, {"type": part, part: {}}],
    }
    named = {"image_url": "images", "input_audio": "sound", "video_url": "video", "file": "files"}[
        part
    ]
    with pytest.raises(ValidationError) as error:
        ChatMessage(**message)
    assert [e["msg"] for e in error.value.errors()] == [
        f"Value error, this server reads no {named}: send parts of text only"
    ]


# What continues no texts --------------------------------------------------------------------------

SIZES = {
    "vocab_size": 96,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
NO_DECODERS = {
    "has an encoder": T5Config(
        vocab_size=96, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    ),
    "needs an image": "blip-2",
    "is_decoder=true": BertConfig(**SIZES),
    "rolled back": RwkvConfig(
        vocab_size=96, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16
    ),
    "attend to images": "mllama",
    "for which it drafts": "gemma4_unified_assistant",
    "diffusion": "diffusion_gemma",
}


@pytest.mark.parametrize("words", NO_DECODERS)
def test_what_continues_no_texts_is_refused_before_weights_are_read(words, tmp_path):
    config = NO_DECODERS[words]
    config = tiny_models.config(config) if isinstance(config, str) else config
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"these are no weights")
    with pytest.raises(InputError, match=words) as error:
        load_lm(str(tmp_path))
    assert "\n" not in str(error.value) and ": use " in str(error.value)


@pytest.mark.parametrize("words", ["has an encoder", "is_decoder=true", "rolled back"])
def test_generate_of_transformers_says_the_same(words):
    models = {
        T5Config: T5ForConditionalGeneration,
        BertConfig: BertLMHeadModel,
        RwkvConfig: RwkvForCausalLM,
    }
    config = NO_DECODERS[words]
    with pytest.raises(InputError) as wanted:
        support.refuse(config)
    with pytest.raises(InputError) as error:
        models[type(config)](config).generate(
            torch.tensor([[3, 4, 5]]),
            custom_generate=longdraft.hf_generate,
            max_new_tokens=2,
            num_beams=1,
            decoder_start_token_id=0,
        )
    assert str(error.value) == str(wanted.value)


def test_a_model_that_fails_is_refused_in_one_line(monkeypatch):
    def fail(hf):
        raise RuntimeError("odd shapes\nand much more")

    hf = tiny_models.build(tiny_models.config("gemma"))
    monkeypatch.setattr(support, "probe", fail)
    with pytest.raises(InputError, match="gemma cannot be run: odd shapes; use a"):
        hf.generate(
            torch.tensor([[3, 4, 5]]), custom_generate=longdraft.hf_generate, max_new_tokens=2
        )


def test_decoders_are_none_of_these():
    for kind in ("gpt_neox", "opt", "llama"):
        config = tiny_models.config(kind)
        support.refuse(config)
    with pytest.raises(InputError, match="encoder"):
        support.refuse(WhisperConfig())
    support.refuse(tiny_models.config("bert"))  # with is_decoder


# Which class --------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_class_outside_the_mapping_is_found_in_its_package(tmp_path):
    config = tiny_models.config("mistral4")
    config.architectures = ["Mistral4ForCausalLM", "os.system"]
    assert classes.causal_class(config).__name__ == "Mistral4ForCausalLM"
    hf = tiny_models.build(config)
    hf.save_pretrained(tmp_path)
    lm = load_lm(str(tmp_path), "float32", "cpu")
    prompt = tiny_models.prompt(11)
    hf.generation_config.eos_token_id = None
    assert generate(lm, [prompt], max_new_tokens=6, eos=()) == [
        coverage.by_transformers(hf, prompt)[:6]
    ]


def test_no_class_is_taken_from_elsewhere():
    class Own(type(tiny_models.config("mistral4"))):
        model_type = "own"

    Own.__module__ = "own.configuration_own"
    config = Own()
    config.architectures = ["Mistral4ForCausalLM"]
    assert classes.class_of(config) is None


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", [*tiny_models.MULTIMODAL, "gemma3", "gemma3n", "gemma4", "phi4_multimodal", "git"]
)
def test_every_multimodal_kind(kind):
    record = coverage.examined(
        kind, {name: coverage.METHODS[name] for name in ("lookup", "vegas-tree")}
    )
    assert record["class"] in ("exact", "equal", "refused"), record
