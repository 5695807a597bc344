"""The model's generation_config: its rules hold along each node's own path, its end tokens end a
text.
"""

from __future__ import annotations

import json
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import SEED
from support.listed import BUILD
from support.structure import ancestors
from test_sampling import sequences, transformers_law
from test_tree_cache import trees
from transformers import GenerationConfig

from longdraft import InputError, Rules, Sampler, Stats, generate, load, serve, stream
from longdraft.core.processors import chain
from longdraft.core.rules import APPLIED, end_tokens
from longdraft.core.tree import PAD, Tree
from longdraft.engine.decode_session import DecodeSession
from longdraft.models.lm import LM

# its greedy text goes in circles, so that drafts are accepted and repetition counts
LOOPS = "llama-loops"
NEW = 24
CASES = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[5], [7, 9], [11, 12, 13]]},
    "sequence_bias": {"sequence_bias": [[[5], 3.0], [[7, 9], -4.0], [[8, 30], 6.0]]},
    "min_length": {"min_length": 60},
    "min_new_tokens": {"min_new_tokens": 9},
    "forced_bos_token_id": {"forced_bos_token_id": 4},
    "forced_eos_token_id": {"forced_eos_token_id": 3},
    "remove_invalid_values": {"remove_invalid_values": True},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": [3, 1.5]},
    "suppress_tokens": {"suppress_tokens": list(range(40, 90))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(3, 90))},
    "several": {
        "repetition_penalty": 1.1,
        "min_new_tokens": 5,
        "suppress_tokens": [7, 8],
        "no_repeat_ngram_size": 3,
    },
}
PROMPTS = tiny.prompts(50, 1)


def stock_text(model: str, prompt: list[int], **settings) -> list[int]:
    """Transformers' own greedy text under a generation_config."""
    hf = tiny.eager(model)
    hf.generation_config = GenerationConfig(pad_token_id=0, **settings)
    try:
        return hf.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)[
            0, len(prompt) :
        ].tolist()
    finally:
        hf.generation_config = GenerationConfig(pad_token_id=0)


def ruled(model: str, **settings) -> LM:
    """A model of its own with these settings."""
    hf = tiny.stock(model)
    hf.generation_config = GenerationConfig(pad_token_id=0, **settings)
    return LM(hf, model)


@cache
def free(model: str, place: int) -> list[int]:
    return stock_text(model, PROMPTS[place])


def settings(case: str, model: str, place: int) -> dict:
    """The case's, made to bear on this model's own text: it has end tokens in the middle, or says
    the bad words.
    """
    text = free(model, place)
    found = {"eos_token_id": [94, 95], **CASES[case]}
    if case in ("min_length", "min_new_tokens", "several"):
        found["eos_token_id"] = sorted({text[3], text[6]})
    if case == "bad_words_ids":
        found["bad_words_ids"] = [[text[2]], text[4:6], text[8:11]]
    return found


def test_every_rule_has_a_case():
    assert APPLIED.keys() <= {name for case in CASES.values() for name in case}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", [pytest.param("llama", marks=pytest.mark.weekly), LOOPS])
def test_greedy_text_is_that_of_generate(model, case):
    """Under the same generation_config, by plain decoding and by methods that draft chains and
    trees.
    """
    for place, prompt in enumerate(PROMPTS):
        given = settings(case, model, place)
        want = stock_text(model, prompt, **given)
        lm = ruled(model, **given)
        assert generate(lm, [prompt], max_new_tokens=NEW) == [want]
        for method in ("lookup", "suffix", "vegas", "vegas tree"):
            assert generate(lm, [prompt], BUILD[method](lm), max_new_tokens=NEW) == [want]


