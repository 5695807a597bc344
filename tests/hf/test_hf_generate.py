"""`model.generate(custom_generate=longdraft.hf_generate)` gives what `model.generate` gives, or
says why it cannot.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from copy import deepcopy

import pytest
import torch
from support import tiny
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
)

import longdraft
from longdraft import InputError, Sampler, Stats
from longdraft.core import processors
from longdraft.hf import FOLDER, wrapped
from longdraft.models.lm import LM

METHODS = {
    "plain": {},
    "vegas": {"gamma": 4, "min_budget": 16},
    "vegas-tree": {"widths": (3, 4), "min_budget": 16},
    "suffix": {},
    "lookup": {"n": 2},
}
MODEL = tiny.stock("llama-loops")  # repeats itself, so that drafts are accepted
LENGTHS = (41, 29, 37)
NEW = 24


def inputs(*lengths: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Prompts of these lengths, padded on the left."""
    rows = tiny.prompts(*lengths, seed=seed)
    size = max(lengths)
    ids = torch.tensor([[0] * (size - len(row)) + row for row in rows])
    return {
        "input_ids": ids,
        "attention_mask": torch.tensor([[0] * (size - n) + [1] * n for n in lengths]),
    }


def both(
    given: dict, method: str = "vegas-tree", model=MODEL, **settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """What Transformers continues with, and what longdraft does."""
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0} | settings
    mine = {"custom_generate": longdraft.hf_generate, "method": method} | METHODS[method]
    return model.generate(**given, **settings), model.generate(**given, **settings, **mine)


def same(*args, **settings) -> torch.Tensor:
    theirs, ours = both(*args, **settings)
    assert theirs.tolist() == ours.tolist()
    return ours


class Recorder:
    def __init__(self):
        self.seen: list = []

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(value.tolist())

    def end(self) -> None:
        self.seen.append("end")


class AfterToken(LogitsProcessor):
    """Scores depend on the last two tokens: what a node's parent is, and what is in front of it."""

    def __call__(self, input_ids, scores):
        last = input_ids[:, -2:].sum(1)
        at = torch.arange(scores.shape[1])
        return scores + 4.0 * torch.cos(last[:, None] * (at + 1.0))


class SumDivides(StoppingCriteria):
    """A row ends where the sum of its tokens, padding and all, is divisible."""

    def __init__(self, by: int):
        self.by = by

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.sum(1) % self.by == 0


def common(given: dict, **settings) -> int:
    """A token that plain decoding says early in the first row."""
    return int(MODEL.generate(**given, max_new_tokens=8, do_sample=False, **settings)[0, -2])


# Greedy output ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_greedy(method):
    stats = Stats()
    model = tiny.stock("llama-loops" if method != "vegas" else "qwen3")
    same(inputs(41), method, model)
    given = inputs(*LENGTHS)
    model.generate(
        **given,
        custom_generate=longdraft.hf_generate,
        method=method,
        stats=stats,
        max_new_tokens=NEW,
    )
    same(given, method, model)
    assert method == "plain" or (stats.steps and stats.mean_acceptance_length > 1)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["mistral-window", "gpt-oss", "gemma3"]
)  # gemma3 is compared when it is wrapped
def test_greedy_of_other_architectures(name):
    same(inputs(*LENGTHS), "vegas", tiny.stock(name))


@pytest.mark.parametrize("method", METHODS)
def test_end_tokens_and_the_fill(method):
    given = inputs(*LENGTHS)
    ours = same(given, method, eos_token_id=[common(given), 95], pad_token_id=7)
    assert ours.shape[1] > given["input_ids"].shape[1] and 7 in ours[:, -1].tolist()


