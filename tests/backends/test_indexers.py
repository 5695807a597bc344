"""Layers that choose the keys they read (indexers), or compress them: selection, ties, rollback,
borders of blocks.
"""

from __future__ import annotations

from functools import cache

import pytest
import tiny_models
import torch
from support.checks import SAMPLERS, SEED
from support.feature_models import models_with
from support.listed import BUILD, full

from longdraft import InputError, PromptFile, Session, generate, row_seed, serve
from longdraft.backends.features import indexer
from longdraft.backends.features.compressed import Compressed, Path
from longdraft.backends.features.indexer import Choice, Indexer, first_of_best
from longdraft.core.cache import KVCache
from longdraft.core.tree import PAD, Tree
from longdraft.models.lm import LM
from longdraft.models.support import refuse
from longdraft.prompts.prefix_cache import PrefixCache
from longdraft.views import View

KINDS = (*models_with(Indexer), *models_with(Compressed))
LATER = {"glm_moe_dsa", "axk2", "dots3_note", "hy_v4"}  # like others of these
DAILY = {"vegas-tree", "magicdec-quest"}  # a tree under a list of slots, slots by queries
REFUSING = {
    "longspec",
    "longspec-chain",
    "longspec-guided",
    "longspec, then lookup",
    "longspec, best paths",
    "auto",
    "fill",  # of longspec; of vegas it runs
}
REFUSING |= {name for name in BUILD if name.startswith("mtp")}
METHODS = [pytest.param(m, marks=() if m in DAILY else full) for m in BUILD if m not in REFUSING]
each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=full if k in LATER else ()) for k in KINDS]
)
TIES = "with ties"  # deepseek_v32 with an indexer of one head: half of the scores are zero


@cache
def stock(kind: str):
    if kind not in tiny_models.KINDS and kind != TIES:
        pytest.skip("this version of Transformers has no such model")
    config = tiny_models.config("deepseek_v32" if kind == TIES else kind)
    if kind == TIES:
        config.index_n_heads = 1
    hf = tiny_models.build(config)
    hf.generation_config.eos_token_id = None
    return hf


@cache
def target(kind: str) -> LM:
    return LM(stock(kind), kind)


def prompts(*lengths: int) -> list[list[int]]:
    return [tiny_models.prompt(n) for n in lengths]


# What is computed ---------------------------------------------------------------------------------


@pytest.mark.full
@torch.inference_mode()
@each_kind
def test_plain_decoding_is_that_of_transformers(kind):
    """Rows of which one has fewer tokens than an indexer chooses, and others many more."""
    hf = stock(kind)
    rows = prompts(50, 9, 27)
    hf.set_attn_implementation("eager")
    inputs = [torch.tensor([p]) for p in rows]
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    want = [
        hf.generate(x, attention_mask=torch.ones_like(x), **options)[0, x.shape[1] :].tolist()
        for x in inputs
    ]
    assert generate(LM(hf), rows, max_new_tokens=10) == want


SLIDING = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
COMBINATIONS = [
    ([SLIDING, SPARSE], 4, 8),
    ([HEAVY], 4, 16),
    ([SLIDING, HEAVY, SPARSE], 3, 7),
    ([SLIDING] * 2, 4, 8),
]


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.parametrize(("types", "sparse", "heavy"), COMBINATIONS)
def test_compressed_layers_in_any_combination(types, sparse, heavy):
    """Of any rates, and none at all: the configuration is accepted, and the model says what
    Transformers' says.
    """
    if "deepseek_v4" not in tiny_models.KINDS:
        pytest.skip("this version of Transformers has no such model")
    config = tiny_models.config("deepseek_v4")
    config.layer_types = types
    config.mlp_layer_types = ["moe"] * len(types)
    config.num_hidden_layers = len(types)
    config.compress_rates = {SPARSE: sparse, HEAVY: heavy}
    refuse(config)
    hf = tiny_models.build(config)
    ids = torch.tensor(prompts(40))
    hf.set_attn_implementation("eager")
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    want = hf.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, 40:].tolist()
    assert generate(LM(hf), ids.tolist(), max_new_tokens=10, eos=()) == [want]


