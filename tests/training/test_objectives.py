"""What a drafter learns is what it will do: each training pass equals the drafter's own pass over
the same tokens.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import tiny
from support.structure import close

from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.sampling import Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.drafters import DFlash, GlideDrafter, random_glide
from longdraft.drafters.dflash.block import random_dflash
from longdraft.drafters.dflash.objective import DFlashObjective, block_for
from longdraft.drafters.eagle.objective import EagleObjective
from longdraft.drafters.glide import objective as glide
from longdraft.drafters.glide.objective import GlideObjective, banded
from longdraft.drafters.heads.drafter import MedusaHeads
from longdraft.drafters.heads.objective import HeadsObjective, chained
from longdraft.drafters.kinds import KINDS
from longdraft.drafters.small_model import objective as budget
from longdraft.models.lm import LM
from longdraft.training.frozen import Frozen, implied_length
from longdraft.views import Chunks

SIZE = 60
ROOT = 50


def row(seed: int = 3, size: int = SIZE) -> torch.Tensor:
    return torch.tensor(tiny.prompts(size, seed=seed))


@pytest.mark.parametrize(
    "model", ["llama", "qwen3", "gpt-oss", "mistral-window", "gemma2-softcap", "qwen3-mixed"]
)
@torch.no_grad()
def test_a_frozen_target_gives_what_its_cache_and_taps_hold(model):
    lm = tiny.target(model)
    tokens = row()
    last = lm.config.num_hidden_layers
    cache = lm.new_cache(1, SIZE)
    captured = Captures(CaptureSpec(hidden=(1, last)))
    logits = lm(Tree.chain(tokens), cache, captured=captured)
    frozen = Frozen(lm)
    for layer in range(last):
        seen = frozen.read(tokens, None, [1, last], layer)
        for mine, theirs in zip((seen.keys, seen.values), cache.read(layer, 0), strict=True):
            close(mine[0], theirs[:, :SIZE])
    for n in (1, last):
        close(seen.states[n], captured.states[n])
    assert frozen.predictions(seen.states[last]).tolist() == logits.argmax(-1).tolist()
    close(lm(Tree.chain(tokens), cache), logits)  # its attention is ours again


@torch.no_grad()
def test_positions_that_jump_are_one_text():
    """Shifted rotary positions change no attention among the shifted; a text taken apart there
    would.
    """
    frozen = Frozen(tiny.target("llama"))
    tokens = row()
    position = torch.arange(SIZE)[None]
    close(
        frozen.read(tokens, position + 100, [3]).states[3],
        frozen.read(tokens, position, [3]).states[3],
    )
    jumped = torch.where(position < 4, position, position + 100)
    whole = frozen.read(tokens, jumped, [3]).states[3]
    apart = frozen.read(tokens[:, 4:], jumped[:, 4:], [3]).states[3]
    assert not torch.allclose(whole[:, 4:], apart, atol=1e-3)


def drafted(block, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Logits [count,V] of the drafter's own pass over tokens ROOT.. as a chain of nodes."""
    lm = block.host.target
    cache = lm.new_cache(1, SIZE)
    lm.prefill(tokens[0, :ROOT].tolist(), cache)
    seqs = Sequences.of([tokens[0, : ROOT + 1].tolist()], 9, cache, Sampler())
    drafter = GlideDrafter(block, [1] * count)
    drafter.start(seqs)
    drafter.ring.refresh(seqs.tokens, seqs.length - 1)
    return drafter.logits(Tree.chain(tokens[:, ROOT : ROOT + count]), 0, seqs, None)[0]