@pytest.mark.full
def test_the_cases_change_the_text():
    changed = set()
    for case in CASES:
        for place, prompt in enumerate(PROMPTS):
            given = settings(case, LOOPS, place)
            alone = {"eos_token_id": given["eos_token_id"]}
            if stock_text(LOOPS, prompt, **given) != stock_text(LOOPS, prompt, **alone):
                changed.add(case)
    assert CASES.keys() - changed == {"remove_invalid_values"}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(Sampler(temperature=1.0), marks=pytest.mark.weekly),
        Sampler(0.9, top_p=0.9, penalty=1.2, window=8),
    ],
    ids=str,
)
def test_methods_say_what_plain_decoding_says(case, sampler):
    """Sampled, rows of unequal length, some ended early."""
    prompts = tiny.prompts(50, 9, 31)
    lm = ruled("llama", eos_token_id=[5, 9, 20, 33], **CASES[case])
    options = {"max_new_tokens": NEW, "sampler": sampler, "seed": SEED}
    want = generate(lm, prompts, **options)
    accepted = 0
    for method in (
        "lookup",
        "suffix",
        "vegas",
        "vegas tree",
        "full view",
        "budgetdraft tree, then lookup",
        "triforce",
    ):
        stats = Stats()
        assert generate(lm, prompts, BUILD[method](lm), stats=stats, **options) == want
        accepted += sum(stats.accepted)
    assert accepted > 0
    served = {
        f.index: f.tokens
        for f in serve(lm, prompts, BUILD["lookup"](lm), batch=2, slots=128, **options)
    }
    assert [served[i] for i in range(3)] == want


def test_a_draft_of_the_whole_context_knows_the_rules():
    """Drafters draw from the law that verification draws from."""
    settings = {k: v for name in ("several", "sequence_bias") for k, v in CASES[name].items()}
    lm = ruled("llama", **settings)
    stats = Stats()
    rows = generate(
        lm, tiny.prompts(50), BUILD["full view"](lm), max_new_tokens=21, stats=stats, seed=SEED
    )
    assert len(rows[0]) == 21
    assert stats.mean_acceptance_length == 4


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_the_law_is_transformers_with_rules(case):
    """The scores that `generate` samples from, step by step."""
    torch.manual_seed(1)
    for prompt in PROMPTS:
        settings = {"eos_token_id": [94, 95], **CASES[case]}
        sampling = {"do_sample": True, "temperature": 0.8, "top_k": 0, "top_p": 0.9, "min_p": 0.02}
        logits, scores, tokens = transformers_law({**settings, **sampling}, prompt)
        rules = ruled("llama", **settings).rules()
        seqs = sequences([prompt], Sampler(0.8, top_p=0.9, min_p=0.02, rules=rules))
        seqs.eos = [(94, 95)]
        seqs.limit = torch.tensor([12])
        found = seqs.sampler.processed(
            logits[None], Tree.chain(torch.tensor([prompt[-1:] + tokens[:-1]])), seqs
        )
        assert torch.equal(found[0, : len(scores)], scores)


@given(
    trees(rows=2),
    st.lists(st.integers(0, 95), min_size=1, max_size=9),
    st.sampled_from(sorted(CASES)),
    st.data(),
)
def test_each_node_follows_its_own_path(tree, prompt, case, data):
    """Against the definition: spell the node's path out and give it to Transformers' processors."""
    prompts = [[*prompt, int(tree.tokens[0, 0])], [*prompt[:1], int(tree.tokens[1, 0])]]
    rules = ruled_config(CASES[case])
    seqs = sequences(prompts, Sampler(rules=rules))
    seqs.eos = ends = data.draw(
        st.sampled_from([[(3, 90), (3, 90)], [(3, 90), ()], [(7,), (3, 90)]])
    )
    logits = torch.randn(2, tree.size, 96, generator=torch.Generator().manual_seed(0))
    start = data.draw(st.integers(0, tree.size - 1))
    found = seqs.sampler.processed(logits[:, start:], tree, seqs, start)
    for b, text in enumerate(prompts):
        parent = tree.parent[b].tolist()
        for node in range(start, tree.size):
            if parent[node] == PAD:
                continue
            ids = torch.tensor([text + tree.tokens[b, ancestors(parent, node)[1:]].tolist()])
            want = logits[b, node][None]
            for process in chain(
                rules.settings, ends[b], len(text), len(text) + 8, 96, torch.device("cpu")
            ):
                want = process(ids, want)
            assert torch.equal(found[b, node - start], want[0])


