"""A drafter's own layers in one native call draft what torch drafts: chains, dynamic trees, with
windows and sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, SEED
from support.listed import full
from support.sessions import Ends, finish
from support.structure import check_shape

from longdraft import Sampler, Session, Stats, generate
from longdraft.backends.native.draft_layers import NativeLayers
from longdraft.core.tree import DraftLimits, Tree
from longdraft.core.verify import match
from longdraft.drafters import Drafter, Eagle
from longdraft.drafters.eagle.block import Eagle2Block, Eagle3Block, EagleBlock
from longdraft.engine.generate import prefill, step
from longdraft.models.lm import LM
from longdraft.ops import native

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)

# The class of a layer, what its config has besides the target's, and of how many of the target's
# tokens its head is.
KINDS = {
    "eagle2": (Eagle2Block, {}, None),
    "eagle2, biases": (Eagle2Block, {"qkv_bias": True}, None),
    "eagle3": (Eagle3Block, {}, None),
    "eagle3, 40 tokens": (Eagle3Block, {}, 40),
    "eagle3, normed residual": (Eagle3Block, {"norm_before_residual": True}, 53),
}
# topk, levels, nodes; then reach, window, sink. Of texts of 30, 9, 1 and 17 tokens some are longer
# than reach, some are
# not, and one grows beyond it; another is just longer.
SHAPES = {
    "chain": (1, 5, 9),
    "tree": (4, 2, 14),
    "wide tree": (8, 2, 60, 512),
    "ends early": (4, 6, 6),
    "chain, window": (1, 5, 9, 20, 6, 3),
    "tree, window": (4, 2, 14, 20, 6, 3),
    "tree, no sink": (4, 2, 14, 20, 6, 0),
    "tree, reach": (4, 2, 14, 11),
    "tree, just beyond": (4, 2, 14, 16, 13, 3),
}
LENGTHS = (30, 9, 1, 17)
WARPED = {
    "top-k": Sampler(temperature=1.0, top_k=3),
    "min-p": Sampler(temperature=0.8, min_p=0.1),
    "penalty": Sampler(penalty=1.3, window=8),
}
EVERY = SAMPLERS | WARPED
each_kind = pytest.mark.parametrize("kind", KINDS)
each_shape = pytest.mark.parametrize("shape", SHAPES)


def made(lm: LM, kind: str, seed: int = 0) -> EagleBlock:
    """A random layer; its norms and biases too are random."""
    make, fields, known = KINDS[kind]
    config = copy(lm.layer_config)
    g = torch.Generator().manual_seed(seed)
    for name, value in fields.items():
        setattr(config, name, value)
    block = make(config) if known is None else make(config, known)
    for name, p in block.named_parameters():
        if p.dim() == 1:
            torch.nn.init.normal_(p, 0.2, 0.3, generator=g)
        else:  # of the head larger: noise must not decide alone
            torch.nn.init.normal_(
                p, std=(4 if name.startswith("head") else 1) * p.shape[1] ** -0.5, generator=g
            )
    if known is not None:
        tokens = torch.randperm(lm.vocab, generator=g)[:known].sort().values
        block.d2t.copy_(tokens - torch.arange(known))
    return block.to(lm.dtype).eval().requires_grad_(False)


class ByTorch(Eagle):
    """The reference. live: the paths of the latest tree that can be drawn at all, where all
    candidates were ranked.
    """

    live: list[set] | None = None

    def __init__(self, lm: LM, *args):
        there = copy(lm)
        there.backend = lm.eager
        super().__init__(there, *args)
        self.target = self.pairs.target = lm
        assert self.compiled is None and self.pairs.compiled is None

    def grow(self, tree, seqs, limits):
        self.live = None
        return super().grow(tree, seqs, limits)

    def _best(self, tree, value):
        alive = [(value[b] > float("-inf")).nonzero()[1:, 0].tolist() for b in range(len(value))]
        self.live = [{path(tree, b, n) for n in nodes} for b, nodes in enumerate(alive)]
        return super()._best(tree, value)


def path(tree: Tree, b: int, node: int) -> tuple[int, ...]:
    tokens = []
    while node:
        tokens.append(int(tree.tokens[b, node]))
        node = int(tree.parent[b, node])
    return tuple(reversed(tokens))


def same(mine: Tree, want: Tree, live: list[set] | None) -> bool:
    """Whether two drafts are equal. Of nodes that cannot be drawn, all equally bad, either may have
    any.
    """
    parts = [
        (getattr(mine, name), getattr(want, name)) for name in ("tokens", "parent", "depth", "mask")
    ]
    if all(a.shape == b.shape and torch.equal(a, b) for a, b in parts):
        return True
    if live is None or mine.size != want.size:
        return False
    both = [
        [{path(t, b, n) for n in range(1, t.size)} for b in range(len(t.tokens))]
        for t in (mine, want)
    ]
    rows = zip(*both, live, strict=True)
    return all(
        mine >= want & some and (mine == want or bool(want - some)) for mine, want, some in rows
    )


class Both(Drafter):
    """Drafts natively, and by torch, and counts what differs; also with less room for depth and
    width.
    """

    def __init__(self, lm: LM, block: EagleBlock, *shape: int, narrow: bool = True):
        self.fast = Eagle(lm, block, *shape)
        self.slow = ByTorch(lm, block, *shape)
        self.calls = 0
        self.differ = 0
        self.outputs = 0.0
        self.limits = [DraftLimits(3, 2), DraftLimits(2, 3), DraftLimits(5, 1)] if narrow else []
        layers = self.fast.compiled
        assert isinstance(layers, NativeLayers) and self.fast.pairs.compiled is layers
        self.layers = layers

    def captures(self):
        return self.fast.captures()

    def prompt_captures(self):
        return self.fast.prompt_captures()

    def start(self, seqs):
        for drafter in (self.fast, self.slow):
            drafter.start(seqs)

    def enter(self, seqs, row):
        for drafter in (self.fast, self.slow):
            drafter.enter(seqs, row)

    def leave(self, seqs, row):
        for drafter in (self.fast, self.slow):
            drafter.leave(seqs, row)

    def update(self, seqs, tree, verdict, captured):
        for drafter in (self.fast, self.slow):
            drafter.update(seqs, tree, verdict, captured)

    def ready(self, seqs):
        for drafter in (self.fast, self.slow):
            drafter.ready(seqs)

    def grow(self, tree, seqs, limits):
        for some in (*self.limits, limits):
            some = limits.within(depth=some.depth, width=some.width)
            mine = self.fast.grow(tree, seqs, some)
            want = self.slow.grow(tree, seqs, some)
            check_shape(mine)
            self.calls += 1
            self.differ += not same(mine, want, self.slow.live)
        apart = (self.fast.pairs.output - self.slow.pairs.output)[~seqs.done]
        self.outputs = max(self.outputs, float(apart.abs().max()) if len(apart) else 0.0)
        return mine


def decode(lm: LM, drafter: Drafter, sampler: Sampler, new: int = 16) -> None:
    """The text is plain decoding's."""
    prompts = tiny.prompts(*LENGTHS)
    options = {"max_new_tokens": new, "sampler": sampler, "seed": SEED, "eos": ()}
    assert generate(lm, prompts, drafter, **options) == generate(lm, prompts, **options)


