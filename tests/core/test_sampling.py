"""The sampler: one law per node, from its own path alone, as Transformers' processors define it."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import toy_sequences
from support.structure import ancestors, branching
from test_tree_cache import trees
from transformers import GenerationConfig
from transformers.generation import utils
from transformers.generation.logits_process import TopPLogitsWarper

from longdraft import InputError, Sampler
from longdraft.core import processors, rules
from longdraft.core.cache import KVCache
from longdraft.core.nucleus import nucleus
from longdraft.core.sequences import Sequences
from longdraft.core.tree import PAD, Tree
from longdraft.ops import Warpers, draw, native


def sequences(prompts: list[list[int]], sampler: Sampler) -> Sequences:
    return Sequences.of(prompts, 8, KVCache(len(prompts), 1), sampler, seed=5)


@given(
    trees(rows=2),
    st.lists(st.integers(0, 95), min_size=1, max_size=9),
    st.integers(1, 8),
    st.data(),
)
def test_the_penalty_counts_each_nodes_own_last_tokens(tree, prompt, window, data):
    """Against the definition: spell the node's path out, look at its last `window` tokens."""
    prompts = [[*prompt, int(tree.tokens[0, 0])], [*prompt[:1], int(tree.tokens[1, 0])]]
    sampler = Sampler(penalty=1.5, window=window)
    logits = torch.randn(2, tree.size, 96, generator=torch.Generator().manual_seed(0))
    start = data.draw(st.integers(0, tree.size - 1))
    found = sampler.processed(logits[:, start:], tree, sequences(prompts, sampler), start)
    for b in range(2):
        parent = tree.parent[b].tolist()
        for node in range(start, tree.size):
            if parent[node] == PAD:
                continue
            said = prompts[b] + tree.tokens[b, ancestors(parent, node)[1:]].tolist()
            want = logits[b, node].clone()
            for token in set(said[-window:]):
                want[token] = want[token] / 1.5 if want[token] > 0 else want[token] * 1.5
            assert torch.equal(found[b, node - start], want)


MIXIN: Any = utils.GenerationMixin
LAWS = {
    "temperature": Sampler(temperature=0.6),
    "top-k": Sampler(temperature=1.0, top_k=5),
    "top-p": Sampler(temperature=0.8, top_p=0.6),
    "min-p": Sampler(temperature=1.2, min_p=0.1),
    "eta": Sampler(temperature=1.0, eta=0.02),
    "all": Sampler(temperature=0.9, top_k=30, top_p=0.9, min_p=0.02, eta=0.001),
    "top-p, then min-p": Sampler(temperature=1.0, top_p=0.7, min_p=0.2),
    "top-k, then eta": Sampler(temperature=1.5, top_k=8, eta=0.3),
    "a whole number": Sampler(temperature=2, top_p=1, top_k=7),
}


def transformers_law(settings: dict, prompt: list[int], new: int = 12, model: str = "llama"):
    """Of `generate` itself: the logits [new,V] of each step, what its processors made of them, and
    its new tokens.
    """
    hf = tiny.eager(model)
    config = GenerationConfig(max_new_tokens=new, pad_token_id=0, use_cache=False, **settings)
    told = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True}
    out = hf.generate(torch.tensor([prompt]), generation_config=config, **told)
    return torch.cat(out.logits), torch.cat(out.scores), out.sequences[0, len(prompt) :].tolist()


@pytest.mark.parametrize("sampler", LAWS.values(), ids=LAWS)
def test_the_law_is_transformers(sampler):
    """What `generate` samples from, step by step, is the law of the same logits here, along a chain
    of its tokens.
    """
    torch.manual_seed(0)
    prompt = tiny.prompts(30)[0]
    settings = {
        "temperature": float(sampler.temperature),
        "top_k": sampler.top_k,
        "top_p": float(sampler.top_p),
    }
    settings |= {
        "min_p": sampler.min_p or None,
        "eta_cutoff": sampler.eta or None,
        "do_sample": True,
    }
    logits, scores, tokens = transformers_law(settings, prompt)
    seqs = sequences([prompt], sampler)
    found = sampler.processed(
        logits[None], Tree.chain(torch.tensor([prompt[-1:] + tokens[:-1]])), seqs
    )
    assert torch.equal(found[0], scores)
    assert sampler.temperature == 0.6 or (scores == float("-inf")).any()


def test_the_cases_tell_one_order_from_another():
    """Min-p and eta before top-k and top-p, as other programs have it, give another law."""
    logits = torch.randn(200, 96, generator=torch.Generator().manual_seed(1)) * 3
    for name in ("top-p, then min-p", "top-k, then eta"):
        steps = processors.chain(LAWS[name]._settings, (), 1, 1, 96, torch.device("cpu"))
        right = logits
        wrong = logits
        ids = torch.zeros(200, 1, dtype=torch.long)
        for one, other in zip(steps, reversed(steps), strict=True):
            right = one(ids, right)
            wrong = other(ids, wrong)
        assert not torch.equal(right.isinf(), wrong.isinf())


