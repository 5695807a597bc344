"""Recurrent layers of every model that has them: a tree's nodes say what Transformers says of their
paths.
"""

from __future__ import annotations

from functools import cache

import pytest
import tiny_models
import torch
from support.feature_models import models_with
from support.listed import full, weekly
from transformers import CONFIG_MAPPING

from longdraft import InputError, Sampler, build, generate
from longdraft.backends.features import layer_numbers
from longdraft.backends.features.scans.recurrences import Additive, Convolution
from longdraft.backends.features.scans.recurrent_layers import Scans, scans_in
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.drafters.glide.block import Host
from longdraft.drafters.kinds import KINDS as WEIGHTS
from longdraft.drafters.mtp.block import random_mtp
from longdraft.models.lm import LM
from longdraft.models.support import probe
from longdraft.views.retrieval import last_layer

DAILY = ("nemotron_h", "zamba", "minimax", "zaya")
KINDS = models_with(Scans)
LIKE_OTHERS = (  # recurrences of others of these kinds: tested weekly
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "olmo_hybrid",
    "bamba",
    "zamba2",
    "jamba",
    "lfm2_moe",
    "lfm3",
    "mamba2",
    "falcon_mamba",
)
TIERS = dict.fromkeys(DAILY, ()) | dict.fromkeys(LIKE_OTHERS, weekly)
each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=TIERS.get(k, full)) for k in KINDS if k in CONFIG_MAPPING]
)
ROUNDING = 1e-3  # of the largest logit


@cache
def stock(kind: str):
    hf = tiny_models.build(tiny_models.config(kind))
    hf.set_attn_implementation("eager")
    return hf


@cache
def target(kind: str) -> LM:
    return LM(tiny_models.build(tiny_models.config(kind)), kind)


@torch.inference_mode()
def logits_of(kind: str, tokens: list[int]) -> torch.Tensor:
    """[N,V] what Transformers says of these tokens."""
    return stock(kind)(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def branches(roots: list[int], shift: int = 0) -> Tree:
    """Two rows: a root with two branches, of which the first has another."""
    tokens = [
        [[11, 12, 13], [11, 14, 15], [16, 17, 18]],
        [[21, 22, 23], [24, 25, 26], [24, 27, 28]],
    ]
    paths = torch.tensor(tokens) + shift
    return Tree.root(torch.tensor(roots)).add_paths(torch.zeros_like(paths[..., 0]), paths)


@torch.inference_mode()
def error(kind: str) -> float:
    """The largest difference of a node from its path as a text of its own, over two trees one after
    the other, between which a path is accepted; as a share of the largest logit.
    """
    lm = target(kind)
    texts = [tiny_models.prompt(40), tiny_models.prompt(17)]
    worst = 0.0
    cache = lm.new_cache(2, 80)
    for b, text in enumerate(texts):
        lm.prefill(text[:9], cache.row(b))
        lm.prefill(text[9:], cache.row(b))
    for turn, roots in enumerate(([4, 5], [6, 7])):
        tree = branches(roots, turn)
        ours = lm(tree, cache)
        for b, text in enumerate(texts):
            for leaf in set(range(tree.size)) - set(tree.parent[b].tolist()):
                path = tree.mask[b, leaf].nonzero()[:, 0]
                right = logits_of(kind, text + tree.tokens[b, path].tolist())[-len(path) :]
                worst = max(worst, float((ours[b, path] - right).abs().max() / right.abs().max()))
        ends = torch.tensor([tree.size - 1, 1])
        paths = [tree.mask[b, end].nonzero()[:, 0].tolist() for b, end in enumerate(ends.tolist())]
        counts = [len(p) for p in paths]
        most = max(map(len, paths))
        cache.keep(
            torch.tensor([p + p[-1:] * (most - len(p)) for p in paths]), torch.tensor(counts)
        )
        texts = [
            text + tree.tokens[b, path].tolist()
            for b, (text, path) in enumerate(zip(texts, paths, strict=True))
        ]
    return worst


@pytest.mark.full
@each_kind
def test_a_node_of_a_tree_says_what_its_path_says_alone(kind):
    assert target(kind).architecture.scans
    assert error(kind) < ROUNDING


@each_kind
def test_the_comparison_at_loading_accepts_it(kind):
    probe(tiny_models.build(tiny_models.config(kind)))


# Planted faults -----------------------------------------------------------------------------------


def scan_without_decay(self, scan, inputs, queries, in_chunks=None, right=RecurrentPass.scan):
    return right(self, scan, (torch.zeros_like(inputs[0]), *inputs[1:]), queries, in_chunks)


def along_from_nothing(self, state, inputs, queries, order, right=Additive.along):
    return right(self, None, inputs, queries, order)


def left_context_of_zeros(self, state, x):
    return x.new_zeros(self.size - 1, x.shape[1])


def windows_by_slot(self, x, size, right=RecurrentPass.windows):
    """What the node beside a node left, in place of what its parent left."""
    read = right(self, x, size)
    return torch.cat([read[:, :1], torch.stack([x[:, :-1], x[:, 1:]], 2)], 1) if size == 2 else read


FAULTS = {
    "a slope that is ignored": ("minimax", RecurrentPass, "scan", scan_without_decay),
    "a state that is forgotten": ("recurrent_gemma", Additive, "along", along_from_nothing),
    "a convolution without its left context": (
        "recurrent_gemma",
        Convolution,
        "before",
        left_context_of_zeros,
    ),
    "values of the node beside": ("zaya", RecurrentPass, "windows", windows_by_slot),
    "a shared block's other layer": ("zamba", layer_numbers, "number_of", lambda module: 2),
}
# the kind takes long to build
LATE = {
    "a state that is forgotten",
    "a convolution without its left context",
}


@pytest.mark.full
@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=full if f in LATE else ()) for f in FAULTS]
)
@pytest.mark.whole
def test_a_fault_is_noticed(fault, monkeypatch):
    kind, owner, name, broken = FAULTS[fault]
    target(kind)
    monkeypatch.setattr(owner, name, broken)
    assert error(kind) > ROUNDING