def ruled_config(settings: dict) -> Rules:
    return Rules.of(GenerationConfig(**settings), 96)


def test_bare_is_not_said_of_a_model_with_rules():
    """The short ways to draw know the temperature alone."""
    lm = ruled("llama", suppress_tokens=[3])
    assert Sampler(0.7).bare and Sampler(0.7).under(Rules()).bare
    assert not Sampler(0.7).under(lm.rules()).bare


def test_the_users_own_rules_come_first():
    """Rules() is none; those of another model can be given too."""
    lm = ruled("llama", suppress_tokens=list(range(40, 90)))
    plain = ruled("llama")
    prompts = tiny.prompts(50)
    options = {"max_new_tokens": NEW}
    free = generate(plain, prompts, **options)
    assert generate(lm, prompts, sampler=Sampler(rules=Rules()), **options) == free
    assert generate(lm, prompts, **options) != free
    assert generate(plain, prompts, sampler=Sampler(rules=lm.rules()), **options) == generate(
        lm, prompts, **options
    )
    assert DecodeSession(lm, prompts, 4).sampler.rules == lm.rules()


def test_sampling_settings_are_the_users():
    """Greedy is greedy though the model's own settings sample; neither its top-k nor its length is
    taken over.
    """
    settings = {
        "do_sample": True,
        "temperature": 0.3,
        "top_k": 2,
        "top_p": 0.5,
        "max_length": 3,
        "max_new_tokens": 2,
    }
    lm = ruled("llama", **settings)
    plain = ruled("llama")
    for sampler in (Sampler(), Sampler(temperature=1.0)):
        options = {"max_new_tokens": NEW, "sampler": sampler}
        assert generate(lm, tiny.prompts(50), **options) == generate(
            plain, tiny.prompts(50), **options
        )


