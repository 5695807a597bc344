"""Layers that read another layer's keys, layers that differ in heads, and two kinds of attention
beside softmax(qk)v.

Plain decoding is Transformers' own, methods are plain decoding, and the cache holds what is needed
once.
"""

from __future__ import annotations

from inspect import signature

import coverage
import pytest
import tiny_models
import torch
from support import layers, tiny
from support.listed import weekly

from longdraft import Sampler, Session, build, generate
from longdraft.backends import eager
from longdraft.backends.features import biased_keys, differential, shared_keys
from longdraft.core import Captures, CaptureSpec, PromptSpec, Tree
from longdraft.drafters.small_model.objective import BudgetObjective
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import keys_read
from longdraft.models.support import probe
from longdraft.training.frozen import Frozen

QUICK = {name: coverage.METHODS[name] for name in ("vegas-tree", "longspec")}

REFUSED = {"biases": {"longspec"}, "shared": {"mtp"}, "shared-by-many": {"mtp"}, "gemma3n": {"mtp"}}


def own_copies(monkeypatch) -> None:
    """Every layer stores what it attends to, as layers with keys of their own do."""
    monkeypatch.setattr(shared_keys, "sources_of", lambda hf: {})


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "methods"), [("shared", QUICK), ("global-heads", {})], ids=["shared", "global-heads"]
)
def test_methods(name, methods):
    record = coverage.decoded(layers.stock(name), methods)
    assert record["class"] == "equal" and record["methods"] == dict.fromkeys(methods, ""), record


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full if name == "shared" else weekly)
        for name in layers.CONFIGS
    ],
)
def test_all_methods(name):
    record = coverage.decoded(layers.stock(name), coverage.METHODS)
    refused = {m for m, why in record["methods"].items() if why.startswith(coverage.REFUSED)}
    assert record["class"] == "equal" and refused == REFUSED.get(name, set()), record


def test_layers_without_keys_store_nothing(monkeypatch):
    lm, cache = prefilled("shared")
    assert lm.sources == {4: 2, 5: 3} and cache.layers == [0, 1, 2, 3]
    own_copies(monkeypatch)
    copied, copies = prefilled("shared")
    assert 6 * sum(map(cache.slot_bytes, cache.layers)) == 4 * sum(
        map(copies.slot_bytes, copies.layers)
    )
    # what is stored once is read by each of its layers
    assert keys_read(lm, cache) == keys_read(copied, copies)


def prefilled(name: str, kv: str | None = None):
    lm = LM(layers.stock(name), kv=kv)
    cache = lm.new_cache(1, 64)
    lm.prefill(tiny_models.prompt(40), cache, chunk=16)
    return lm, cache


def scored_tree(lm: LM, cache) -> tuple[torch.Tensor, Captures]:
    """A tree of five nodes: its logits, and the scores of all of its nodes."""
    tree = Tree.chain(torch.tensor([[7, 8]])).grow(
        torch.tensor([[0, 1, 1]]), torch.tensor([[9, 10, 11]])
    )
    captured = Captures(CaptureSpec(rows="all", of="weights", split=True))
    return lm(tree, cache, captured=captured), captured


def test_a_source_is_read_as_a_copy_of_it_would_be(monkeypatch):
    """Logits are the same bits; its scores are means over the layers that read it."""
    logits, captured = scored_tree(*prefilled("shared-by-many"))
    own_copies(monkeypatch)
    expected, copies = scored_tree(*prefilled("shared-by-many"))
    assert torch.equal(logits, expected)
    assert set(captured.scores) == {1} and set(copies.scores) == {1, 3, 5}
    torch.testing.assert_close(captured.scores[1], sum(copies.scores.values()) / 3)


@pytest.mark.parametrize("name", ["shared", "gemma3n"])
def test_states_of_a_prompt_do_not_depend_on_what_logits_are_wanted(name):
    """Transformers may compute layers without keys for the last nodes alone."""
    lm = LM(layers.stock(name))
    prompt = tiny_models.prompt(20)
    last = lm.config.num_hidden_layers
    spec = CaptureSpec(hidden=tuple(range(last + 1)))
    whole = Captures(spec)
    lm(Tree.chain(torch.tensor([prompt])), lm.new_cache(1, 32), captured=whole)
    states = lm.prefill(prompt, lm.new_cache(1, 32), keep=PromptSpec(spec.hidden, 20))
    for n in spec.hidden:
        assert states[n].shape == (1, 20, lm.config.hidden_size)
        torch.testing.assert_close(states[n], whole.states[n])


