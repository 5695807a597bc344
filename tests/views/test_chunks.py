"""What is chosen once after prefill: the selection beside a slow one, and that choosing changes
nothing.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.structure import check_view, close

from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.models.lm import LM
from longdraft.views import Chunks, SnapKV, View
from longdraft.views.base import budget_of
from longdraft.views.prompt_selection import OBSERVED, SCORERS

MODELS = ["llama", "llama-torch", "llama-mha", "llama-6of3", "qwen3", "gpt-oss"]
LENGTHS = (200, 90, 131, 40, 1)


def filled(lm: LM, lengths: tuple[int, ...], slots: int = 256) -> tuple[torch.Tensor, KVCache]:
    """tokens [B,N] and a cache of all but each row's last one, as after prefill."""
    prompts = tiny.prompts(*lengths)
    cache = lm.new_cache(len(lengths), slots)
    tokens = torch.zeros(len(lengths), max(lengths) + 8, dtype=torch.long)
    for b, prompt in enumerate(prompts):
        tokens[b, : len(prompt)] = torch.tensor(prompt)
        lm.prefill(prompt[:-1], cache.row(b))
    return tokens, cache


@torch.no_grad()
def weights_of(model: str, prompt: torch.Tensor, K: int) -> list[torch.Tensor]:
    """Attention of the whole prompt by Transformers' own pass, averaged over each key head's
    queries: [K,T,T] each.
    """
    found = tiny.eager(model)(
        input_ids=prompt[None], use_cache=False, output_attentions=True
    ).attentions
    return [a[0].view(K, -1, *a.shape[2:]).mean(1) for a in found]


def chosen(view: View, layer: int, b: int, heads: int) -> list[list[int]]:
    """The slots each key head of a row sees below `since`."""
    assert view.layers is not None
    indices = view.indices[view.layers[layer], b].expand(heads, -1)
    return [[s for s in head if s >= 0] for head in indices.tolist()]