REFUSED = {
    "num_beams": 4,
    "guidance_scale": 1.5,
    "penalty_alpha": 0.6,
    "stop_strings": ["\n"],
    "max_time": 2.0,
    "token_healing": True,
    "encoder_repetition_penalty": 1.2,
    "encoder_no_repeat_ngram_size": 2,
    "force_words_ids": [[5]],
    "constraints": [[5]],
    "dola_layers": "low",
    "watermarking_config": {"bias": 2.5},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_applied_is_refused_by_name(name):
    lm = LM(tiny.stock("llama"))
    setattr(lm.hf.generation_config, name, REFUSED[name])
    runs = [
        lambda: next(stream(lm, [[3]])),
        lambda: next(serve(lm, [[3]], slots=300)),
        lambda: DecodeSession(lm, [[3]], 2),
    ]
    for run in runs:
        with pytest.raises(InputError, match=f"sets {name} to .*remove {name} from") as error:
            run()
        assert "\n" not in str(error.value)


BAD = {
    "repetition_penalty": [-1.0, "high", float("nan"), 2],
    "bad_words_ids": [5, [[99]], [["x"]]],
    "sequence_bias": [[[[5], "x"]], 7],
    "suppress_tokens": ["all"],
    "forced_eos_token_id": [1000],
    "min_new_tokens": ["x", 2.5],
    "exponential_decay_length_penalty": [3],
    "no_repeat_ngram_size": [2.5],
}


@pytest.mark.parametrize("name", BAD)
def test_values_that_transformers_refuses_are_one_line(name):
    for value in BAD[name]:
        lm = LM(tiny.stock("llama"))
        lm.hf.generation_config.eos_token_id = 2
        setattr(lm.hf.generation_config, name, value)
        with pytest.raises(InputError, match=f"Transformers refuses a value of {name} in") as error:
            lm.rules()
        assert "\n" not in str(error.value)


# End tokens ---------------------------------------------------------------------------------------


def test_the_models_end_tokens_are_the_default():
    """In all ways to decode; `eos=()` goes on past them, other ones take their place."""
    prompts = tiny.prompts(50, 31)
    free = generate(ruled("llama"), prompts, max_new_tokens=NEW)
    end = free[0][5]
    lm = ruled("llama", eos_token_id=end)
    want = [r[: r.index(end) + 1] if end in r else r for r in free]
    assert lm.end_tokens == (end,) and len(want[0]) <= 6
    assert generate(lm, prompts, max_new_tokens=NEW) == want
    assert generate(lm, prompts, max_new_tokens=NEW, eos=()) == free
    other = free[0][2]
    assert (
        generate(lm, prompts, max_new_tokens=NEW, eos=(other,))[0]
        == free[0][: free[0].index(other) + 1]
    )
    told = [t for step in stream(lm, prompts[:1], max_new_tokens=NEW) for t in step.tokens[0]]
    assert told == want[0]
    assert DecodeSession(lm, prompts, NEW).rows() == want
    assert DecodeSession(lm, prompts, NEW, eos=()).rows() == free
    found = {f.index: f.tokens for f in serve(lm, prompts, slots=128, max_new_tokens=NEW)}
    assert [found[0], found[1]] == want


def test_the_readme_example_ends(tmp_path, place):
    """load() knows the model's end tokens and its tokenizer's."""
    target, tokenizer = load(str(place / "tiny"), "float32")
    assert target.end_tokens == tuple(sorted({2, tokenizer.eos_token_id}))
    prompt = tokenizer("naïve draft tree")["input_ids"]
    whole = generate(target, [prompt], max_new_tokens=40, sampler=Sampler(1.0), seed=1, eos=())[0]
    ended = LM(target.hf, end_tokens=(whole[7],))
    text = generate(ended, [prompt], max_new_tokens=40, sampler=Sampler(1.0), seed=1)[0]
    assert text == whole[: whole.index(whole[7]) + 1]


def test_odd_end_tokens_are_refused():
    for odd in ("x", [1, None, "y"], [[1]], 1.5, True):
        with pytest.raises(InputError, match="give token ids"):
            end_tokens(SimpleNamespace(eos_token_id=odd))
    assert end_tokens(None) == () and end_tokens(SimpleNamespace(eos_token_id=[7, 5])) == (5, 7)


@pytest.mark.full
def test_the_command_line_applies_and_refuses(cli, place, record):
    """What lies in generation_config.json; the record says which rules were applied."""
    words = ("--prompt-file", "a.txt")
    file = place / "tiny" / "generation_config.json"
    before = file.read_text()
    free = record(*words)
    try:
        suppressed = sorted(set(free["token_ids"][:9]))
        file.write_text(
            json.dumps({"suppress_tokens": suppressed, "do_sample": True, "temperature": 0.4})
        )
        for method in ("plain", "lookup", "vegas"):
            found = record(*words, "--method", method, "--compare")
            assert not set(found["token_ids"]) & set(suppressed) and found["equal"]
            assert found["sampler"]["temperature"] == 0
            assert found["sampler"]["rules"]["settings"] == [["suppress_tokens", suppressed]]
        file.write_text(json.dumps({"num_beams": 3}))
        status, _, err = cli("generate", "hi", "-m", "tiny")
        assert status == 2 and len(err.splitlines()) == 1 and "num_beams" in err
    finally:
        file.write_text(before)


@pytest.mark.parametrize("penalty", [None, 1.0, 1.2, 1.3])
def test_a_penalty_that_is_given_replaces_the_models(penalty):
    """1 turns it off; without one, the model's applies."""
    lm = ruled(LOOPS, repetition_penalty=1.3)
    want = stock_text(LOOPS, PROMPTS[0], repetition_penalty=1.3 if penalty is None else penalty)
    sampler = Sampler(penalty=penalty, window=1 << 31)
    for method in (None, BUILD["lookup"](lm)):
        assert generate(lm, PROMPTS[:1], method, max_new_tokens=NEW, sampler=sampler, eos=()) == [
            want
        ]
    assert sampler.under(lm.rules()).described["penalty"] == (penalty or 1.0)


def test_a_penalty_that_is_applied_twice_would_be_noticed(monkeypatch):
    monkeypatch.setattr(Rules, "without", lambda self, name: self)
    with pytest.raises(AssertionError):
        test_a_penalty_that_is_given_replaces_the_models(1.3)
