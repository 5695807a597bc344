"""EAGLE: its cache against recomputation from scratch, its tree against a slow search without any
cache.
"""

from __future__ import annotations

import math
from itertools import cycle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import PENALTY, SAMPLERS, SEED, check_lossless
from support.structure import ancestors, check_shape, close
from torch import Tensor

from longdraft import InputError, Sampler, Stats, build, match
from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import PAD, DraftLimits, Tree
from longdraft.drafters import AdaptiveDraft, Eagle
from longdraft.drafters.adaptive.decision import CAPTURE_ONLY, PLAIN, Draft
from longdraft.drafters.adaptive.pace import Pace
from longdraft.drafters.eagle import pairs
from longdraft.drafters.eagle.block import (
    Eagle2Block,
    Eagle3Block,
    EagleBlock,
    random_eagle2,
    random_eagle3,
)
from longdraft.drafters.eagle.drafter import chosen
from longdraft.drafters.eagle.pairs import Pairs, PairSpan
from longdraft.engine.generate import prefill, step
from longdraft.models.lm import LM

KINDS = {
    "eagle2": random_eagle2,
    "eagle3": random_eagle3,
    "eagle3, 40 tokens": lambda t, s: random_eagle3(t, s, 40),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_path = pytest.mark.parametrize("path", ["llama", "llama-torch"])


def features(lm: LM, block: EagleBlock, text: list[int]) -> Tensor:
    """[1,N,d] of every token, from one pass over the text."""
    layers = block.captured_layers(lm.config.num_hidden_layers)
    captured = Captures(CaptureSpec(hidden=tuple(sorted(set(layers)))))
    lm(Tree.chain(torch.tensor([text])), lm.new_cache(1, len(text)), captured=captured)
    return block.feature(lm, [captured.states[n] for n in layers])


def run(
    lm: LM,
    block: EagleBlock,
    feature: Tensor,
    tokens: list[int],
    at: Tensor,
    seen: list[int] | None = None,
) -> tuple[Tensor, KVCache]:
    """The layer over pairs feature [1,N,d] and tokens at positions [N], as one chain whose last
    node sees only some.
    """
    chain = Tree.chain(torch.tensor([tokens]))
    cache = KVCache(1, len(tokens))
    embedded = lm.hf.get_input_embeddings()(chain.tokens)
    mask = chain.mask.clone()
    if seen is not None:
        mask[:, -1] = False
        mask[:, -1, seen] = True
    return block(feature, embedded, at[None], mask, cache, 0), cache


class Watched(Eagle):
    """Checks its cache before every draft and its tree before every verification."""

    checked = 0

    def __init__(self, *args):
        super().__init__(*args)
        good = self.pairs.feed
        self.seen_by_last = {}

        def feed(features, tokens, rows, count, at=None):
            for b, n in enumerate(count, rows.start):
                held = int(self.pairs.own.length[b])
                first = int(self.pairs.first[b])
                # slots that the last pair saw: which are left out is decided before all are written
                if n:
                    far = (
                        held - self.span.window
                        if self.span.window and first + held > self.span.reach
                        else 0
                    )
                    self.seen_by_last[b] = [
                        i for i in range(held + n) if i < self.span.sink or i >= far
                    ]
            good(features, tokens, rows, count, at)

        self.pairs.feed = feed

    def leave(self, seqs, row):
        super().leave(seqs, row)
        self.seen_by_last[row] = self.seen_by_last.pop(len(self.pairs.first), [])

    def ready(self, seqs):
        super().ready(seqs)
        for b in (~seqs.done).nonzero()[:, 0].tolist():
            n = int(seqs.cache.length[b])
            first = int(self.pairs.first[b])
            mine = self.pairs
            assert int(mine.own.length[b]) == n - first and first <= max(0, n - self.span.most)
            text = seqs.tokens[b, : n + 1].tolist()
            if n > first:
                sinks = self.span.sink if first and self.span.window else 0
                at = torch.tensor([*range(sinks), *range(first + sinks, n)])
                true = features(self.target, self.block, text[:-1])[:, at]
                output, cache = run(
                    self.target,
                    self.block,
                    true,
                    [text[i + 1] for i in at],
                    at,
                    self.seen_by_last[b],
                )
                for keys, want in zip(mine.own.read(0, b), cache.read(0, 0), strict=True):
                    close(keys[:, : n - first], want[:, : n - first], 1e-4)
                close(mine.output[b, 0], output[0, -1], 1e-4)
                self.checked += 1

    def grow(self, tree, seqs, limits):
        tree = super().grow(tree, seqs, limits)
        check_shape(tree)
        assert tree.size <= self.nodes and int(tree.depth.max()) <= min(
            self.levels + 1, max(limits.depth, 0)
        )
        return tree


@pytest.mark.full
@each_path
@each_kind
@pytest.mark.parametrize("span", [(7,), (512,), (20, 12, 2), (14, 12, 2), (13, 5, 0), (5, 3, 10)])
def test_the_cache_is_recomputation_from_scratch(kind, span, path):
    """Rows of unequal lengths, of one token too, that accept unequally and end at different times;
    with windows, some texts are longer than `reach`, one grows beyond it, and one is just longer.
    """
    lm = tiny.target(path)
    drafter = Watched(lm, KINDS[kind](lm, 0), 8, 2, 30, *span)
    stats = check_lossless(lambda t: drafter, path, SAMPLERS["T=1"], (30, 1, 12, 15), 16)
    assert sum(stats.accepted) > 3 and drafter.checked > 20


@each_path
@pytest.mark.parametrize("fault", ["a window one wider", "a sink left out"])
def test_a_pair_too_many_or_too_few_is_noticed(fault, path, monkeypatch):
    """By Watched: such faults never show in the text."""
    tail = PairSpan.tail
    skip = Pairs.skip
    if fault == "a window one wider":
        monkeypatch.setattr(
            PairSpan, "tail", lambda *a: None if (t := tail(*a)) is None else (t - 1).clamp(min=0)
        )
    else:
        monkeypatch.setattr(Pairs, "skip", lambda *a: max(skip(*a) - 1, 0))
    with pytest.raises(AssertionError):
        test_the_cache_is_recomputation_from_scratch("eagle3", (20, 12, 2), path)


@each_kind
def test_rounds_that_were_left_out_are_caught_up(kind, monkeypatch):
    """Whatever it saw, before a draft the cache is what it is when every round is seen."""
    missed = [PLAIN, PLAIN, PLAIN, CAPTURE_ONLY]
    decisions = cycle([*missed, Draft(2), Draft(3, 2), PLAIN, CAPTURE_ONLY, Draft(1, 1)])
    monkeypatch.setattr(Pace, "decide", lambda self, captured: next(decisions))
    lm = tiny.target("llama")
    drafter = Watched(lm, KINDS[kind](lm, 0), 8, 2, 30, 512)
    check_lossless(lambda t: AdaptiveDraft(drafter), "llama", SAMPLERS["T=1"], (30,), 24)
    assert drafter.checked >= 10


@each_path
def test_the_prompt_goes_through_in_chunks(path, monkeypatch):
    """Of what the target reads, and of pairs."""
    monkeypatch.setattr(pairs, "PAIRS_PER_PASS", 64)
    lm = tiny.target(path)
    drafter = Watched(lm, random_eagle3(lm, 0), 4, 1, 8, 150)
    check_lossless(lambda t: drafter, path, SAMPLERS["T=1"], (300, 140), 6)


@torch.inference_mode()
def slow_tree(
    lm: LM,
    block: EagleBlock,
    text: list[int],
    sampler: Sampler,
    topk: int,
    levels: int,
    nodes: int,
    seqs,
) -> set:
    """EAGLE-2's tree as paths: every path through the layer from scratch, the search over plain
    lists.
    """
    true = features(lm, block, text[:-1])

    def expand(path: list[int]) -> list[tuple[float, int]]:
        feature = true
        tokens = text[1:]
        for token in [*path, None]:
            output, _ = run(lm, block, feature, tokens, torch.arange(len(tokens)))
            if token is None:
                break
            feature = torch.cat([feature, output[:, -1:]], 1)
            tokens = [*tokens, token]
        chain = Tree.chain(torch.tensor([[text[-1], *path]]))
        logits = block.scores(lm, output[:, -1:]).expand(-1, len(path) + 1, -1)
        best = sampler.scores(logits, chain, seqs)[0, -1].log_softmax(-1).topk(topk)
        return list(zip(best.values.tolist(), best.indices.tolist(), strict=True))

    level = [(0.0, [])]
    candidates = []
    for _ in range(levels + 1):
        level = [(value + v, [*path, token]) for value, path in level for v, token in expand(path)]
        candidates += level
        level = sorted(level, key=lambda c: -c[0])[:topk]
    return {tuple(path) for _, path in sorted(candidates, key=lambda c: -c[0])[: nodes - 1]}


@pytest.mark.full
@each_path
@each_kind
@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(temperature=1.0), Sampler(temperature=0.8, penalty=1.3)]
)
def test_the_tree_is_that_of_a_slow_search(kind, sampler, path):
    lm = tiny.target(path)
    block = KINDS[kind](lm, 0)
    seen = []

    class Compared(Eagle):
        def grow(self, tree, seqs, limits):
            tree = super().grow(tree, seqs, limits)
            if limits.depth > 3 and not seen:
                text = seqs.tokens[0, : int(seqs.length[0])].tolist()
                want = slow_tree(lm, block, text, sampler, 4, 2, 14, seqs)
                parents = tree.parent[0].tolist()
                found = {
                    tuple(tree.tokens[0, ancestors(parents, n)[1:]].tolist())
                    for n in range(1, tree.size)
                }
                assert found == want
                seen.append(len(want))
            return tree

    check_lossless(lambda t: Compared(lm, block, 4, 2, 14), path, sampler, (20,), 12)
    assert seen == [13]