def compare(
    lm: LM, block: EagleBlock, sampler: Sampler, shape: tuple[int, ...], narrow: bool = True
) -> None:
    both = Both(lm, block, *shape, narrow=narrow)
    decode(lm, both, sampler)
    assert both.calls >= 4 and both.outputs < 1e-4 and not both.differ


@pytest.mark.each_value
@each_shape
@each_kind
@pytest.mark.parametrize("sampler", [pytest.param("greedy", marks=full), "T=1"])
def test_one_call_drafts_what_torch_drafts(kind, shape, sampler):
    lm = tiny.target("llama")
    compare(lm, made(lm, kind), EVERY[sampler], SHAPES[shape])


@pytest.mark.full
@pytest.mark.product
@each_kind
@pytest.mark.parametrize("shape", ["chain", pytest.param("tree, window", marks=full)])
@pytest.mark.parametrize("sampler", sorted(EVERY.keys() - {"greedy", "T=1"}))
def test_with_every_sampler(kind, shape, sampler):
    """A tree with a penalty is grown level by level over the keys that the kernels wrote; a chain
    is one call.
    """
    lm = tiny.target("llama")
    warped = EVERY[sampler].warpers
    narrow = warped is None or not (warped.top_k or warped.top_p < 1 or warped.min_p)
    compare(lm, made(lm, kind), EVERY[sampler], SHAPES[shape], narrow)


@pytest.mark.full
@each_kind
@pytest.mark.parametrize("shape", ["chain, window", "tree, window"])
def test_in_every_build(kind, shape, build):
    lm = LM(tiny.stock("llama"), "llama")
    compare(lm, made(lm, kind), Sampler(temperature=1.0), SHAPES[shape])


@pytest.mark.full
@pytest.mark.parametrize("name", ["wide", "llama-mha", "llama-mqa", "llama-6of3"])
def test_shapes_of_heads(name):
    lm = tiny.target(name)
    if lm.backend.name != "native":
        pytest.skip("this model has no native step")
    compare(lm, made(lm, "eagle3, 40 tokens"), Sampler(temperature=1.0), SHAPES["tree, window"])


