"""Every field of a GenerationConfig has its effect in `custom_generate`, is refused, or has none in
`generate`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny
from test_hf_generate import LENGTHS, METHODS, MODEL, NEW, common, inputs, same
from transformers import CompileConfig, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig, WatermarkingConfig

import longdraft
from longdraft import InputError, Sampler, row_seed
from longdraft.models.lm import LM

FIELDS = set(vars(GenerationConfig()))
DRAWS = {"do_sample": True, "top_k": 0}
ENDS = {"eos_token_id": common(inputs(41)), "pad_token_id": 7}

# Fields that change the output: a value, and the settings beside it. Sampling is so narrow that one
# token is left.
HONORED = {
    "max_length": (50, {"max_new_tokens": None}),
    "max_new_tokens": (3, {}),
    "max_time": (0.0, {}),
    "min_length": (52, ENDS),
    "min_new_tokens": (12, ENDS),
    "eos_token_id": (ENDS["eos_token_id"], {"pad_token_id": 7}),
    "pad_token_id": (9, ENDS),
    "do_sample": (True, {"top_k": 0, "typical_p": 1e-6}),
    "temperature": (1e-4, DRAWS),
    "top_k": (1, DRAWS),
    "top_p": (1e-6, DRAWS),
    "top_h": (1e-6, DRAWS),
    "min_p": (1.0, DRAWS),
    "typical_p": (1e-6, DRAWS),
    "epsilon_cutoff": (0.999, DRAWS),
    "repetition_penalty": (1.7, {}),
    "no_repeat_ngram_size": (2, {}),
    "bad_words_ids": ([[ENDS["eos_token_id"]]], {}),
    "sequence_bias": ({(17,): 9.0}, {}),
    "suppress_tokens": ([ENDS["eos_token_id"]], {}),
    "begin_suppress_tokens": (list(range(50)), {}),
    "forced_eos_token_id": (11, {}),
    "exponential_decay_length_penalty": ((4, 1.6), ENDS),
}
SPECIAL = {  # each has a test of its own
    "bos_token_id",
    "forced_bos_token_id",
    "eta_cutoff",
    "remove_invalid_values",
    "num_return_sequences",
    "return_dict_in_generate",
}
# Fields that would change the output or what is returned: a value, the settings beside it, and what
# the error says.
REFUSED = {
    "num_beams": (2, {}, "set num_beams=1"),
    "num_beam_groups": (2, {}, "num_beam_groups"),
    "constraints": (["one"], {}, "constraints"),
    "force_words_ids": ([[3]], {}, "force_words_ids"),
    "penalty_alpha": (0.6, {"top_k": 4}, "penalty_alpha"),
    "dola_layers": ("low", {}, "dola_layers"),
    "guidance_scale": (2.0, {}, "guidance_scale"),
    "watermarking_config": (WatermarkingConfig(), {}, "watermarking_config"),
    "encoder_repetition_penalty": (1.5, {}, "encoder_repetition_penalty"),
    "encoder_no_repeat_ngram_size": (2, {}, "encoder_no_repeat_ngram_size"),
    "prompt_lookup_num_tokens": (3, {}, "method='lookup'"),
    "assistant_early_exit": (1, {}, "drafts by its `method`"),
    "is_assistant": (True, {}, "is_assistant"),
    "use_mtp": (True, {}, "method='mtp'"),
    "use_cache": (False, {}, "its own cache"),
    "cache_implementation": ("static", {}, "its own cache"),
    "cache_config": ({"a": 1}, {}, "its own cache"),
    "prefill_chunk_size": (8, {}, "its own cache"),
    "output_scores": (True, {"return_dict_in_generate": True}, "only sequences"),
    "output_logits": (True, {"return_dict_in_generate": True}, "only sequences"),
    "output_attentions": (True, {"return_dict_in_generate": True}, "only sequences"),
    "output_hidden_states": (True, {"return_dict_in_generate": True}, "only sequences"),
}
# Transformers drops `tokenizer` before it calls a function, and then asks for it.
NEEDS_TOKENIZER = {"stop_strings": ["a"], "token_healing": True}
WITHOUT_EFFECT = {  # in plain `generate` too, as long as nothing that is refused is set
    "early_stopping": True,  # beams
    "length_penalty": 2.0,
    "diversity_penalty": 0.5,
    "low_memory": True,
    "decoder_start_token_id": 5,  # encoders
    "num_assistant_tokens": 3,  # assistants
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.9,
    "max_matching_ngram_size": 3,
    "assistant_lookbehind": 3,
    "target_lookbehind": 3,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "max_cache_len": 600,  # static caches
    "compile_config": CompileConfig(),
    "disable_compile": True,
    "continuous_batching_config": ContinuousBatchingConfig(),
    "renormalize_logits": True,  # changes scores alone
    "transformers_version": "5.0.0",  # where the file came from
    "_from_model_config": True,
    "_commit_hash": "0" * 40,
}


def ours(given: dict, method: str = "vegas-tree", **settings) -> Any:
    mine = {"custom_generate": longdraft.hf_generate, "method": method} | METHODS[method]
    return MODEL.generate(
        **given, **mine, **({"max_new_tokens": NEW, "do_sample": False, "seed": 0} | settings)
    )


def test_every_field_of_this_version_is_in_one_of_the_tables():
    tables = [HONORED, SPECIAL, REFUSED, NEEDS_TOKENIZER, WITHOUT_EFFECT]
    assert not FIELDS - set().union(*tables), (
        "new fields: does longdraft.hf_generate honor or refuse them?"
    )
    assert sum(map(len, tables)) == len(set().union(*tables))


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FIELDS & HONORED.keys()))
def test_a_field_has_the_effect_that_it_has_in_plain_generate(name):
    value, beside = HONORED[name]
    given = inputs(*LENGTHS)
    found = same(given, **(beside | {name: value}))
    assert found.tolist() != ours(given, **({"pad_token_id": 0} | beside)).tolist()


def test_where_an_empty_text_begins():
    for settings in ({"bos_token_id": 17}, {"bos_token_id": 17, "forced_bos_token_id": 40}):
        found = same({}, **settings)[0].tolist()
        assert found[0] == 17 and (found[1] == 40) == ("forced_bos_token_id" in settings)


def test_eta_cutoff():
    wanted = longdraft.generate(
        tiny.target("llama-loops"),
        tiny.prompts(41),
        sampler=Sampler(1.0, eta=0.3),
        seed=4,
        max_new_tokens=NEW,
    )
    given = inputs(41)
    assert ours(given, **DRAWS, eta_cutoff=0.3, seed=4)[:, 41:].tolist() == wanted
    assert ours(given, **DRAWS, seed=4)[:, 41:].tolist() != wanted


def test_scores_that_are_no_numbers_are_removed():
    model = tiny.stock("llama")
    with torch.no_grad():
        model.lm_head.weight[33] = float("nan")
    assert (
        33
        not in same(inputs(*LENGTHS), "suffix", model, remove_invalid_values=True)[
            :, max(LENGTHS) :
        ]
    )


@pytest.mark.parametrize("name", sorted(FIELDS & REFUSED.keys()))
def test_a_field_that_is_refused(name):
    value, beside, words = REFUSED[name]
    with pytest.raises(InputError) as raised:
        ours(inputs(9), **beside, **{name: value})
    assert words in str(raised.value) and len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("name", NEEDS_TOKENIZER)
def test_a_field_that_transformers_refuses_without_a_tokenizer(name):
    with pytest.raises(ValueError, match="tokenizer"):
        ours(inputs(9), **{name: NEEDS_TOKENIZER[name]}, tokenizer=object())


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", sorted(FIELDS & WITHOUT_EFFECT.keys()))
def test_a_field_without_effect(name):
    given = inputs(41)
    assert same(given, **{name: WITHOUT_EFFECT[name]}).tolist() == ours(given).tolist()


# Several sequences per prompt ---------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("method", ["plain", "vegas-tree", "suffix"])
def test_each_of_several_sequences_is_that_of_its_own_seed(method):
    given = inputs(*LENGTHS)
    prompts = tiny.prompts(*LENGTHS)
    count = 3
    settings = {"do_sample": True, "top_k": 0, "temperature": 0.7}
    found = ours(given, **settings, num_return_sequences=count, method=method, seed=5)
    assert len(found) == count * len(prompts)
    assert (
        found[:, : max(LENGTHS)].tolist() == given["input_ids"].repeat_interleave(count, 0).tolist()
    )
    lm = tiny.target("llama-loops")
    rows = found[:, max(LENGTHS) :].tolist()
    for b, row in enumerate(rows):
        alone = {"sampler": Sampler(0.7), "seed": row_seed(5, b), "max_new_tokens": NEW}
        assert [row] == longdraft.generate(lm, [prompts[b // count]], **alone)
        one = inputs(LENGTHS[b // count])  # the same through `generate`
        one["input_ids"][0] = torch.tensor(prompts[b // count])
        assert ours(one, **settings, method=method, seed=row_seed(5, b))[0, -NEW:].tolist() == row
    assert len({tuple(row) for row in rows}) == len(rows)


def test_a_prompt_of_several_sequences_is_read_once(monkeypatch):
    read: list[int] = []

    def prefill(self, tokens, *args, **options):
        read.append(len(tokens))
        return good(self, tokens, *args, **options)

    good = LM.prefill
    monkeypatch.setattr(LM, "prefill", prefill)
    ours(inputs(*LENGTHS), do_sample=True, num_return_sequences=3)
    assert read == [n - 1 for n in LENGTHS]


def test_a_dictionary_of_several_sequences():
    found = ours(inputs(41), do_sample=True, num_return_sequences=2, return_dict_in_generate=True)
    assert (
        found.sequences.tolist()
        == ours(inputs(41), do_sample=True, num_return_sequences=2).tolist()
    )