def test_a_layer_that_does_not_scan_in_a_pass_is_refused(monkeypatch):
    lm = target("minimax")
    monkeypatch.setattr(RecurrentPass, "_next", lambda self: 0)
    with pytest.raises(InputError, match="2 of its 2 recurrent layers did not scan"):
        lm.prefill([3, 4, 5], lm.new_cache(1, 8))


# Drafters that copy or read a layer ---------------------------------------------------------------


def test_drafters_read_the_last_layer_that_has_keys():
    assert target("nemotron_h").architecture.with_keys == [last_layer(target("nemotron_h"))] == [2]
    with pytest.raises(InputError, match="rotates keys in a way"):  # it does not rotate them
        Host(target("nemotron_h"))


@pytest.mark.parametrize(
    "kind", ["nemotron_h", *(pytest.param(k, marks=full) for k in ("bamba", "jamba", "lfm2_moe"))]
)
def test_mtp_layers_are_attention_layers_of_a_hybrid(kind):
    lm = target(kind)
    prompts = [tiny_models.prompt(30), tiny_models.prompt(11)]
    assert not scans_in(random_mtp(lm, 1))
    drafter = build("mtp", lm, WEIGHTS["mtp"].random(lm, 1), widths=[3], sink=3, window=20)
    options = {"max_new_tokens": 8, "sampler": Sampler(), "eos": ()}
    assert generate(lm, prompts, drafter, **options) == generate(lm, prompts, **options)


@full
@pytest.mark.parametrize(
    ("kind", "reason"), [("falcon_h1", "have a state"), ("mamba", "no layers with attention")]
)
def test_mtp_refuses_layers_with_a_state(kind, reason):
    with pytest.raises(InputError, match=reason):
        random_mtp(target(kind), 1)


@full
@torch.inference_mode()
def test_the_head_has_the_factors_that_its_decoder_keeps():
    lm = target("falcon_h1")
    captured = Captures(CaptureSpec(hidden=(lm.depth,)))
    logits = lm(
        Tree.chain(torch.tensor([tiny_models.prompt(9)])), lm.new_cache(1, 16), captured=captured
    )
    assert torch.allclose(lm.head(captured.states[lm.depth]), logits, rtol=1e-4, atol=1e-4)


def in_chunks_error(kind: str, monkeypatch) -> float:
    """The largest difference of a prompt from Transformers', where no kernel reads it token after
    token.
    """
    monkeypatch.setattr("longdraft.ops.recurrence.has_kernel", lambda *tensors: False)
    lm = target(kind)
    prompt = tiny_models.prompt(150)
    cache = lm.new_cache(1, 160)
    with torch.inference_mode(), cache.appending(150):
        said = lm.eager.forward(Tree.chain(torch.tensor([prompt])), cache, 0, None, Captures())[0]
    want = logits_of(kind, prompt)
    return float((said - want).abs().max() / want.abs().max())


@pytest.mark.parametrize(
    "kind", ["qwen3_5_text", "nemotron_h", pytest.param("kimi_linear", marks=full)]
)
def test_prompts_in_chunks_say_what_transformers_says(kind, monkeypatch):
    assert in_chunks_error(kind, monkeypatch) < ROUNDING


@pytest.mark.parametrize("kind", ["qwen3_5_text", "nemotron_h"])
def test_a_chunk_that_forgets_the_one_before_would_be_noticed(kind, monkeypatch):
    scan = RecurrentPass.scan

    def forgetful(self, kind, inputs, queries, in_chunks=None):
        lost = in_chunks and (lambda b, nodes, state: in_chunks(b, nodes, None))
        return scan(self, kind, inputs, queries, lost)

    monkeypatch.setattr(RecurrentPass, "scan", forgetful)
    assert in_chunks_error(kind, monkeypatch) > ROUNDING
