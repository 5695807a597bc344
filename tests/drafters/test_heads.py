"""Heads against their formulas, trees against each node's own top-k, and which state the heads are
given.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, SEED, check_lossless
from support.structure import check_shape, close

from longdraft import InputError, Sampler, build, stream
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.sequences import Sequences
from longdraft.core.tree import DraftLimits, Tree
from longdraft.drafters import Heads, Medusa, Sequential
from longdraft.drafters.heads.drafter import (
    SPARSE,
    ChainedHeads,
    MedusaHeads,
    add_product,
    cartesian,
    random_heads,
    random_medusa,
)
from longdraft.views import Full, Guided, Partial


def random_(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=generator)
    return module.requires_grad_(False)


def rms(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@torch.inference_mode()
@pytest.mark.parametrize("model", tiny.CONFIGS)
def test_the_head_is_the_models_own(model):
    """Soft caps, scaling and biases included; and the model is as it was."""
    lm = tiny.target(model)
    captured = Captures(CaptureSpec(hidden=(lm.config.num_hidden_layers,)))
    tree = Tree.chain(torch.tensor([tiny.prompts(9)[0], tiny.prompts(9)[0][::-1]]))
    want = lm(tree, lm.new_cache(2, 16), captured=captured)
    close(lm.head(captured.states[lm.config.num_hidden_layers]), want)
    close(lm(tree, lm.new_cache(2, 16)), want)


def test_chained_heads_are_the_formula():
    heads = random_(ChainedHeads(8, 3, eps=0.1))
    g = torch.randn(11, 8)
    hidden = torch.randn(2, 8)
    found = heads(hidden, lambda x: x @ g.T)
    assert found.shape == (2, 3, 11)
    for i in range(3):
        hidden = hidden + rms(hidden, heads.norm_in[i], 0.1) @ heads.weight[i].T
        close(found[:, i], rms(hidden, heads.norm_out[i], 0.1) @ g.T)


@pytest.mark.parametrize("own", [False, True])
def test_medusa_heads_are_the_formula(own):
    g = torch.randn(4, 11, 8)
    normed = torch.randn(2, 8)
    heads = random_(MedusaHeads(8, 4, torch.zeros(4, 11, 8) if own else None))
    found = heads(normed, lambda x: x @ g[0].T)
    for i in range(4):
        linear = normed @ heads.weight[i].T + heads.bias[i]
        state = normed + linear * torch.sigmoid(linear)
        close(found[:, i], state @ (heads.out[i] if own else g[0]).T)


@torch.inference_mode()
def test_untrained_heads_say_what_the_target_says():
    """Zero weights: Medusa's say the next token again; so does the chain, up to its own norm's
    gain.
    """
    lm = tiny.target("llama")
    hidden = torch.randn(2, 64)
    want = lm.head(hidden)
    close(MedusaHeads(64)(lm.norm(hidden), lm.project)[:, 3], want)
    # the tiny model's gain is 1
    close(ChainedHeads(64, eps=lm.config.rms_norm_eps)(hidden, lm.project)[:, 2], want)


def test_template_sizes():
    assert [sum(level) for level in cartesian([1, 3, 3, 3])] == [1, 3, 9, 27]
    assert [sum(level) for level in SPARSE] == [10, 28, 23, 2]  # 63 nodes
    with pytest.raises(InputError, match="smaller widths"):
        cartesian([100, 100])


def test_the_sparse_tree_ends_with_the_last_head():
    lm = tiny.target("llama")
    for count in (2, 4, 5):
        drafter = build("medusa", lm, MedusaHeads(lm.config.hidden_size, count))
        assert drafter.max_depth == min(count, 4)
    with pytest.raises(InputError, match="needs 3 heads"):
        build("medusa", lm, MedusaHeads(lm.config.hidden_size, 2), widths=[2, 2, 2])


def sequences(sampler: Sampler, limit: int = 9, lengths=(20, 7)) -> Sequences:
    lm = tiny.target("llama")
    return Sequences.of(tiny.prompts(*lengths), limit, lm.new_cache(len(lengths), 4), sampler, SEED)


@pytest.mark.each_value
@pytest.mark.parametrize("counts", [cartesian([2, 3, 2]), SPARSE], ids=["cartesian", "sparse"])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_children_are_the_top_of_their_parents_own_scores(sampler, counts):
    """Recomputed node by node: the penalty counts the node's own path, the noise is that of its
    position.
    """
    seqs = sequences(sampler)
    logits = torch.randn(2, len(counts), 96, generator=torch.Generator().manual_seed(3)) * 3
    tree = add_product(Tree.root(seqs.last), logits, counts, seqs, DraftLimits(seqs.room))
    assert tree.size == 1 + sum(map(sum, counts))
    check_shape(tree)
    for b in range(2):
        for node in range(tree.size):
            depth = int(tree.depth[b, node])
            children = tree.tokens[b, tree.parent[b] == node].tolist()
            if depth == len(counts):
                assert not children
                continue
            chain = Tree.chain(tree.tokens[b, tree.mask[b, node]][None].expand(2, -1))
            scores = sampler.scores(logits[:, depth, None].expand(-1, depth + 1, -1), chain, seqs)[
                b, -1
            ]
            top = scores.topk(max(len(children), 1))
            # what the law rules out is in no order
            real = len(children) - int(top.values.isinf().sum()) if children else 0
            assert children[:real] == top.indices.tolist()[:real]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_level_that_could_not_be_used(limit):
    seqs = sequences(Sampler(), limit)
    tree = add_product(
        Tree.root(seqs.last),
        torch.randn(2, 3, 96),
        cartesian([2, 2, 2]),
        seqs,
        DraftLimits(seqs.room),
    )
    assert int(tree.depth.max()) == limit - 1


class Watched(Medusa):
    """Keeps what the heads were given, and the text that stood there."""

    def start(self, seqs):
        self.given = []

    def grow(self, tree, seqs, limits):
        texts = [seqs.tokens[b, : int(n)].tolist() for b, n in enumerate(seqs.length)]
        self.given.append((texts, self._state.clone(), seqs.done.clone()))
        return super().grow(tree, seqs, limits)


@torch.inference_mode()
def test_medusa_reads_the_last_verified_token():
    lm = tiny.target("llama")
    drafter = Watched(lm, random_medusa(lm, 0), cartesian([24, 3]))
    stats = check_lossless(lambda t: drafter, "llama", SAMPLERS["T=1"], (30, 12, 41))
    assert sum(stats.accepted) > 5
    layers = lm.config.num_hidden_layers
    for texts, states, done in drafter.given:
        for text, state, over in zip(texts, states, done.tolist(), strict=True):
            captured = Captures(CaptureSpec(hidden=(layers,)))
            lm(Tree.chain(torch.tensor([text[:-1]])), lm.new_cache(1, 80), captured=captured)
            if not over:
                close(state, captured.states[layers][0, -1])


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_under_a_full_view_the_first_draft_is_the_targets_own(sampler):
    lm = tiny.target("llama")
    for policy in (Full(), Partial(200)):
        stats = check_lossless(
            lambda t, p=policy: Heads(t, random_heads(lm, 0), p, [1, 2, 2, 2]),
            "llama",
            sampler,
            (40, 9),
        )
        # a row's last step may have no room for a draft
        assert stats.acceptance_per_position[0] > 0.8


def test_heads_come_first():
    lm = tiny.target("llama")
    twice = Sequential(*[Heads(lm, random_heads(lm, 0), Full(), [1, 1, 1, 1]) for _ in range(2)])
    with pytest.raises(ValueError, match="put them first"):
        list(stream(lm, tiny.prompts(9), twice, max_new_tokens=9))
    with pytest.raises(ValueError, match="at most one drafter of a Sequential"):
        Sequential(
            Heads(lm, random_heads(lm, 0), Guided(), [1] * 4), Medusa(lm, random_medusa(lm, 0))
        )


@pytest.mark.parametrize(
    ("method", "part", "options"),
    [
        ("tokenswift", random_heads, {"widths": [1, 3]}),
        ("tokenswift", random_heads, {"widths": [1, 3, "x", 3]}),
        ("tokenswift", random_heads, {"widths": [32, 32, 32, 32]}),
        ("tokenswift", random_heads, {"budget": 16}),
        ("tokenswift", random_heads, {"choice": "best"}),
        ("medusa", random_medusa, {"widths": [2, 2, 2, 2, 2]}),
        ("medusa", random_medusa, {"widths": [0]}),
        ("medusa", None, {}),
    ],
)
def test_bad_options_are_one_line(method, part, options):
    lm = tiny.target("llama")
    with pytest.raises(InputError) as error:
        build(method, lm, part and part(lm, 0), **options)
    assert "\n" not in str(error.value)


def test_random_parts_repeat():
    lm = tiny.target("llama")
    for make in (random_heads, random_medusa):
        a, b, c = (make(lm, seed).weight for seed in (1, 1, 2))
        assert torch.equal(a, b) and not torch.equal(a, c)


def test_a_penalty_reaches_into_the_tree():
    """A token that the logits want again and again is wanted less below itself."""
    logits = torch.zeros(2, 3, 96)
    logits[..., 7] = 3.0
    logits[..., 8] = 2.9
    for sampler, below in ((Sampler(), 7), (Sampler(penalty=1.5), 8)):
        seqs = Sequences.of([[5], [5, 6]], 9, tiny.target("llama").new_cache(2, 4), sampler)
        tree = add_product(
            Tree.root(seqs.last), logits, cartesian([2, 1]), seqs, DraftLimits(seqs.room)
        )
        assert tree.tokens[:, 1:].tolist() == [[7, 8, below, 7]] * 2