@torch.inference_mode()
def check_paths(kind: str, length: int = 37, seed: int = 0) -> None:
    """A text of which each pass commits a part, beside a branch that is dropped, has the logits of
    its tokens alone.

    Passes have from one to nine nodes, so they end on every side of a block's border.
    """
    lm = target(kind)
    g = torch.Generator().manual_seed(seed)
    text = tiny_models.prompt(length)
    alone = lm.new_cache(1, 8)
    held = lm.new_cache(1, 8)
    start = 0
    for token in text:
        wanted = lm(Tree.chain(torch.tensor([[token]])), alone)
        alone.length += 1
        if start == int(alone.length) - 1:  # the next pass
            width = min(int(torch.randint(1, 10, (1,), generator=g)), length - start)
            tree = Tree.root(torch.tensor([text[start]]))
            tree = tree.add_paths(torch.tensor([[0]]), torch.randint(3, 96, (1, 1, 3), generator=g))
            if width > 1:
                tree = tree.add_paths(
                    torch.tensor([[0]]), torch.tensor([[text[start + 1 : start + width]]])
                )
            path = [0, *range(4, 3 + width)]
            logits = lm(tree, held)[:, path]
            held.keep(torch.tensor([path]), torch.tensor([width]))
            first = start
            start = start + width
        mine = logits[:, int(alone.length) - 1 - first]
        torch.testing.assert_close(mine, wanted[:, 0], rtol=1e-3, atol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(k, marks=pytest.mark.weekly if k in LATER else ()) for k in KINDS), TIES],
)
def test_each_node_reads_its_own_path(kind):
    check_paths(kind)


@pytest.mark.each_value
@full
@pytest.mark.parametrize("kind", [*KINDS, TIES])
@pytest.mark.parametrize("seed", range(1, 6))
def test_each_node_reads_its_own_path_of_long_texts(kind, seed):
    check_paths(kind, 90, seed)


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.parametrize("kind", ["minimax_m3_vl_text", "deepseek_v4"])
def test_padding_and_rows_without_new_nodes(kind):
    """Nodes that are drafted in two passes, of which the second has some for one row alone."""
    lm = target(kind)
    rows = prompts(21, 12)
    held = lm.new_cache(2, 64)
    for b, row in enumerate(rows):
        lm.prefill(row, held.row(b))
    tree = Tree.root(torch.tensor([5, 6])).grow(
        torch.tensor([[0, 0], [0, PAD]]), torch.tensor([[7, 8], [9, 0]])
    )
    lm(tree, held)
    deeper = tree.grow(torch.tensor([[2], [PAD]]), torch.tensor([[11], [0]]))
    logits = lm(deeper, held, start=3)
    alone = lm.new_cache(1, 64)
    lm.prefill(rows[0], alone)
    want = lm(Tree.chain(torch.tensor([[5, 8, 11]])), alone)[:, -1]
    torch.testing.assert_close(logits[:1, -1], want, rtol=1e-3, atol=1e-3)
    assert bool(logits.isfinite().all())


# Ties ---------------------------------------------------------------------------------------------


def check_order_of_ties() -> None:
    """Scores of which most are zero: the choice is by index, and the same for a node alone and
    among many.
    """
    scores = torch.randint(-1, 2, (2, 9, 40), generator=torch.Generator().manual_seed(1)).float()
    scores[:, :, 30:] = float("-inf")
    many = indexer.first_of_best(scores, 16, dim=-1).indices.sort(-1).values
    stable = scores.sort(dim=-1, descending=True, stable=True).indices[..., :16].sort(-1).values
    assert torch.equal(many, stable)
    for b in range(2):
        for node in range(9):
            one = indexer.first_of_best(
                scores[b : b + 1, node : node + 1, : 30 + node], 16, dim=-1
            ).indices
            assert torch.equal(one.sort(-1).values[0, 0], many[b, node])