@pytest.mark.full
@each_kind
def test_rows_that_enter_with_samplers_of_their_own(kind):
    lm = tiny.target("llama")
    both = Both(lm, made(lm, kind), *SHAPES["tree, window"])
    ends = Ends()
    wanted = {}
    with Session(lm, both, 2, 80) as s:
        for i, prompt in enumerate(tiny.prompts(*LENGTHS)):
            sampler = [Sampler(), Sampler(temperature=1.0), Sampler(temperature=0.6)][i % 3]
            number = s.submit(prompt, 9 + i, seed=i, eos=(), sampler=sampler)
            [wanted[number]] = generate(
                lm, [prompt], max_new_tokens=9 + i, sampler=sampler, seed=i, eos=()
            )
            ends.take(s.step())
        finish(s, ends)
    assert ends.texts == wanted and both.calls > 20 and both.differ == 0


# In 8 bits ----------------------------------------------------------------------------------------


@pytest.mark.full
@each_kind
@pytest.mark.parametrize("span", [(512,), (20, 6, 3)])
@torch.inference_mode()
def test_weights_in_8_bits_are_near(kind, span, build):
    """Beside a target in bfloat16: outputs hardly differ from those of the layer itself."""
    lm = LM(tiny.stock("llama", dtype=torch.bfloat16), "llama")
    both = Both(lm, made(lm, kind), 4, 2, 14, *span, narrow=False)
    layer = both.layers.model.layer[0]
    assert {getattr(layer, name).format for name in ("q", "v", "o", "gate", "down")} == {
        native.Format.BITS_8
    }
    seqs = prefill(lm, tiny.prompts(*LENGTHS), 40, Sampler(), SEED, (), keep=both.prompt_captures())
    both.start(seqs)
    for _ in range(8):
        step(lm, both, seqs, match, Stats())
        both.ready(seqs)
        mine = both.fast.pairs.output.float()
        want = both.slow.pairs.output.float()
        assert float(torch.cosine_similarity(mine, want, dim=-1).min()) > 0.999


@pytest.mark.product
@each_kind
@pytest.mark.parametrize(
    "shape", ["chain, window", "tree, window", pytest.param("wide tree", marks=full)]
)
@pytest.mark.parametrize("sampler", ["greedy", "T=1", pytest.param("T=0.7 top-p", marks=full)])
def test_lossless_in_bfloat16(kind, shape, sampler):
    lm = tiny.target("llama-bf16")
    drafter = Eagle(lm, made(lm, kind), *SHAPES[shape])
    assert drafter.compiled is not None
    decode(lm, drafter, EVERY[sampler])


# Faults that must be noticed: the text is the same, whatever is drafted ---------------------------


def sinks_twice(both: Both) -> None:
    """A row that sees all its pairs, beside one that does not, sees its sinks again."""
    good = both.layers._keys

    def keys(p, keys):
        kept = good(p, keys)
        if keys.tail is not None:
            for i in range(p.rows):
                p.selected[i].count = keys.sink
        return kept

    both.layers._keys = keys


def field(name: str, value) -> Callable[[Both], None]:
    def change(both: Both) -> None:
        for model in (both.layers.model, both.layers.of_known):
            setattr(model, name, value)

    return change


def windows(change: int) -> Callable[[Both], None]:
    return lambda both: setattr(
        both.fast.pairs, "span", replace(both.fast.span, window=both.fast.span.window + change)
    )


FAULTS = {
    "a window one wider": windows(1),
    "a window one narrower": windows(-1),
    "a sink left out": lambda both: setattr(
        both.fast.pairs, "span", replace(both.fast.span, sink=2)
    ),
    "sinks twice": sinks_twice,
    "every node has the root's feature": field("continues", 0),
    "another residual": field("normed_residual", 1),
    "the feature first": field("feature_first", 1),
    "no norm of tokens": field("token_norm", None),
    "no norm of features": field("feature_norm", None),
    "no norm before the head": field("norm", None),
    "another scale": field("scale", 0.3),
}


@pytest.mark.full
@pytest.mark.parametrize("shape", ["chain, window", "tree, window"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.whole
def test_a_fault_is_noticed(fault, shape):
    lm = tiny.target("llama")
    both = Both(lm, made(lm, "eagle3, 40 tokens"), *SHAPES[shape], narrow=False)
    FAULTS[fault](both)
    decode(lm, both, Sampler(temperature=1.0))
    assert both.differ > 0 or both.outputs > 1e-3
    if fault == "every node has the root's feature":
        assert both.outputs < 1e-4  # drafts alone tell