def test_what_is_used_of_transformers_has_not_changed():
    """The chain comes from a private method. If this fails, look at processors.chain before
    widening the version.
    """
    asked = inspect.signature(MIXIN._get_logits_processor).parameters
    assert {"generation_config", "input_ids_seq_length", "device"} <= asked.keys()
    needed = [p.name for p in asked.values() if p.default is p.empty and p.name != "self"]
    assert needed == ["generation_config"], (
        "GenerationMixin._get_logits_processor asks for more than it did"
    )
    source = inspect.getsource(MIXIN._get_logits_processor)
    used = set(re.findall(r"self\.([\w.]+)", source))
    used -= {"config.get_text_config"}  # for watermarks, which rules.py refuses
    assert used == {"config.is_encoder_decoder", "_merge_criteria_processor_list"}, (
        "it reads more of the model"
    )
    private = set(re.findall(r"generation_config\.(_\w+)", source)) - {"_from_model_config"}
    assert private == {"_eos_token_tensor"}, "it reads another private field of the settings"
    made = processors.chain(
        (("do_sample", True), ("temperature", 0.5), ("top_k", 3)), (), 1, 1, 96, torch.device("cpu")
    )
    assert [type(p).__name__ for p in made] == ["TemperatureLogitsWarper", "TopKLogitsWarper"]


def test_every_setting_of_a_generation_config_has_its_place():
    """A setting that a later Transformers adds is applied, refused or known to be no part of a
    model's law.
    """
    source = inspect.getsource(MIXIN._get_logits_processor)
    read = set(re.findall(r"generation_config\.([a-z]\w*)", source)) - {"max_length", "num_beams"}
    # the last three are not offered
    warpers = {
        *processors.WARPERS,
        "top_h",
        "typical_p",
        "epsilon_cutoff",
    }
    assert read - warpers - rules.APPLIED.keys() - rules.REFUSED.keys() == {
        "use_cache",
        "renormalize_logits",
    }


def test_the_chain_is_built_once(monkeypatch):
    made = []
    real = MIXIN._get_logits_processor
    monkeypatch.setattr(
        processors._Host,
        "_get_logits_processor",
        lambda self, *a, **k: made.append(1) or real(self, *a, **k),
    )
    sampler = Sampler(temperature=0.8125, top_p=0.6)  # of no other test
    seqs = sequences([[3], [4, 5], [6]], sampler)
    for _ in range(5):
        sampler.processed(torch.zeros(3, 7, 96), branching(3), seqs)
    assert len(made) == 1


def test_greedy_ignores_everything_but_the_penalty():
    logits = torch.randn(1, 7, 96, generator=torch.Generator().manual_seed(1))
    seqs = sequences([[3]], Sampler())
    for sampler in (Sampler(), Sampler(top_k=2, top_p=0.1, min_p=0.9)):
        assert torch.equal(sampler.scores(logits, branching(1), seqs), logits)


def test_a_draw_depends_on_position_and_path_alone():
    """The same prefix at the same position draws the same token, as a root or deep in a tree."""
    sampler = Sampler(temperature=1.0)
    logits = torch.randn(96, generator=torch.Generator().manual_seed(1))
    prompt = [4, 9, 30]
    tree = Tree.chain(torch.tensor([[30, 8, 7]]))
    deep = sampler.scores(logits.expand(1, 3, 96), tree, sequences([prompt], sampler))
    for i in range(3):
        text = prompt + [8, 7][:i]
        root = sampler.scores(
            logits.expand(1, 1, 96), Tree.root(torch.tensor([text[-1]])), sequences([text], sampler)
        )
        assert torch.equal(root[0, 0], deep[0, i])


def test_scores_of_later_nodes_are_those_of_the_whole_tree():
    sampler = Sampler(temperature=0.7, top_p=0.9, penalty=1.3, window=4)
    tree = branching(2)
    seqs = sequences([[5, 6, 7], [8]], sampler)
    logits = torch.randn(2, 7, 96, generator=torch.Generator().manual_seed(2))
    whole = sampler.scores(logits, tree, seqs)
    for start in range(7):
        assert torch.equal(sampler.scores(logits[:, start:], tree, seqs, start), whole[:, start:])


def test_another_seed_draws_otherwise():
    sampler = Sampler(temperature=1.0)
    seqs = toy_sequences(64, 4, Sampler(temperature=1.0))
    tree = Tree.root(seqs.last)
    logits = torch.zeros(64, 1, 96)
    own = sampler.scores(logits, tree, seqs)
    assert torch.equal(own, sampler.scores(logits, tree, seqs, seed=seqs.seed))
    other = sampler.scores(logits, tree, seqs, seed=seqs.seed.roll(-1))
    assert torch.equal(own[1:], other[:-1])  # the next row's own
    assert int((own.argmax(-1) == other.argmax(-1)).sum()) < 10