@pytest.mark.full
@given(st.data())
def test_the_best_nodes_are_a_tree(data):
    """Random trees whose values never rise from parent to child; many are equal, some -inf."""
    parents = [0]
    values = [0.0]
    for node in range(1, 30):
        parent = data.draw(st.integers(max(0, node - 12), node - 1))
        parents.append(parent)
        values.append(
            values[parent] + data.draw(st.sampled_from([0.0, 0.0, -0.5, -1.0, -math.inf]))
        )
    tree = Tree.root(torch.tensor([3]))
    for node in range(1, 30):
        tree = tree.grow(torch.tensor([[parents[node]]]), torch.tensor([[node]]))
    lm = tiny.target("llama")
    nodes = data.draw(st.integers(2, 40))
    best = Eagle(lm, random_eagle3(lm, 0), 4, 2, nodes)._best(tree, torch.tensor([values]))
    check_shape(best)
    assert best.size == min(nodes, 30)
    kept = best.tokens[0, 1:].tolist()
    assert (
        sorted((values[n] for n in kept), reverse=True)
        == sorted(values[1:], reverse=True)[: nodes - 1]
    )
    for i, token in enumerate(kept, 1):
        assert int(best.parent[0, i]) == (
            0 if parents[token] == 0 else 1 + kept.index(parents[token])
        )