def best_chunks(
    score: list[float], budget: int, recent: int, length: int, chunk: int
) -> tuple[list[int], int]:
    """By plain loops: score of each slot -> (slots picked, from where on all is seen)."""
    tail_start = length - recent
    while tail_start % chunk:
        tail_start -= 1
    left = budget - (length - tail_start)
    means = {c: sum(score[c * chunk : (c + 1) * chunk]) for c in range(1, tail_start // chunk)}
    taken = [0, *sorted(means, key=lambda c: -means[c])[: left // chunk - 1]]
    return sorted(c * chunk + i for c in taken for i in range(chunk)), tail_start


@pytest.mark.product
@torch.no_grad()
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("score", SCORERS)
@pytest.mark.parametrize(
    ("budget", "chunk"),
    [
        *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((96, 8), (90, 8), (40, 8))),
        (60, 5),
    ],
)
def test_chunks_are_the_best_ones(model, score, budget, chunk):
    lm = tiny.target(model)
    tokens, cache = filled(lm, LENGTHS)
    policy = Chunks(budget, chunk, score)
    policy.start(lm, tokens, cache)
    view = policy.view(cache)
    assert view is not None
    for b, n in enumerate(LENGTHS):
        if n <= budget:
            assert int(view.tail_start[b]) == 0
            assert (view.indices[:, b] < 0).all()
            continue
        K = lm.config.num_key_value_heads
        recent = min(32, (budget - chunk) // 2)
        attention = weights_of(model, tokens[b, :n], K)
        full = lm.new_cache(1, n)
        lm.prefill(tokens[b, :n].tolist(), full)
        for layer in set(range(lm.config.num_hidden_layers)) - set(lm.windows):
            for h, found in enumerate(chosen(view, layer, b, K)):
                k = full.read(layer, 0)[0][h]
                weights = attention[layer][h]
                slots = {
                    "last_key": (k[:n] @ k[n - 1]).tolist(),
                    "obs_window": weights[-min(32, n - int(view.tail_start[b])) :].sum(0).tolist(),
                    "last_query_mean_key": last_logits(model, lm, layer, tokens[b, :n], K)[
                        h
                    ].tolist(),
                }[score]
                want, tail_start = best_chunks(slots, budget, recent, n, chunk)
                assert int(view.tail_start[b]) == tail_start
                assert found == want
                assert budget - chunk < len(found) + n - tail_start <= budget


@torch.no_grad()
def last_logits(model: str, lm: LM, layer: int, prompt: torch.Tensor, K: int) -> torch.Tensor:
    """[K,T] of the last row, up to a constant per head, which no ranking sees: logarithms of
    Transformers' weights.
    """
    found = tiny.eager(model)(
        input_ids=prompt[None], use_cache=False, output_attentions=True
    ).attentions[layer]
    return found[0, :, -1].double().log().view(K, -1, len(prompt)).mean(1)


@pytest.mark.each_value
@torch.no_grad()
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("min_budget", [96, 41, 8])
def test_snapkv_keeps_what_the_window_voted_for(model, min_budget):
    lm = tiny.target(model)
    tokens, cache = filled(lm, LENGTHS)
    policy = SnapKV(0.07, min_budget)
    policy.start(lm, tokens, cache)
    view = policy.view(cache)
    assert view is not None
    check_view(
        View(view.indices[:, :, 0], view.tail_start),
        cache,
        [min(n, min_budget) - 1 for n in LENGTHS],
    )
    for b, n in enumerate(LENGTHS):
        budget = budget_of(n, 0.07, min_budget)
        if budget >= n:
            assert int(view.tail_start[b]) == 0
            continue
        window = min(32, budget // 2)
        K = lm.config.num_key_value_heads
        assert int(view.tail_start[b]) == n - window
        attention = weights_of(model, tokens[b, :n], K)
        for layer in set(range(lm.config.num_hidden_layers)) - set(lm.windows):
            for h, found in enumerate(chosen(view, layer, b, K)):
                votes = [
                    0,
                    0,
                    *attention[layer][h, n - window :, : n - window].sum(0).tolist(),
                    0,
                    0,
                ]
                pooled = torch.tensor([sum(votes[i : i + 5]) / 5 for i in range(n - window)])
                assert len(found) == budget - window
                others = sorted(set(range(n - window)) - set(found))
                # neighbors share votes, so ties are common
                assert pooled[found].min() >= pooled[others].max() - 1e-5


def every_row(
    model: LM, tokens: torch.Tensor, cache: KVCache, slots: int
) -> dict[int, torch.Tensor]:
    """obs_window by the long way: a row of weights for every query after `slots`, of all layers at
    once, then added.
    """
    n = int(cache.length[0])
    captured = Captures(CaptureSpec(rows="all", of="weights", split=True))
    with cache.reopen(n - slots):
        model(Tree.chain(tokens[:, slots : n + 1]), cache, captured=captured)
    return {layer: s[0, -OBSERVED:, :, :slots].sum(0) for layer, s in captured.scores.items()}


@pytest.mark.each_value
@torch.no_grad()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", MODELS)
def test_means_of_the_window_pick_what_all_its_rows_pick(model, dtype):
    lm = typed(model, dtype)
    tokens, cache = filled(lm, LENGTHS)
    for policy in (Chunks(96, 8), Chunks(60, 5), Chunks(40, 8), SnapKV(0.07, 41)):
        policy.start(lm, tokens, cache)
        found = policy.view(cache)
        policy.scorer = every_row
        policy.start(lm, tokens, cache)
        wanted = policy.view(cache)
        assert found is not None and wanted is not None
        assert torch.equal(found.indices, wanted.indices) and torch.equal(
            found.tail_start, wanted.tail_start
        )


@torch.no_grad()
@pytest.mark.parametrize("model", ["llama", "llama-torch"])
@pytest.mark.parametrize("policy", [Chunks(60, 5), SnapKV(0.07, 80)], ids=["chunks", "snapkv"])
def test_one_row_of_scores_is_held_for_a_layer(model, policy, monkeypatch):
    """Not one for each of the 32 queries and more: at 128K tokens they came to 4.4 GB in a model of
    32 layers.
    """
    lm = tiny.target(model)
    shapes = []
    call = LM.__call__

    def watched(self, tree, cache, *args, captured=None, **others):
        out = call(self, tree, cache, *args, captured=captured, **others)
        shapes.extend((tree.size, tuple(s.shape)) for s in captured.scores.values())
        return out

    tokens, cache = filled(lm, (200,))
    monkeypatch.setattr(LM, "__call__", watched)
    policy.start(lm, tokens, cache)
    policy.view(cache)
    assert len(shapes) == lm.config.num_hidden_layers
    for nodes, shape in shapes:
        assert nodes <= OBSERVED and shape == (1, 1, lm.config.num_key_value_heads, 200 - nodes + 1)


@torch.no_grad()
@pytest.mark.parametrize("model", ["llama", "llama-torch"])
def test_a_pass_where_each_head_sees_its_own_slots(model):
    lm = tiny.target(model)
    eager = tiny.eager(model)
    prompt = tiny.prompts(30)[0]
    cache = lm.new_cache(1, 40)
    lm.prefill(prompt, cache)
    heads = [[0, 3, 7], [1, 19, 4]]
    indices = torch.tensor(heads)[None, None]
    chain = Tree.chain(torch.tensor([[5, 17, 33]]))
    padded = torch.nn.functional.pad(indices, (0, 2), value=-1)
    found = lm(chain, cache, view=View(padded, torch.tensor([20])))
    shown = torch.ones(4, 33, 33, dtype=torch.bool).tril()  # of 4 query heads, 2 to a key head
    shown[:, 30:, :20] = False
    for h in range(4):
        shown[h, 30:, heads[h // 2]] = True
    mask = torch.zeros(4, 33, 33).masked_fill_(~shown, torch.finfo(torch.float32).min)
    ids = torch.tensor([prompt + chain.tokens[0].tolist()])
    close(found[0], eager(input_ids=ids, attention_mask=mask[None], use_cache=False).logits[0, 30:])
    # one choice for all heads
    same = lm(chain, cache, view=View(indices[:, :, :1], torch.tensor([20])))
    assert torch.equal(same, lm(chain, cache, view=View(indices[:, :, 0], torch.tensor([20]))))


def committed(cache: KVCache) -> list[torch.Tensor]:
    lengths = cache.length.tolist()
    rows = [
        (x, n)
        for layer in cache.layers
        for b, n in enumerate(lengths)
        for x in cache.read(layer, b)
    ]
    return [cache.length.clone(), *(x[:, :n].clone() for x, n in rows)]


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    as_bytes = [[x.contiguous().view(torch.uint8) for x in xs] for xs in (a, b)]
    return all(torch.equal(x, y) for x, y in zip(*as_bytes, strict=True))


def typed(model: str, dtype: str) -> LM:
    lm = LM(tiny.stock(model, dtype=getattr(torch, dtype)))
    if model.endswith("-torch"):
        lm.backend = lm.eager
    return lm


@pytest.mark.full
@torch.no_grad()
@pytest.mark.parametrize("model", ["llama", "qwen3-torch", "gpt-oss", "deepseek"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("policy", [*SCORERS, "snapkv"])
def test_choosing_does_not_change_a_bit(model, dtype, policy):
    """The prompt's end runs again in another shape of pass, which rounds otherwise; the cache is
    not to show it.
    """
    lm = typed(model, dtype)
    # no room for a root: the buffers move meanwhile
    tokens, cache = filled(lm, (120, 97, 30), slots=119)
    before = committed(cache)
    chooser = SnapKV(0.07, 40) if policy == "snapkv" else Chunks(40, 8, policy)
    chooser.start(lm, tokens, cache)
    assert chooser.view(cache) is not None
    assert same_bits(committed(cache), before)


@torch.no_grad()
def test_reopened_slots_come_back_whatever_happens():
    lm = typed("llama", "bfloat16")
    _, cache = filled(lm, (30, 5))
    before = committed(cache)
    with pytest.raises(KeyError), cache.reopen(10):
        assert cache.length.tolist() == [19, 0]
        lm(Tree.chain(torch.arange(3, 15).expand(2, -1)), cache)
        for layer in cache.layers:
            assert not torch.equal(cache.read(layer, 0)[0][:, :29], before[1 + 4 * layer])
        raise KeyError
    assert same_bits(committed(cache), before)


def test_windows_alone_leave_nothing_to_choose():
    lm = tiny.target("mistral-window")
    tokens, cache = filled(lm, (100,))
    for policy in (*(Chunks(40, 8, s) for s in SCORERS), SnapKV(0.07, 40)):
        policy.start(lm, tokens, cache)
        assert policy.view(cache) is None


def test_prompts_within_the_budget_are_seen_whole():
    lm = tiny.target("llama")
    tokens, cache = filled(lm, (40, 1, 16))
    for policy in (Chunks(40), SnapKV(0.07, 40)):
        assert policy.view(cache) is None  # before it starts, too
        policy.start(lm, tokens, cache)
        assert policy.view(cache) is None


@torch.no_grad()
def test_choosing_again():
    """Every 3 rounds, from the text as it is by then."""
    lm = tiny.target("llama")
    want = Chunks(40)
    tokens, cache = filled(lm, (60,), 128)
    policy = Chunks(40, every=3)
    tail_start = []
    policy.start(lm, tokens, cache)
    for i in range(8):
        view = policy.view(cache)
        assert view is not None
        tail_start.append(int(view.tail_start[0]))
        if i in (0, 3, 6):
            want.start(lm, tokens, cache)
            again = want.view(cache)
            assert again is not None
            assert torch.equal(view.indices, again.indices)
        lm(Tree.root(tokens[:, int(cache.length)]), cache)
        cache.length += 1
    assert tail_start[0] == tail_start[2] == tail_start[3] < tail_start[6] == tail_start[7]


def test_a_budget_below_three_chunks_is_refused():
    with pytest.raises(ValueError, match="at least three chunks"):
        Chunks(23)


@torch.no_grad()
def test_another_start_forgets_the_last_text():
    lm = tiny.target("llama")
    policy = Chunks(40, every=2)
    for lengths in ((100,), (30, 20), (80, 60)):
        tokens, cache = filled(lm, lengths)
        policy.start(lm, tokens, cache)
        view = policy.view(cache)
        assert (view is None) == (max(lengths) <= 40)
        assert view is None or view.tail_start.shape == cache.length.shape
        lm(Tree.root(tokens[:, 0]), cache, view=view, captured=Captures())