BAD = {
    "temperature": [-0.1, 1e9, float("nan"), "hot"],
    "top_k": [-2, 1.5, True],
    "top_p": [0, -0.5, 1.5],
    "min_p": [-0.1, 1.1],
    "eta": [-0.1, 2],
    "penalty": [0, -1, float("inf")],
    "window": [0, -3],
    "frequency": [-2.1, 3, float("nan")],
    "presence": [-2.1, 3],
    "bias": [((5, 101.0),), ((5, 1.0), (6, float("nan"))), ((-1, 1.0),)],
}


@pytest.mark.parametrize(
    "name", [f.name for f in fields(Sampler) if f.name not in ("rules", "constraint")]
)
def test_values_out_of_range_are_refused_in_one_line(name):
    for value in BAD[name]:
        with pytest.raises(
            InputError, match=rf"{name.replace('_', '-')} (of token \d+ )?(is|has) .*: give "
        ) as error:
            Sampler(**{name: value})
        assert "\n" not in str(error.value)


# Ties and extremes --------------------------------------------------------------------------------


def kept_by_draws(logits: torch.Tensor, top_p: float) -> set[int]:
    """The tokens of 4,000 draws from logits [V]."""
    many = logits.expand(1, 4000, -1).contiguous()
    drawn = draw(many, Warpers(1.0, 0, top_p, 0.0), torch.tensor([3]), torch.arange(4000)[None])
    assert drawn is not None
    return set(drawn.view(-1).tolist())


@pytest.mark.parametrize("vocab", [8, 70])
@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.9])
def test_top_p_keeps_the_lowest_ids_of_equal_logits(vocab, top_p):
    """As many tokens as Transformers keeps, of which `torch.sort` chooses the ones with equal
    logits.
    """
    for seed in range(5):
        logits = torch.randint(
            0, 4, (vocab,), generator=torch.Generator().manual_seed(seed)
        ).float()
        found = nucleus(logits[None], top_p)[0].isfinite().nonzero()[:, 0].tolist()
        stock = TopPLogitsWarper(top_p)(torch.zeros(1, 1, dtype=torch.long), logits[None].clone())[
            0
        ].isfinite()
        order = sorted(range(vocab), key=lambda token, x=logits: (-float(x[token]), token))
        assert found == sorted(order[: int(stock.sum())])
        if native.library() is not None:
            assert kept_by_draws(logits, top_p) <= set(found)


def test_the_order_of_topk_would_be_noticed(monkeypatch):
    def highest_ids(logits, kept):
        return (
            len(logits) - 1 - logits.flip(0).sort(descending=True, stable=True).indices[: len(kept)]
        )

    monkeypatch.setattr("longdraft.core.nucleus._first", highest_ids)
    with pytest.raises(AssertionError):
        test_top_p_keeps_the_lowest_ids_of_equal_logits(70, 0.6)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-300, 1e-40, 9e-31])
def test_a_temperature_near_0_is_greedy(temperature):
    """The division would overflow."""
    assert (
        Sampler(temperature, top_k=40) == Sampler(0.0, top_k=40) and Sampler(1e-30).temperature > 0
    )
    seqs = sequences([[5, 7]], Sampler(1e-30, top_k=40))
    logits = torch.linspace(1, 21, 64)[None, None].contiguous()
    assert seqs.sampler.draw(logits, Tree.root(seqs.last), seqs).tolist() == [[63]]


@pytest.mark.full
@given(trees(rows=2), st.lists(st.integers(0, 95), min_size=1, max_size=9), st.data())
def test_frequency_and_presence_count_each_nodes_own_generated_tokens(tree, text, data):
    """Against the definition: the text after the prompt, and the node's path below the root."""
    sampler = Sampler(frequency=0.4, presence=0.3)
    seqs = sequences([[1, 2, 3, *text, int(tree.tokens[b, 0])] for b in range(2)], sampler)
    seqs.prompt[:] = torch.tensor([3, data.draw(st.integers(1, len(text) + 4))])
    logits = torch.randn(2, tree.size, 96, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    start = data.draw(st.integers(0, tree.size - 1))
    found = sampler.processed(logits[:, start:], tree, seqs, start)
    for b in range(2):
        generated = seqs.tokens[b, int(seqs.prompt[b]) : int(seqs.length[b])].tolist()
        parent = tree.parent[b].tolist()
        for node in (n for n in range(start, tree.size) if parent[n] != PAD):
            below = tree.tokens[b, ancestors(parent, node)[1:]].tolist()
            counts = torch.tensor([float((generated + below).count(v)) for v in range(96)])
            want = logits[b, node] - (0.4 * counts + 0.3 * (counts > 0))
            torch.testing.assert_close(found[b, node - start], want, rtol=0, atol=1e-6)
    assert torch.equal(logits, before)