def test_chosen_keeps_order_and_depth():
    tree = Tree.chain(torch.tensor([[5, 6, 7]])).grow(
        torch.tensor([[0, 1]]), torch.tensor([[8, 9]])
    )
    part = chosen(tree, torch.tensor([[1, 4]]))
    check_shape(part)
    assert (
        part.tokens.tolist() == [[5, 6, 9]]
        and part.parent.tolist() == [[-1, 0, 1]]
        and PAD not in part.parent
    )


@torch.inference_mode()
def test_a_reduced_vocabulary_drafts_its_own_tokens_alone():
    lm = tiny.target("llama")
    block = random_eagle3(lm, 0, 40)
    output = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
    scores = block.scores(lm, output)
    known = (torch.arange(40) + block.d2t).tolist()
    assert len(set(known)) == 40 and known == sorted(known) and max(known) < 96
    assert scores.shape == (2, 3, 96)
    assert scores.isfinite().all((0, 1)).nonzero()[:, 0].tolist() == known
    normed = output / (output.pow(2).mean(-1, keepdim=True) + lm.config.rms_norm_eps).sqrt()
    close(scores[..., known], normed @ block.head.weight.T)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["eagle2", "eagle3"])
def test_a_pass_over_a_tree_is_one_chain_per_path(kind):
    lm = tiny.target("llama")
    block = KINDS[kind](lm, 3)
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 96, (1, 5), generator=g)
    feature = torch.randn(1, 5, 64, generator=g)
    tree = Tree.root(tokens[:, 0]).grow(torch.tensor([[0, 0, 1, 2]]) * 0, tokens[:, 1:])
    embed = lm.hf.get_input_embeddings()
    cache = KVCache(1, 8)
    out = block(feature, embed(tree.tokens), 3 + tree.depth, tree.mask, cache, 0)
    for node in range(5):
        at = ancestors(tree.parent[0].tolist(), node)
        alone, _ = run(lm, block, feature[:, at], tokens[0, at].tolist(), 3 + torch.arange(len(at)))
        close(out[0, node], alone[0, -1])