def trained(block, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """The same of the training pass: depth d at lag d+1."""
    learns = GlideObjective(Frozen(block.host.target), block)
    position = torch.arange(SIZE)[None]
    seen = learns._read(tokens, position)
    return torch.stack(
        [
            block.head(learns.hidden(tokens, position, seen, d + 1))[0, ROOT + d]
            for d in range(count)
        ]
    )


@pytest.mark.each_value
@pytest.mark.parametrize("model", ["llama", "qwen3", "gpt-oss", "mistral-window"])
@pytest.mark.parametrize("window", [16, 512])
@torch.no_grad()
def test_glide_learns_on_what_it_will_see(model, window, monkeypatch):
    block = random_glide(tiny.target(model), 1, window=window)
    want = drafted(block, row(), 5)
    close(trained(block, row(), 5), want)
    good = glide.lagged
    monkeypatch.setattr(
        glide, "lagged", lambda q, k, v, lag, window: good(q, k, v, lag - 1 or 1, window)
    )
    # a lag off by one is seen
    assert not torch.allclose(trained(block, row(), 5)[1:], want[1:], atol=1e-3)


@pytest.mark.parametrize("back", [None, 0, 1, 5, 19, 20, 40])
def test_a_band_is_its_mask(back):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, h, 20, 8) for h in (4, 2, 2))
    behind = torch.arange(20)[:, None] - torch.arange(20)
    seen = (behind >= 0) & (behind <= (99 if back is None else back))
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, seen, enable_gqa=True
    ).transpose(1, 2)
    close(banded(q, k, v, back), want)


def test_anchors_stay_and_the_rest_is_shifted():
    learns = GlideObjective(
        Frozen(tiny.target("llama")), random_glide(tiny.target("llama")), anchors=4
    )
    found = [learns.positions(2, 60, np.random.default_rng(i)) for i in range(20)]
    for position in found:
        assert position[0, :4].tolist() == [0, 1, 2, 3] and position.shape == (2, 60)
        assert position[0, 4:].diff().eq(1).all() and int(position.max()) < 512
    assert len({int(p[0, 4]) for p in found}) > 10


@torch.no_grad()
def test_eagle_learns_on_what_it_will_see():
    lm = tiny.target("llama")
    block = KINDS["eagle3"].random(lm, 1)
    tokens = row()
    learns = EagleObjective(Frozen(lm), block)
    outputs, _ = learns._outputs(tokens)
    states = learns.frozen.read(tokens, states=sorted(set(block.captured_layers(3)))).states
    feature = block.feature(lm, [states[n] for n in block.captured_layers(3)])
    embed = lm.hf.get_input_embeddings()
    own = KVCache(1, 2 * SIZE)
    chain = Tree.chain(tokens[:, 1 : ROOT + 1])
    out = block(feature[:, :ROOT], embed(tokens[:, 1 : ROOT + 1]), chain.depth, chain.mask, own, 0)
    own.length += ROOT
    close(outputs[0][:, :ROOT], out)
    out = out[:, -1:]
    for i in range(1, 5):
        pair = ROOT - 1 + i
        token = embed(tokens[:, pair + 1 : pair + 2])
        position = torch.tensor([[pair]])
        out = block(out, token, position, torch.ones(1, 1, i, dtype=torch.bool), own, i - 1)
        close(outputs[i][:, pair : pair + 1], out)


@pytest.mark.each_value
@pytest.mark.parametrize("model", ["llama", "qwen3", "gpt-oss"])
@pytest.mark.parametrize(("window", "causal"), [(16, False), (16, True), (512, False)])
@torch.no_grad()
def test_dflash_learns_on_what_it_will_see(model, window, causal, monkeypatch):
    """A block at ROOT, beside others, sees the features before it and its own slots, as when it
    drafts.
    """
    lm = tiny.target(model)
    tokens = row()
    block = random_dflash(lm, 1, slots=5, window=window, causal=causal)
    cache = lm.new_cache(1, SIZE)
    lm.prefill(tokens[0, :ROOT].tolist(), cache)
    seqs = Sequences.of([tokens[0, : ROOT + 1].tolist()], 9, cache, Sampler())
    drafter = DFlash(lm, block)
    drafter.start(seqs)
    drafter.ready(seqs)
    want = drafter.states(seqs.last)[0]

    def learned() -> torch.Tensor:
        learns = DFlashObjective(Frozen(lm), block)
        return learns.hidden(
            tokens, learns._read(tokens, False), torch.tensor([1, ROOT - 2, ROOT, ROOT + 3])
        )[0, 2, 1:]

    close(learned(), want)
    good = DFlashObjective._mask
    monkeypatch.setattr(
        DFlashObjective, "_mask", lambda self, roots, *more: good(self, roots + 1, *more)
    )
    # the root's own feature, which is not known yet, is seen
    assert not torch.allclose(learned(), want, atol=1e-3)