def last_logits(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a prompt's last two nodes, where they are asked for alone and where all are."""
    lm = LM(layers.stock(name))
    tree = Tree.chain(torch.tensor([tiny_models.prompt(40)]))
    return lm(tree, lm.new_cache(1, 64), logits=2), lm(tree, lm.new_cache(1, 64))[:, -2:]


@pytest.mark.parametrize("name", ["shared", "gemma3n"])
def test_the_last_queries_alone_read_what_they_read_among_all(name, monkeypatch):
    torch.testing.assert_close(*last_logits(name))
    first_queries(monkeypatch)
    body = LM(layers.stock(name)).architecture.layout.body
    if (
        "logits_to_keep" in signature(body.forward).parameters
    ):  # others, and Transformers 5.17, compute all queries
        with pytest.raises(AssertionError):
            torch.testing.assert_close(*last_logits(name))


def session_texts(name: str, kv: str | None = None) -> tuple[list[list[int]], list[list[int]]]:
    """The texts of requests of a session of two rows, which come and go, and those of plain
    decoding.
    """
    lm = LM(layers.stock(name), kv=kv)
    session = Session(
        lm, build("vegas", lm, **coverage.METHODS["vegas"]), 2, 96, Sampler(temperature=1.0)
    )
    asked = [(40, 9), (17, 3), (30, 12), (25, 5)]
    options = [{"max_new_tokens": new, "seed": n, "eos": ()} for n, new in asked]
    ids = [
        session.submit(tiny_models.prompt(n), **o) for (n, _), o in zip(asked, options, strict=True)
    ]
    texts: dict[int, list[int]] = {}
    while session.running or session.waiting:
        for event in session.step():
            texts.setdefault(event.id, []).extend(event.tokens)
    sampler = Sampler(temperature=1.0)
    alone = [
        generate(lm, [tiny_models.prompt(n)], sampler=sampler, **o)[0]
        for (n, _), o in zip(asked, options, strict=True)
    ]
    return [texts[i] for i in ids], alone


@pytest.mark.full
def test_rows_that_come_and_go():
    texts, alone = session_texts("shared")
    assert texts == alone


@pytest.mark.full
@pytest.mark.parametrize("name", layers.CONFIGS)
@pytest.mark.parametrize("kv", [None, "int8"])
def test_rows_that_come_and_go_everywhere(name, kv):
    texts, alone = session_texts(name, kv)
    assert texts == alone


def test_a_prompt_longer_than_what_the_biases_are_for_is_refused():
    hf = layers.stock("biases")
    limit = biased_keys.unbiased_length(hf)
    lm = LM(hf)
    lm.architecture.find(biased_keys.BiasedKeys).longest = 30
    with pytest.raises(InputError, match="drops keys from 30 tokens on"):
        generate(lm, [tiny_models.prompt(28)], max_new_tokens=4, eos=())
    assert (
        limit == 2048
        and len(generate(lm, [tiny_models.prompt(28)], max_new_tokens=2, eos=())[0]) == 2
    )


def test_training_on_keys_with_biases_is_refused():
    with pytest.raises(InputError, match="caches biases with its keys"):
        BudgetObjective(Frozen(tiny.target("llama")), LM(layers.stock("biases")))


# Planted faults -----------------------------------------------------------------------------------


def wrong_source(monkeypatch) -> None:
    monkeypatch.setattr(shared_keys, "sources_of", lambda hf: {4: 0, 5: 1})


def first_queries(monkeypatch) -> None:
    """Queries of the last nodes read what the first nodes may see."""
    segments = eager.EagerPass.segments

    def wrong(self, layer, b, q):
        whole = self.visible[b]
        rows = q.shape[1]
        self.visible[b] = None if whole is None else whole[:rows]
        out = segments(self, layer, b, q)
        self.visible[b] = whole
        return out

    monkeypatch.setattr(eager.EagerPass, "segments", wrong)


def one_half_twice(monkeypatch) -> None:
    read = differential.Halves.read
    monkeypatch.setattr(
        differential.Halves, "read", lambda self, s: (setattr(self, "call", 0), read(self, s))[1]
    )


def no_biases(monkeypatch) -> None:
    monkeypatch.setattr(biased_keys, "with_biases", lambda q, k, mask, scale: (q, k))


def biases_of_other_heads(monkeypatch) -> None:
    add = biased_keys.with_biases
    monkeypatch.setattr(
        biased_keys, "with_biases", lambda q, k, mask, scale: add(q, k, mask.flip(1), scale)
    )


FAULTS = [
    ("shared", wrong_source),
    ("differential", one_half_twice),
    ("biases", no_biases),
    ("biases", biases_of_other_heads),
]


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_is_a_difference_to_transformers(name, fault, monkeypatch):
    hf = layers.stock(name)
    probe(hf)
    fault(monkeypatch)
    with pytest.raises(InputError, match="differs from Transformers' own"):
        probe(hf)
    assert (
        coverage.decoded(hf, {}).get("why") == "greedy output differs from Transformers' generate"
    )