@pytest.mark.full
@each_path
@pytest.mark.parametrize(
    ("topk", "levels", "nodes"), [(1, 0, 2), (1, 5, 9), (8, 0, 99), (60, 1, 40)]
)
def test_shapes_of_search(topk, levels, nodes, path):
    for sampler in (SAMPLERS["greedy"], SAMPLERS["T=0.7 top-p"], PENALTY):
        check_lossless(
            lambda t: Watched(t, random_eagle3(t, 0), topk, levels, nodes),
            path,
            sampler,
            (20, 1),
            8,
        )


def test_layers_read():
    assert Eagle3Block.captured_layers(32) == [2, 16, 29]
    assert Eagle3Block.captured_layers(1) == [1, 0, 0]
    assert Eagle2Block.captured_layers(32) == [32]


def test_random_blocks_repeat_and_bad_options_are_one_line():
    lm = tiny.target("llama")
    for make in KINDS.values():
        a, b, c = (make(lm, seed).fuse.weight for seed in (SEED, SEED, 2))
        assert torch.equal(a, b) and not torch.equal(a, c)
    with pytest.raises(InputError, match="give at most 40"):
        build("eagle3", lm, random_eagle3(lm, 0, 40), topk=41)
    with pytest.raises(InputError, match="a smaller topk"):
        build("eagle2", lm, random_eagle2(lm, 0), topk=90, levels=9)
    for options in ({"topk": 0}, {"levels": -1}, {"nodes": 1}, {"reach": 0}):
        with pytest.raises(InputError, match="give a whole number"):
            build("eagle2", lm, random_eagle2(lm, 0), **options)


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=1.0), Sampler(temperature=0.8)])
def test_shortcuts_change_no_draft(sampler, monkeypatch):
    """In torch: scores of the known tokens alone, and a search that ends once no better node can be
    found.
    """
    lm = tiny.target("llama-torch")
    drafter = Eagle(lm, random_eagle3(lm, 0, 40), 4, 5, 6)
    levels = []
    early = 0
    seqs = prefill(lm, tiny.prompts(30, 9), 200, sampler, SEED, (), keep=drafter.prompt_captures())
    drafter.start(seqs)
    good = drafter._children
    drafter._children = lambda *a: (levels.append(1), good(*a))[1]  # type: ignore[method-assign]
    for _ in range(12):
        step(lm, drafter, seqs, match, Stats(), draft=False)
        levels.clear()
        found = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits())
        stopped = len(levels)
        with monkeypatch.context() as mp:
            mp.setattr(drafter, "tokens", None)
            mp.setattr(drafter, "_complete", lambda *_: False)
            levels.clear()
            want = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits())
        assert torch.equal(found.tokens, want.tokens) and torch.equal(found.parent, want.parent)
        assert stopped <= len(levels) == 6
        early += stopped < 6
    assert early