def test_order_of_ties():
    check_order_of_ties()
    few = first_of_best(torch.tensor([[[2.0, float("-inf"), float("-inf")]]]), 2)
    assert few.indices.tolist() == [[[0, 1]]] and few.values.tolist() == [[[2.0, float("-inf")]]]
    assert first_of_best(torch.zeros(1, 2, 0), 0).indices.shape == (1, 2, 0)


# Views --------------------------------------------------------------------------------------------


def test_a_view_narrows_the_choice():
    """Of slots 0, 2, 3 and 5 the view shows 2 and those from 4 on; a query that chose none of these
    reads them all.
    """
    held = KVCache(1, 8)
    k = torch.arange(6.0).expand(1, 1, 6).mT[None]
    held.write(0, k[0][None], k[0][None], [0])
    held.length += 4
    choice = Choice(held, [4], 0, torch.tensor([[0, 1]]), [torch.ones(2, 2).tril().bool()], 1)
    choice.choose(0, torch.tensor([[[0, 2, 3, 5], [0, 1, 3, 3]]]))
    view = View(torch.tensor([[[2]]]), torch.tensor([4]))
    [segments] = choice.groups(0, 0, held.stored_row(0, 0), view, torch.zeros(1, 2, 1), False)
    assert [s.k[0, :, 0].tolist() for s in segments] == [[2.0], [4.0, 5.0]]
    assert [s.visible.tolist() for s in segments] == [
        [[True], [True]],
        [[False, False], [True, True]],
    ]
    [[every]] = choice.groups(0, 0, held.stored_row(0, 0), None, torch.zeros(1, 2, 1), True)
    assert every.visible.tolist() == [
        [True, False, True, True, False, False],
        [True, True, False, True, False, False],
    ]


# Lossless decoding --------------------------------------------------------------------------------


def check_method(kind: str, method: str, sampler: str, lm: LM | None = None) -> None:
    lm = lm or target(kind)
    options = {"max_new_tokens": 12, "sampler": SAMPLERS[sampler], "seed": SEED}
    want = generate(lm, prompts(50, 21), **options)
    assert generate(lm, prompts(50, 21), BUILD[method](lm), **options) == want


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["deepseek_v32", pytest.param("glm_moe_dsa", marks=full)])
@pytest.mark.parametrize("sampler", ["greedy", pytest.param("T=1", marks=full)])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_plain_decoding_says(kind, sampler, method):
    check_method(kind, method, sampler)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [pytest.param(k, marks=full) for k in KINDS])
@pytest.mark.parametrize("method", ["vegas-tree", "magicdec-quest", "quantspec", "lookup"])
def test_other_kinds(kind, method):
    check_method(kind, method, "T=1")


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", ["deepseek_v32", *(pytest.param(k, marks=full) for k in KINDS if k != "deepseek_v32")]
)
def test_rows_that_come_and_go(kind):
    lm = target(kind)
    options = {"max_new_tokens": 8, "sampler": SAMPLERS["T=1"]}
    texts = prompts(40, 21, 9, 50, 12)
    events = serve(lm, iter(texts), BUILD["vegas-tree"](lm), 2, seed=SEED, slots=160, **options)
    tokens = {e.index: e.tokens for e in events}
    for i, text in enumerate(texts):
        assert tokens[i] == generate(lm, [text], seed=row_seed(SEED, i), **options)[0]