SETTINGS = {
    "min_new_tokens": {"min_new_tokens": 12},
    "min_length": {"min_length": 52},
    "max_length": {"max_length": 50, "max_new_tokens": None},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[5], [9, 11]]},
    "sequence_bias": {"sequence_bias": {(17,): 2.0, (4, 8): -3.0}},
    "suppress": {"suppress_tokens": [3, 4], "begin_suppress_tokens": [20, 30]},
    "forced_eos": {"forced_eos_token_id": 11},
    "decay": {"exponential_decay_length_penalty": (4, 1.6)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_change_greedy_output(name):
    for given in (inputs(41), inputs(*LENGTHS)):
        eos = {} if name == "bad_words_ids" else {"eos_token_id": common(given)}
        same(given, **eos, **SETTINGS[name])


@pytest.mark.full
@pytest.mark.parametrize("method", ["vegas", "vegas-tree", "lookup"])
def test_a_processor_of_ones_own_and_allowed_tokens(method):
    for given in (inputs(41), inputs(*LENGTHS)):
        plain = MODEL.generate(**given, max_new_tokens=NEW, do_sample=False)
        assert same(given, method, logits_processor=[AfterToken()]).tolist() != plain.tolist()
        same(
            given,
            method,
            prefix_allowed_tokens_fn=lambda b, ids: [
                (int(ids[-1]) * 3 + b + k) % 96 for k in (1, 2, 5)
            ],
        )


@pytest.mark.parametrize("fault", ["root", "padding"])
def test_a_processor_that_is_not_applied_along_the_path_is_caught(monkeypatch, fault):
    def wrong(tree, rows, start, W, with_tokens, before=()):
        for b, nodes, ids in good(
            tree, rows, start, W, with_tokens, before if fault == "root" else ()
        ):
            at = len(before) + int(rows.length[b])
            yield b, nodes, ids if fault == "padding" else ids[:, :at].contiguous()

    good = processors._paths
    monkeypatch.setattr(processors, "_paths", wrong)
    if fault == "root":
        theirs, ours = both(inputs(41), logits_processor=[AfterToken()])
    else:
        theirs, ours = both(inputs(*LENGTHS), eos_token_id=common(inputs(*LENGTHS)), min_length=52)
    assert theirs.tolist() != ours.tolist()


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("method", ["vegas", "vegas-tree", "suffix"])
def test_stopping_criteria_end_rows_where_plain_decoding_ends_them(method, ends):
    given = inputs(*LENGTHS)
    more = {"eos_token_id": 95} if ends else {}
    ours = same(given, method, stopping_criteria=[SumDivides(5)], **more)
    assert given["input_ids"].shape[1] < ours.shape[1] < given["input_ids"].shape[1] + NEW


def test_a_streamer_gets_the_prompt_and_then_every_token_in_order():
    for given in (inputs(41), inputs(*LENGTHS)):
        streams = []
        for more in ({}, {"custom_generate": longdraft.hf_generate, "method": "suffix"}):
            streams.append(Recorder())
            MODEL.generate(**given, do_sample=False, max_new_tokens=9, streamer=streams[-1], **more)
        assert streams[0].seen == streams[1].seen and len(streams[0].seen) == 11


def test_the_folder_gives_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    given = inputs(*LENGTHS)
    streams = [Recorder(), Recorder()]
    theirs = MODEL.generate(**given, do_sample=False, max_new_tokens=9, streamer=streams[0])
    more = {
        "custom_generate": FOLDER,
        "trust_remote_code": True,
        "method": "vegas",
        "gamma": 3,
        "seed": 1,
    }
    ours = MODEL.generate(**given, do_sample=False, max_new_tokens=9, streamer=streams[1], **more)
    assert theirs.tolist() == ours.tolist() and streams[0].seen == streams[1].seen
    with pytest.raises(ValueError, match="trust_remote_code"):
        MODEL.generate(**given, custom_generate=FOLDER, trust_remote_code=False)


# Sampled output -----------------------------------------------------------------------------------

IGNORES_PADDING = "Tensor" in str(inspect.signature(RepetitionPenaltyLogitsProcessor.__init__))
SAMPLED = {
    "temperature": ({"temperature": 0.7, "top_k": 0}, Sampler(temperature=0.7)),
    "all": (
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        Sampler(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02),
    ),
    "penalty": (
        {"top_k": 0, "temperature": 0.7, "repetition_penalty": 1.3},
        Sampler(temperature=0.7, penalty=1.3, window=4096),
    ),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_output_is_that_of_longdraft_with_the_seed(name):
    settings, sampler = SAMPLED[name]
    # Earlier versions of Transformers count padding as a token of the text that is penalized;
    # longdraft follows them.
    lengths = LENGTHS if IGNORES_PADDING or name != "penalty" else LENGTHS[:1] * 3
    given = inputs(*lengths)
    prompts = tiny.prompts(*lengths)
    wanted = longdraft.generate(
        tiny.target("llama-loops"), prompts, sampler=sampler, seed=5, max_new_tokens=NEW
    )
    mine = {
        "custom_generate": longdraft.hf_generate,
        "do_sample": True,
        "max_new_tokens": NEW,
    } | settings
    for method in ("plain", "vegas-tree", "suffix"):
        ours = MODEL.generate(**given, **mine, method=method, seed=5)
        assert ours[:, max(lengths) :].tolist() == wanted
    torch.manual_seed(3)
    first = MODEL.generate(**given, **mine)
    torch.manual_seed(3)
    assert MODEL.generate(**given, **mine).tolist() == first.tolist()
    assert MODEL.generate(**given, **mine).tolist() != first.tolist()


@pytest.mark.full
def test_other_warpers_are_applied_by_transformers_own():
    mine = {
        "custom_generate": longdraft.hf_generate,
        "do_sample": True,
        "max_new_tokens": NEW,
        "seed": 2,
    }
    given = inputs(*LENGTHS)
    for settings in (
        {"typical_p": 0.5},
        {"epsilon_cutoff": 0.01},
        {"top_h": 0.4},
        {"renormalize_logits": True},
    ):
        plain = MODEL.generate(**given, **mine, **settings, method="plain")
        assert (
            plain.tolist()
            == MODEL.generate(**given, **mine, **settings, method="vegas-tree").tolist()
        )
    narrow = MODEL.generate(**given, **mine, typical_p=1e-6)  # leaves the most typical token alone
    other = MODEL.generate(**given, **(mine | {"seed": 3}), typical_p=1e-6)
    assert narrow.tolist() == other.tolist()


# The model ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_model_is_as_it_was_and_wrapped_once(monkeypatch):
    made: list[LM] = []

    def make(*args) -> LM:
        made.append(LM(*args))
        return made[-1]

    monkeypatch.setattr(wrapped, "LM", make)
    model = tiny.stock("qwen3").train()
    given = inputs(41)
    model.set_attn_implementation("sdpa")
    before = (model.config.to_dict(), [(id(m), dict(vars(m))) for m in model.modules()])
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    for _ in range(2):
        model.generate(**given, max_new_tokens=5, custom_generate=longdraft.hf_generate)
    assert len(made) == 1 and made[0].hf is not model
    assert (model.config.to_dict(), [(id(m), dict(vars(m))) for m in model.modules()]) == before
    assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()] == hooks
    assert model.config._attn_implementation == "sdpa" and model.training
    shared = {p.data_ptr() for p in model.parameters()}
    assert shared == {p.data_ptr() for p in made[0].hf.parameters()}
    with torch.no_grad():  # a training step, say
        model.lm_head.weight.mul_(-1.0)
    same(given, "lookup", model.eval())
    assert len(made) == 2
    ref = weakref.ref(model)
    del model
    made.clear()
    monkeypatch.undo()
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize("name", ["norm.weight", "layers.0.input_layernorm.weight"])
@pytest.mark.parametrize("broken", [False, True])
def test_a_write_through_data_is_seen(name, broken, monkeypatch):
    """It leaves no trace on the tensor, and the kernels have norms of their own in float32."""
    model = tiny.stock("llama", dtype=torch.bfloat16).eval()
    given = inputs(41)
    if broken:
        monkeypatch.setattr(wrapped, "_copied", lambda model: b"")

    def tokens(of) -> list[list[int]]:
        return of.generate(
            **given, max_new_tokens=8, do_sample=False, custom_generate=longdraft.hf_generate
        ).tolist()

    before = tokens(model)
    vector = model.model.get_parameter(name)
    vector.data.mul_(torch.linspace(-3, 3, len(vector)))
    right = tokens(deepcopy(model))
    assert right != before and (tokens(model) == right) != (
        broken and LM(model).backend.name == "native"
    )


def test_a_dictionary_is_returned_where_it_is_asked_for():
    given = inputs(41)
    config = GenerationConfig(max_new_tokens=6, do_sample=False, return_dict_in_generate=True)
    found = MODEL.generate(**given, generation_config=config, custom_generate=longdraft.hf_generate)
    assert (
        found.sequences.tolist()
        == MODEL.generate(**given, generation_config=config).sequences.tolist()
    )


# What is refused ----------------------------------------------------------------------------------


class Counts(LogitsProcessor):
    calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores + self.calls * torch.arange(scores.shape[1])


def cache() -> DynamicCache:
    return DynamicCache(config=MODEL.config)


REFUSED = {
    "num_beams": ({"num_beams": 2}, "set num_beams=1"),
    "past_key_values": ({"past_key_values": cache}, "past_key_values"),
    "cache_implementation": ({"cache_implementation": "static"}, "its own cache"),
    "use_cache": ({"use_cache": False}, "its own cache"),
    "output_scores": ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
    "output_logits": ({"output_logits": True, "return_dict_in_generate": True}, "output_logits"),
    "output_attentions": (
        {"output_attentions": True, "return_dict_in_generate": True},
        "output_attentions",
    ),
    "assistant_model": ({"assistant_model": MODEL}, "method='sd'"),
    "prompt_lookup": ({"prompt_lookup_num_tokens": 3}, "method='lookup'"),
    "guidance_scale": ({"guidance_scale": 2.0}, "guidance_scale"),
    "a processor that counts": ({"logits_processor": [Counts()]}, "nondeterministic"),
    "position_ids": ({"position_ids": torch.arange(9)[None] + 1}, "position_ids"),
    "padding behind": ({"attention_mask": torch.tensor([[1] * 8 + [0]])}, "pad on the left"),
    "method": ({"method": "nope"}, "unknown method 'nope'"),
    "option": ({"method": "suffix", "gamma": 4}, "no option 'gamma'"),
    "drafter": ({"method": "eagle3"}, "eagle3"),
    "positions": ({"max_new_tokens": 600}, "512 positions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_in_one_line(name):
    settings, names = REFUSED[name]
    settings = {k: v() if v is cache else v for k, v in settings.items()}
    with pytest.raises(InputError) as raised:
        MODEL.generate(
            torch.tensor(tiny.prompts(9)),
            custom_generate=longdraft.hf_generate,
            **({"max_new_tokens": 4} | settings),
        )
    assert names in str(raised.value) and len(str(raised.value).splitlines()) == 1


def test_what_has_no_tokens_is_refused():
    embedded = MODEL.get_input_embeddings()(torch.tensor(tiny.prompts(9)))
    with pytest.raises(InputError, match="give input_ids"):
        MODEL.generate(
            inputs_embeds=embedded, custom_generate=longdraft.hf_generate, max_new_tokens=4
        )
    sizes = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
    }
    bart = BartForConditionalGeneration(
        BartConfig(vocab_size=96, encoder_attention_heads=2, decoder_attention_heads=2, **sizes)
    )
    settings = {"num_beams": 1, "max_new_tokens": 4, "early_stopping": False}
    with pytest.raises(InputError, match="decoder-only"):
        bart.generate(
            torch.tensor(tiny.prompts(9)), custom_generate=longdraft.hf_generate, **settings
        )


def test_misspelled_options_are_refused_by_transformers():
    with pytest.raises(ValueError, match="gama"):
        MODEL.generate(torch.tensor(tiny.prompts(9)), custom_generate=longdraft.hf_generate, gama=4)