@pytest.mark.parametrize("make", [chained, lambda lm: MedusaHeads(lm.config.hidden_size)])
@torch.no_grad()
def test_heads_learn_the_token_after_the_next(make):
    """On the target's own greedy text the labels of text and target are one, and of no other
    shift.
    """
    lm = tiny.target("llama")
    prompt = tiny.prompts(20)[0]
    text = tiny.eager("llama").generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False)
    own, told = (HeadsObjective(Frozen(lm), make(lm), labels) for labels in ("target", "text"))
    (_, said), wanted = own._read(text), []
    for learns in (own, told):
        wanted.append(learns._wanted(text, said)[0, 20:40])
    assert torch.equal(*wanted)
    for i in range(len(own.module)):
        assert wanted[0][:, i].tolist() == text[0, 22 + i : 42 + i].tolist()


@pytest.mark.parametrize("budget_", [0, 40])
@torch.no_grad()
def test_a_budget_drafter_learns_on_what_it_will_see(budget_):
    target = tiny.target("llama")
    small = LM(tiny.stock("llama", 1), "small")
    learns = budget.BudgetObjective(Frozen(target), small, tail=10)
    tokens = row()[0]
    cache = learns._prefix(tokens, ROOT)
    found = learns._logits(tokens, learns._seen(tokens, cache, budget_), ROOT)
    view = None
    if budget_:
        policy = Chunks(budget_, 8, "obs_window")
        policy.start(small, tokens[None, : ROOT + 1], cache)
        view = policy.view(cache)
    close(found, small(Tree.chain(tokens[None, ROOT:]), cache, view=view)[0])
    if budget_:
        assert not torch.allclose(
            found, small(Tree.chain(tokens[None, ROOT:]), cache)[0], atol=1e-3
        )


ALL = ["glide", "glide law", "heads", "medusa", "eagle", "dflash", "dflash law", "budget"]


def objectives(lm: LM) -> dict:
    frozen = Frozen(lm)
    return {
        "glide": GlideObjective(
            frozen, random_glide(lm, 0, with_norm=True).requires_grad_(True), anchors=0
        ),
        "glide law": GlideObjective(
            frozen, random_glide(lm, 0, with_norm=True).requires_grad_(True), "law", anchors=0
        ),
        "heads": HeadsObjective(frozen, chained(lm)),
        "medusa": HeadsObjective(frozen, MedusaHeads(lm.config.hidden_size), "text"),
        "eagle": EagleObjective(
            frozen, KINDS["eagle3"].random(lm, 0).requires_grad_(True), depth=2
        ),
        "dflash": DFlashObjective(frozen, block_for(lm, slots=5)),
        "dflash law": DFlashObjective(
            frozen, block_for(lm, slots=3, causal=True), "law", anchors=9
        ),
        "budget": budget.BudgetObjective(frozen, LM(tiny.stock("llama", 1), "small"), tail=20),
    }


@pytest.mark.full
@pytest.mark.parametrize("kind", ALL)
def test_the_loss_falls_and_only_the_module_learns(kind):
    lm = tiny.target("llama")
    learns = objectives(lm)[kind]
    tokens = torch.tensor(tiny.prompts(41, 41, seed=5))
    before = [p.clone() for p in lm.hf.parameters()]
    optimizer = torch.optim.AdamW(learns.module.parameters(), 0.003)
    losses = []
    for _ in range(25):
        loss = learns.loss(tokens, np.random.default_rng(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(a, b) for a, b in zip(before, lm.hf.parameters(), strict=True))
    assert all(0 <= share <= 1 for share in learns.shares(tokens))


@pytest.mark.parametrize("kind", ALL)
def test_autocast_beside_a_target_in_bfloat16(kind):
    lm = LM(tiny.stock("llama", dtype=torch.bfloat16))
    learns = objectives(lm)[kind]
    tokens = torch.tensor(tiny.prompts(41, seed=5))
    learns.module.float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = learns.loss(tokens, np.random.default_rng(1))
        learns.shares(tokens)
    loss.backward()
    assert torch.isfinite(loss) and all(
        torch.isfinite(p.grad).all() for p in learns.module.parameters()
    )


def test_the_length_that_shares_imply():
    assert implied_length([]) == 1 and implied_length([1, 1]) == 3
    assert implied_length([0.5, 0.5, 0]) == pytest.approx(1.75)
