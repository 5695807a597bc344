"""No call for a drafter's own layers makes the kernels read or write out of bounds: both sides of
it check sizes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import tiny

from longdraft import Sampler
from longdraft.backends.native.draft_layers import NativeLayers
from longdraft.core.cache import KVCache
from longdraft.core.draft_layers import DraftKeys
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.drafters.eagle.block import random_eagle2, random_eagle3
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.ops import native

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)


class DraftCall:
    """Good native calls of a drafter's own layers (EAGLE-3's, or EAGLE-2's), of two rows, to be
    spoilt: a pass, a chain and a tree.
    """

    def __init__(self, make=random_eagle3) -> None:
        lm = LM(tiny.stock("llama"), "llama")
        self.block = make(lm, 0)
        layers = lm.backend.compile_layers(self.block.compilable())
        assert isinstance(layers, NativeLayers)
        self.layers = layers
        self.step = layers.step
        self.m = layers.model
        self.known = torch.arange(96)
        if make is random_eagle3:
            self.m.head_tokens = self.known.data_ptr()
        self.own = KVCache(2, 24)
        self.own.length[:] = torch.tensor([12, 7])
        places = self.own.pointers(24, [0], 2, 16, torch.float32)
        self.keys = DraftKeys(places, self.own.length, torch.tensor([5, 0]), 2)
        self.places = (native.LayerCache * 1)(
            *[native.LayerCache(k=k, v=v, slots=n, bits=0) for k, v, n in places]
        )
        self.tree = Tree.chain(torch.tensor([[5, 6, 7], [8, 9, 10]]))
        self.tokens, self.depth, self.mask = (
            x.clone() for x in (self.tree.tokens, self.tree.depth, self.tree.mask)
        )
        self.length, self.position = self.own.length, self.own.length[:, None] + self.depth
        self.features = torch.randn(2, 3, 64)
        self.sources = torch.randn(2, 3, 192)
        self.states = torch.zeros(2, 3, 64)
        self.state = torch.tensor([1])
        self.logits = torch.zeros(2, 3, 96)
        self.p = native.Pass(
            2,
            3,
            0,
            *[
                x.data_ptr()
                for x in (self.tokens, self.depth, self.length, self.position, self.mask)
            ],
        )
        self.p.cache = self.places
        self.p.score_layer = -1
        self.p.features, self.p.states = self.features.data_ptr(), self.states.data_ptr()
        self.p.state_layers = self.state.data_ptr()
        self.p.state_count = 1
        self.roots, self.at = torch.tensor([5, 8]), self.length.clone()
        self.below = native.Pass(rows=2, nodes=1, start=0, score_layer=-1, approximate=True)
        self.below.tokens, self.below.length, self.below.position = (
            x.data_ptr() for x in (self.roots, self.length, self.at)
        )
        self.below.cache, self.below.features = self.places, self.features.data_ptr()
        self.seed = torch.zeros(2, dtype=torch.long)
        self.drawn = torch.zeros(2, 60, dtype=torch.long)
        self.count, self.parent = torch.zeros(1, dtype=torch.long), self.drawn.clone()
        self.warpers = (native.Warpers * 2)(native.Warpers(0, 0, 1, 0), native.Warpers(1, 0, 1, 0))
        self.numbers = torch.ones(2, dtype=torch.double), torch.ones(2, dtype=torch.long)
        self.g = native.Growth(
            topk=3, depth=4, nodes=20, narrow=0, warpers=self.warpers, seed=self.seed.data_ptr()
        )
        self.g.position, self.g.count = self.at.data_ptr(), self.count.data_ptr()
        self.g.tokens, self.g.parent = self.drawn.data_ptr(), self.parent.data_ptr()
        self.c = native.Chain(
            count=6, warpers=self.warpers, seed=self.seed.data_ptr(), position=self.at.data_ptr()
        )
        self.c.penalty, self.c.window = (x.data_ptr() for x in self.numbers)
        self.c.reach, self.c.drawn = 1 << 40, self.drawn.data_ptr()

    def __call__(self, what: str) -> None:
        if what == "pass":
            return self.step.lib.longdraft_step(self.m, self.p, self.step.work, False)
        if what == "chain":
            self.below.logits = self.logits.data_ptr()
            return self.step.lib.longdraft_chain(self.m, self.below, self.step.work, False, self.c)
        self.below.logits = None
        return self.step.lib.longdraft_grow(self.m, self.below, self.step.work, False, self.g)


PASS = ("pass",)
CHAIN = ("chain",)
GROW = ("grow",)
ALL = ("pass", "chain", "grow")
SPOILT_DRAFTS = {  # of which calls, what they say, how
    "start": (ALL, "shapes", lambda c: setattr(c.m, "start", 4)),
    "a start with an embedding": (
        GROW,
        "shapes",
        lambda c: setattr(c.m, "start", native.Start.EMBEDDING),
    ),
    "a start that is given": (
        ALL,
        "shapes|nodes",
        lambda c: setattr(c.m, "start", native.Start.GIVEN),
    ),
    "a fusion of other inputs": (
        ALL,
        "shapes",
        lambda c: setattr(c.m, "start", native.Start.FUSED),
    ),
    "a fusion of few inputs": (ALL, "shapes", lambda c: setattr(c.m.fuse, "inputs", 8)),
    "a fusion of other outputs": (ALL, "shapes", lambda c: setattr(c.m.fuse, "outputs", 80)),
    "order": (ALL, "shapes", lambda c: setattr(c.m, "feature_first", 2)),
    "continues nowhere": (ALL, "shapes", lambda c: setattr(c.m, "continues", 3)),
    "continues before": (ALL, "shapes", lambda c: setattr(c.m, "continues", -1)),
    "a narrow layer": (ALL, "shapes", lambda c: setattr(c.m.layer[0].q, "inputs", 64)),
    "narrow keys": (ALL, "shapes", lambda c: setattr(c.m.layer[0].k, "inputs", 64)),
    "no norm of the MLP": (ALL, "shapes", lambda c: setattr(c.m.layer[0], "mlp_norm", None)),
    "a layer that is recurrent": (
        ALL,
        "shapes",
        lambda c: setattr(c.m.layer[0], "kind", native.LayerKind.RECURRENT),
    ),
    "a tree over a ring": (
        GROW,
        "shapes",
        lambda c: setattr(c.m.layer[0], "kind", native.LayerKind.RING),
    ),
    "a tree over another's keys": (
        GROW,
        "shapes",
        lambda c: setattr(c.m.layer[0], "kind", native.LayerKind.CROSS),
    ),
    "a head of too many": (ALL, "shapes", lambda c: setattr(c.m.head, "outputs", 97)),
    "a head of no tokens": (ALL, "shapes", lambda c: setattr(c.m.head, "outputs", 0)),
    "a head's token": (ALL, "shapes", lambda c: c.known[-1:].fill_(96)),
    "no features": (PASS, "nodes", lambda c: setattr(c.p, "features", None)),
    "no features below": (("chain", "grow"), "nodes", lambda c: setattr(c.below, "features", None)),
    "sources of no fusion": (
        PASS,
        "nodes",
        lambda c: (
            setattr(c.p, "sources", c.sources.data_ptr()),
            setattr(c.m.fuse, "weight", None),
        ),
    ),
    "sources below": (
        ("chain", "grow"),
        "nodes",
        lambda c: setattr(c.below, "sources", c.sources.data_ptr()),
    ),
    "no positions": (("chain", "grow"), "nodes", lambda c: setattr(c.below, "position", None)),
    "neither logits nor states": (PASS, "nodes", lambda c: setattr(c.p, "state_count", 0)),
    "logits of more": (PASS, "nodes", lambda c: setattr(c.p, "logit_nodes", 4)),
    "a state beyond": (PASS, "state", lambda c: c.state.fill_(3)),
    "two nodes": (("chain", "grow"), "nodes", lambda c: setattr(c.below, "nodes", 2)),
    "a later start": (("chain", "grow"), "nodes", lambda c: setattr(c.below, "start", 1)),
    "no rows": (("chain", "grow"), "nodes", lambda c: setattr(c.below, "rows", 0)),
    "scores": (("chain", "grow"), "nodes", lambda c: setattr(c.below, "scored", 1)),
    "states": (("chain", "grow"), "nodes", lambda c: setattr(c.below, "state_count", 1)),
    "few logits": (("chain", "grow"), "nodes", lambda c: setattr(c.below, "logit_nodes", 1)),
    "a root": (("chain", "grow"), "vocabulary", lambda c: c.roots[1:].fill_(96)),
    "a root below": (("chain", "grow"), "vocabulary", lambda c: c.roots[1:].fill_(-1)),
    "few slots": (PASS, "slots", lambda c: setattr(c.places[0], "slots", 14)),
    "few slots for a chain": (CHAIN, "slots", lambda c: setattr(c.places[0], "slots", 12 + 5 - 1)),
    "few slots for a tree": (
        GROW,
        "slots",
        lambda c: setattr(c.places[0], "slots", 12 + 3 * 3 - 1),
    ),
    "no keys": (ALL, "slots", lambda c: setattr(c.places[0], "v", None)),
    "a length": (ALL, "nodes|slots", lambda c: c.length[1:].fill_(-3)),
    "no child": (GROW, "draw", lambda c: setattr(c.g, "topk", 0)),
    "more children than tokens": (GROW, "draw", lambda c: setattr(c.g, "topk", 97)),
    "no level": (GROW, "draw", lambda c: setattr(c.g, "depth", 0)),
    "too many levels": (GROW, "draw", lambda c: setattr(c.g, "depth", 1025)),
    "a root alone": (GROW, "draw", lambda c: setattr(c.g, "nodes", 1)),
    "too many nodes": (GROW, "draw", lambda c: setattr(c.g, "nodes", 1 << 32)),
    "no samplers": (GROW, "draw", lambda c: setattr(c.g, "warpers", None)),
    "no seeds": (GROW, "draw", lambda c: setattr(c.g, "seed", None)),
    "no first position": (GROW, "draw", lambda c: setattr(c.g, "position", None)),
    "nowhere to count": (GROW, "draw", lambda c: setattr(c.g, "count", None)),
    "nowhere for tokens": (GROW, "draw", lambda c: setattr(c.g, "tokens", None)),
    "nowhere for parents": (GROW, "draw", lambda c: setattr(c.g, "parent", None)),
    "a temperature": (
        ("chain", "grow"),
        "draw",
        lambda c: setattr(c.warpers[1], "temperature", -1),
    ),
    "top-p": (("chain", "grow"), "draw", lambda c: setattr(c.warpers[1], "top_p", float("nan"))),
}


@torch.inference_mode()
@pytest.mark.parametrize("what", SPOILT_DRAFTS)
def test_a_draft_that_does_not_fit_is_refused(what):
    calls, names, spoil = SPOILT_DRAFTS[what]
    for kind in calls:
        call = DraftCall()
        call(kind)
        spoil(call)
        with pytest.raises((RuntimeError, InputError), match=names):
            call(kind)


@torch.inference_mode()
@pytest.mark.parametrize("make", [random_eagle2, random_eagle3])
def test_a_draft_fits_its_slots_exactly(make):
    """And writes no further than it says: a guard lies behind all it may write."""
    for kind, slots in (("pass", 15), ("chain", 17), ("grow", 21)):
        call = DraftCall(make)
        call.places[0].slots = slots
        call.drawn.fill_(-7)
        call(kind)
        written = {"pass": 0, "chain": 12, "grow": 2 * int(call.count)}[kind]
        tokens = call.drawn.flatten()
        assert ((tokens[:written] >= 0) & (tokens[:written] < 96)).all() and (
            tokens[written:] == -7
        ).all()
    assert int(call.count) == 19


@torch.inference_mode()
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_features_that_are_no_numbers_draft_tokens(number):
    for kind in ALL:
        call = DraftCall()
        call.features.fill_(number)
        call(kind)
        assert ((call.drawn >= 0) & (call.drawn < 96)).all()
        assert ((call.parent >= 0) & (call.parent < 20)).all()


@torch.inference_mode()
def test_tensors_of_a_draft_have_its_shapes():
    """What Python hands over is checked there: the kernels see addresses alone."""
    call = DraftCall()
    tree = call.tree
    keys = call.keys
    layers = call.layers
    good = (tree, 0, call.position, tree.mask, keys, call.features)
    layers.forward(*good)
    assert layers.forward(*good, logits=1)[1].shape == (2, 1, 96)
    layers.forward(*good[:5], call.sources, True)
    wrong = {
        2: [call.position[:, :2], call.position[:1], call.position.int()],
        3: [tree.mask[..., :2], tree.mask[:, :2], tree.mask.long()[:1]],
        4: [replace(keys, length=keys.length[:1]), replace(keys, tail=keys.tail[:1])],
        5: [call.features[:, :2], call.features[..., :32], call.features[:1], call.sources],
    }
    for at, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match="native pass"):
                layers.forward(*good[:at], value, *good[at + 1 :])
    with pytest.raises(ValueError, match="native pass"):
        layers.forward(*good, True)  # features in place of sources
    rows = Sequences.of([[5]] * 2, 9, KVCache(2, 1), Sampler())
    draws = Sampler(temperature=1.0).chain(4, rows)
    below = {
        "roots": call.roots,
        "output": call.features[:, :1],
        "position": call.at,
        "keys": keys,
        "draws": draws,
    }
    shape = {"topk": 3, "depth": 3, "nodes": 12, "narrow": False}
    assert layers.grow(**below, **shape).size == 12 and layers.draft_chain(
        **below, seen=None
    ).shape == (2, 4)
    wrong = {
        "roots": [call.roots[:1], call.roots.int()],
        "output": [call.features, call.features[:1, :1], call.features[:, :1, :32]],
        "position": [call.at[:1], call.at[:, None]],
        "keys": [replace(keys, length=keys.length[:1]), replace(keys, tail=keys.tail[:1])],
        "draws": [
            replace(draws, seed=draws.seed[:1]),
            replace(draws, position=draws.position[:1]),
            replace(draws, samplers=draws.samplers[:1]),
        ],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=r"native|samplers"):
                layers.grow(**below | {name: value}, **shape)
            with pytest.raises(ValueError, match=r"native|samplers"):
                layers.draft_chain(**below | {name: value}, seen=None)
    with pytest.raises(RuntimeError, match="draw"):
        layers.grow(**below, **shape | {"topk": 97})