@full
@pytest.mark.parametrize("kind", KINDS)
def test_keys_in_8_bits(kind):
    check_method(kind, "vegas-tree", "T=1", LM(stock(kind), kv="int8"))


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", ["deepseek_v4", *(pytest.param(k, marks=full) for k in KINDS if k != "deepseek_v4")]
)
def test_prompts_that_are_kept(kind, tmp_path, monkeypatch):
    """A file of a prompt, and a session's blocks of earlier ones, with which another prompt
    begins.
    """
    monkeypatch.setattr("longdraft.models.lm.PART", 16)  # where a part of a prompt may end
    lm, [text, more] = target(kind), prompts(50, 11)
    options = {"max_new_tokens": 8, "sampler": SAMPLERS["T=1"], "eos": ()}
    want = generate(lm, [text + more], seed=3, **options)[0]
    for prompt in (text, text + more):
        file = PromptFile(tmp_path / "prompt", lm)
        said = generate(lm, [prompt], seed=3, prompt_cache=file, **options)[0]
    assert said == want
    with Session(lm, None, 1, 128, SAMPLERS["T=1"], prefixes=PrefixCache(400, 16)) as session:
        for prompt in (text, text + more):
            session.submit(prompt, 8, seed=3, eos=())
            said = []
            while session.running or session.waiting:
                said += [token for event in session.step() for token in event.tokens]
    assert said == want and session.prefixes.hits == 48


# What is refused ----------------------------------------------------------------------------------


def test_refusals():
    config = tiny_models.config("llama")
    config.layer_types = ["full_attention", "spherical_attention"] * 2
    with pytest.raises(
        InputError, match="has spherical_attention layers, which longdraft does not support yet"
    ):
        refuse(config)
    with pytest.raises(InputError, match="mtp does not run"):
        BUILD["mtp"](target("deepseek_v32"))
    choice = Choice(KVCache(1, 8), [0], 0, torch.zeros(1, 1, dtype=torch.long), [None], 4)
    with pytest.raises(InputError, match="did not choose"):
        choice.chosen(3, 0)


# What the checks must catch -----------------------------------------------------------------------


def _leaving_behind(keep):
    """A commit that moves the keys of attention alone, so that the others' slots keep what a
    dropped branch wrote.
    """

    def kept(self, path, count):
        layers = self._store.layers
        self._store.layers = {n: pair for n, pair in layers.items() if n < 4}
        keep(self, path, count)
        self._store.layers = layers

    return kept


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("kind", ["deepseek_v32", "minimax_m3_vl_text", "deepseek_v4"])
def test_a_key_that_survives_its_rollback_is_caught(kind, monkeypatch):
    monkeypatch.setattr(KVCache, "keep", _leaving_behind(KVCache.keep))
    with pytest.raises(AssertionError):
        check_paths(kind)


def test_an_order_of_ties_by_the_number_of_nodes_is_caught(monkeypatch):
    def flipped(scores, k, dim=-1):
        if scores.shape[1] == 1:
            return first_of_best(scores, k, dim)
        best = first_of_best(scores.flip(-1), k, dim)
        return torch.return_types.topk((best.values, scores.shape[-1] - 1 - best.indices))

    monkeypatch.setattr(indexer, "first_of_best", flipped)
    with pytest.raises(AssertionError):
        check_paths(TIES)
    with pytest.raises(AssertionError):
        check_order_of_ties()


def test_the_order_of_torch_is_caught(monkeypatch):
    monkeypatch.setattr(indexer, "first_of_best", torch.Tensor.topk)
    with pytest.raises(AssertionError):
        check_paths(TIES)


def test_slots_taken_for_positions_are_caught(monkeypatch):
    monkeypatch.setattr(
        Choice, "by_position", lambda self, scores, *mask: scores.masked_fill(*mask)
    )
    with pytest.raises(AssertionError):
        check_paths("minimax_m3_vl_text")


def test_a_window_without_the_one_before_it_is_caught(monkeypatch):
    """Entries of the first window of a pass lack what overlaps."""
    compress = Path.compress

    def alone(self, layer, name, kv, gate):
        kv, gate, first = compress(self, layer, name, kv, gate)
        count = self._redundant[layer, name] * self.rates[layer]
        self._redundant[layer, name] = 0
        return kv[:, count:], gate[:, count:], first + count

    monkeypatch.setattr(Path, "compress", alone)
    with pytest.raises(AssertionError):
        check_paths("deepseek_v4")
