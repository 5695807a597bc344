"""DFlash: its ring against recomputation from scratch, its block against one pass without a ring,
its labels.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import SAMPLERS, SEED, check_lossless
from support.dflash_ring import Watched, check_ring, states
from support.structure import close

from longdraft import InputError, Sampler, build
from longdraft.core.sequences import Sequences
from longdraft.core.tree import DraftLimits, Tree
from longdraft.drafters import AdaptiveDraft, DFlash
from longdraft.drafters.adaptive.decision import CAPTURE_ONLY, PLAIN, Draft
from longdraft.drafters.adaptive.pace import Pace
from longdraft.drafters.dflash.block import DFlashBlock, random_dflash, taps
from longdraft.drafters.dflash.objective import DFlashObjective, block_for
from longdraft.drafters.dflash.ring import FeatureRing
from longdraft.models.lm import LM
from longdraft.training.frozen import Frozen


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [3, 9, 512])
def test_drafts_are_those_of_one_pass_without_a_ring(window, causal):
    check_ring(window, causal)


def test_rounds_that_were_left_out_are_caught_up(monkeypatch):
    """Whatever it saw, before a draft the ring is what it is when every round is seen."""
    missed = [PLAIN, PLAIN, PLAIN, CAPTURE_ONLY]
    decisions = cycle([*missed, Draft(2), Draft(3, 2), PLAIN, CAPTURE_ONLY, Draft(1, 1)])
    monkeypatch.setattr(Pace, "decide", lambda self, captured: next(decisions))
    lm = tiny.target("llama")
    drafter = Watched(lm, random_dflash(lm, 0, slots=4), 30, window=9)
    check_lossless(lambda t: AdaptiveDraft(drafter), "llama", SAMPLERS["T=1"], (30,), 48)
    assert drafter.checked >= 10


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=12)


@pytest.mark.full
@given(STEPS, st.integers(1, 6), st.integers(0, 4))
def test_a_ring_holds_what_was_appended_and_not_taken_back(steps, size, begin):
    """Each key is its position's number, and a position that comes again has another value."""
    block = DFlashBlock(random_dflash(tiny.target("llama"), 0, layers=1).shape)
    ring = FeatureRing(block, size, torch.tensor([begin]))
    text = {}
    version = 0
    for back, n in steps:
        end = int(ring.end[0])
        version = version + 1000
        if back:
            ring.rewind(torch.tensor([max(end - n, begin)]))
            text = {p: x for p, x in text.items() if p < end - n}
        else:
            new = torch.arange(end, end + 9) + version
            k = new[None, None, None, :, None].expand(1, 1, 2, 9, 16).float()
            ring.append(torch.tensor([0]), k, k, torch.tensor([n]))
            text |= {p: p + version for p in range(end, end + n)}
            text = {p: x for p, x in text.items() if p >= end + n - size}  # their slots are needed
        end = int(ring.end[0])
        assert end == max(text, default=end - 1) + 1
        seen = ring.visible(2, 5)
        for slot in range(2):
            want = sorted(x for p, x in text.items() if p > end + slot - 5)
            held = ring.k[0, 0, 0, : ring.size, 0]
            assert sorted(held[seen[0, slot]].tolist()) == want


@torch.no_grad()
@pytest.mark.parametrize("shift", [10_000, 100_000])
def test_only_differences_of_positions_matter(shift):
    lm = tiny.target("llama")
    text = tiny.prompts(40)[0]
    block = random_dflash(lm, 3)
    close(states(lm, block, text, 10, 512, shift), states(lm, block, text, 10, 512), 1e-4)


@torch.inference_mode()
def test_memory_does_not_grow_and_limits_change_no_draft():
    lm = tiny.target("llama")
    sizes = []
    for length in (60, 300):
        cache = lm.new_cache(1, 400)
        lm.prefill(tiny.prompts(length)[0][:-1], cache)
        seqs = Sequences.of(tiny.prompts(length), 50, cache, Sampler(), SEED)
        drafter = build("dflash", lm, random_dflash(lm, 0), nodes=20, window=32)
        assert isinstance(drafter, DFlash)
        drafter.start(seqs)
        whole, two = (
            drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(depth=d)) for d in (9, 2)
        )
        chain = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(width=1))
        assert chain.size == 8 and int(whole.depth.max()) > 2 >= int(two.depth.max())
        below = whole.depth[0] <= 2
        assert set(whole.tokens[0, below].tolist()) <= set(two.tokens[0].tolist())
        sizes.append(drafter.ring.k.nbytes)
    assert sizes[0] == sizes[1]


def said(lm: LM, drafter: DFlash) -> float:
    return check_lossless(
        lambda t: drafter, "llama-loops", Sampler(), (1,), 60
    ).mean_acceptance_length


@pytest.mark.full
@pytest.mark.parametrize("late", [0, 1])
def test_a_slot_learns_the_token_at_its_own_place(late, monkeypatch):
    """On text that runs in circles nearly every draft of a trained block is accepted; with labels
    of the next place hardly any.
    """
    good = DFlashObjective._slot_loss
    monkeypatch.setattr(
        DFlashObjective, "_slot_loss", lambda self, x, t, h, at: good(self, x, t, h, at + late)
    )
    lm = tiny.target("llama-loops")
    torch.manual_seed(0)
    block = block_for(lm, layers=1, features=1, slots=4, window=8)
    rows = [tiny.prompts(1, seed=n)[0] for n in range(8)]
    texts = tiny.eager("llama-loops").generate(
        torch.tensor(rows), max_new_tokens=32, do_sample=False
    )
    learns = DFlashObjective(Frozen(lm), block, anchors=24)
    optimizer = torch.optim.AdamW(block.parameters(), 0.01)
    for step in range(40):
        learns.loss(texts[:, : 33 - late], np.random.default_rng(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    block.eval().requires_grad_(False)
    found = said(lm, DFlash(lm, block, gamma=3))
    assert found > 3.5 if not late else found < 1.5
    assert late or min(learns.shares(texts)) > 0.9


def test_layers_read():
    assert taps(36, 5) == [2, 10, 18, 26, 34]  # z-lab/Qwen3-8B-DFlash-b16
    assert taps(30, 3) == [2, 15, 28] and taps(32, 1) == [17]
    assert taps(3, 3) == [1, 2] and taps(1, 5) == [1]


def test_random_blocks_repeat_and_bad_options_are_one_line():
    lm = tiny.target("llama")
    a, b, c = (random_dflash(lm, seed).fuse.weight for seed in (SEED, SEED, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)
    block = random_dflash(lm, 0, slots=4)
    assert (build("dflash", lm, block).max_depth, build("dflash", lm, block, gamma=2).is_chain) == (
        3,
        True,
    )
    with pytest.raises(InputError, match="give at most 3"):
        build("dflash", lm, block, gamma=4)
    for options in ({"nodes": 0}, {"gamma": -1}, {"window": -1}):
        with pytest.raises(InputError, match="give a whole number"):
            build("dflash", lm, block, **options)
    with pytest.raises(InputError, match="give --length 4"):
        DFlashObjective(Frozen(lm), block).loss(
            torch.ones(1, 4, dtype=torch.long), np.random.default_rng(0)
        )
