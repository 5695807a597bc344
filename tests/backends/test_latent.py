"""Latent attention: what is cached, and that it computes what Transformers computes with expanded
heads.
"""

from __future__ import annotations

from functools import cache

import pytest
import tiny_models
import torch
from support import tiny
from support.checks import SAMPLERS, SEED, check_lossless
from support.feature_models import models_with
from support.listed import BUILD, full
from support.structure import check_tree_pass, close
from transformers import AutoModelForCausalLM

from longdraft import InputError, generate, row_seed, serve
from longdraft.backends.eager import EagerPass
from longdraft.backends.features import latent
from longdraft.backends.features.latent import Latent, Latents, absorbed_linears, latents_of
from longdraft.backends.packed_linear import PackedLinear
from longdraft.backends.quantize import quantize
from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.drafters.small_model.objective import BudgetObjective
from longdraft.models.lm import LM
from longdraft.ops import Segment, StoredRow, reference
from longdraft.training.frozen import Frozen

MODEL = "deepseek"
KINDS = models_with(Latents)
DAILY = {"vegas-tree", "magicdec-quest", "quantspec"}  # a tree, slots by queries, codes
REFUSING = {
    "longspec",
    "longspec-chain",
    "longspec-guided",
    "longspec, then lookup",
    "longspec, best paths",
    "auto",
    "fill",
}
METHODS = [pytest.param(m, marks=() if m in DAILY else full) for m in BUILD if m not in REFUSING]
LENGTHS = (70, 31, 9, 50, 12)


@cache
def stock(kind: str):
    hf = tiny_models.build(tiny_models.config(kind))
    hf.generation_config.eos_token_id = None
    return hf


def texts(lm: LM, prompts: list[list[int]], new: int = 12) -> list[list[int]]:
    return generate(lm, prompts, max_new_tokens=new, sampler=SAMPLERS["greedy"])


@torch.inference_mode()
def stock_texts(hf, prompts: list[list[int]], new: int = 12) -> list[list[int]]:
    hf.set_attn_implementation("eager")
    rows = [torch.tensor([p]) for p in prompts]
    return [
        hf.generate(r, max_new_tokens=new, do_sample=False, pad_token_id=0)[
            0, r.shape[1] :
        ].tolist()
        for r in rows
    ]


# What is cached -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [k if k in ("deepseek_v2", "longcat_flash") else pytest.param(k, marks=full) for k in KINDS],
)
def test_plain_decoding_is_transformers_and_caches_latents(kind):
    """Rows of two lengths. Each attention, of which LongCat has two per layer, caches its rank and
    rotated part.
    """
    hf = stock(kind)
    prompts = [tiny_models.prompt(n) for n in (40, 17)]
    want = stock_texts(hf, prompts)
    lm = LM(hf)
    assert texts(lm, prompts) == want
    lm.prefill(prompts[0], held := lm.new_cache(1, 64))
    c = lm.config
    assert sorted(held.shapes) == list(range(c.num_hidden_layers))
    assert {s[:3] for s in held.shapes.values()} == {(1, c.kv_lora_rank + c.qk_rope_head_dim, 0)}
    assert held.nbytes(1) == 4 * c.num_hidden_layers * (c.kv_lora_rank + c.qk_rope_head_dim)


@torch.inference_mode()
def test_new_nodes_are_not_expanded():
    """A pass gives the projection no numbers: it is read as a matrix."""
    lm = tiny.target(MODEL)
    seen = []
    linears = absorbed_linears(lm.hf)
    hooks = [
        m.register_forward_pre_hook(lambda module, args: seen.append(args[0].device.type))
        for m in linears
    ]
    lm(Tree.chain(torch.tensor([[5, 6]])), lm.new_cache(1, 8))
    for hook in hooks:
        hook.remove()
    assert len(linears) == lm.config.num_hidden_layers and seen == ["meta"] * len(linears)


# What is computed ---------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("queries", [3, 140])
def test_both_ways_are_attention_of_expanded_heads(queries, monkeypatch):
    """Cached latents as keys, and expanded keys some heads at a time, under a mask."""
    monkeypatch.setattr(latent, "EXPANDED", 1)  # one head at a time
    module = tiny.target(MODEL).hf.model.layers[1].self_attn
    ours = latents_of(tiny.target(MODEL).hf)[1]
    g = torch.Generator().manual_seed(0)
    q = torch.randn(4, queries, ours.dim + ours.rotated, generator=g)
    c, r = (torch.randn(1, 1, 200, n, generator=g) for n in (ours.rank, ours.rotated))
    visible = torch.ones(queries, queries).tril().bool()
    k, v = (x[0] for x in module.expand_kv(c, r))
    want = reference.attend(q, [Segment(k, v, visible)], 0.3, None, None).out
    cached = [Segment(torch.cat([c, r], -1)[0], c[0, ..., :0], visible)]
    close(ours.attend_expanded(q, cached, 0.3, None, None, None).out, want)
    close(
        ours.output(
            ours.attend_cached(ours.query(q[None])[0], cached, 0.3, None, None, None).out[None]
        )[0],
        want,
    )


def test_wide_passes_expand_and_others_do_not(monkeypatch):
    """So both ways are behind the checks of this file. DeepSeek V3's numbers are where the costs
    cross.
    """
    ours = latents_of(tiny.target(MODEL).hf)[0]
    assert ours.pays_expanded(17) and not ours.pays_expanded(16)
    large = Latent(ours.linear, 512, 128, 64, 128)
    assert large.pays_expanded(158) and not large.pays_expanded(157)
    widths = []
    attend = Latent.attend_expanded
    monkeypatch.setattr(
        Latent,
        "attend_expanded",
        lambda self, q, *more: widths.append(q.shape[1]) or attend(self, q, *more),
    )
    texts(tiny.target(MODEL), tiny.prompts(40), 3)
    assert widths == [39] * 3


@torch.inference_mode()
@pytest.mark.parametrize("rows", ["first", "mean"])
def test_scores_are_those_of_expanded_heads(rows):
    """Of the one key head that is cached: the mean over all heads."""
    lm, [prompt], chain = (
        tiny.target(MODEL),
        tiny.prompts(40),
        Tree.chain(torch.tensor([[5, 17, 33]])),
    )
    lm.prefill(prompt, held := lm.new_cache(1, 64))
    captured = Captures(CaptureSpec(rows, "weights", True))
    lm(chain, held, captured=captured)
    ids = torch.tensor([prompt + chain.tokens[0].tolist()])
    weights = tiny.eager(MODEL)(input_ids=ids, output_attentions=True, use_cache=False).attentions
    for layer, scores in captured.scores.items():
        want = weights[layer][0, :, 40:, :41].mean(0)
        close(scores[0, :, 0], want[:1] if rows == "first" else want.mean(0, keepdim=True))


# Lossless decoding --------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("sampler", ["greedy", pytest.param("T=1", marks=full)])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_plain_decoding_says(method, sampler):
    check_lossless(BUILD[method], MODEL, SAMPLERS[sampler], (70, 31))


@pytest.mark.full
@pytest.mark.parametrize(
    "method", ["vegas-tree", pytest.param("quantspec", marks=full), pytest.param("sd", marks=full)]
)
def test_rows_that_come_and_go(method):
    lm = tiny.target(MODEL)
    options = {"max_new_tokens": 10, "sampler": SAMPLERS["T=1"]}
    prompts = tiny.prompts(*LENGTHS)
    events = serve(lm, iter(prompts), BUILD[method](lm), 2, seed=SEED, slots=160, **options)
    found = {e.index: e.tokens for e in events}
    for i, prompt in enumerate(prompts):
        assert found[i] == generate(lm, [prompt], seed=row_seed(SEED, i), **options)[0]


@pytest.mark.parametrize("method", ["vegas-tree", pytest.param("quantspec", marks=full)])
def test_latents_in_8_bits(method):
    lm = LM(tiny.stock(MODEL), kv="int8")
    options = {"max_new_tokens": 12, "sampler": SAMPLERS["T=1"], "seed": SEED}
    want = generate(lm, tiny.prompts(70, 31), **options)
    assert generate(lm, tiny.prompts(70, 31), BUILD[method](lm), **options) == want
    lm.prefill(tiny.prompts(9)[0], held := lm.new_cache(1, 16))
    # a scale and 32 codes, of 24 numbers
    assert [held.slot_bytes(layer) for layer in held.layers] == [34] * 3
    assert [x.shape[2] for x in held.stored(0, 0)] == [34, 0]


# What is not understood, and what must not be read ------------------------------------------------


def changed(fault: str):
    """A model whose modules keep their keys in a way that is not Latent's."""
    hf = AutoModelForCausalLM.from_config(tiny.CONFIGS[MODEL], attn_implementation="eager").eval()
    hf.load_state_dict(tiny.stock(MODEL).state_dict())
    for layer in hf.model.layers:
        module = layer.self_attn
        if fault == "a bias":
            module.kv_b_proj.bias = torch.nn.Parameter(
                torch.full((len(module.kv_b_proj.weight),), 0.3)
            )
        elif fault == "a module of another kind":
            module.kv_b_proj = torch.nn.Sequential(module.kv_b_proj)
        else:
            expand = module.expand_kv
            module.expand_kv = lambda c, r, expand=expand: expand(c * 1.5, r)
    hf.generation_config.eos_token_id = None
    return hf


@pytest.mark.parametrize("fault", ["a bias", "a module of another kind", "another expansion"])
def test_modules_that_are_not_understood_cache_heads(fault):
    hf = changed(fault)
    prompts = tiny.prompts(40, 27)
    want = stock_texts(hf, prompts)
    lm = LM(hf)
    assert latents_of(hf) == {} and texts(lm, prompts) == want
    lm.prefill(prompts[0], held := lm.new_cache(1, 64))
    assert held.shapes[0][:3] == (4, 16, 12)


def test_an_expansion_that_is_not_compared_is_caught(monkeypatch):
    monkeypatch.setattr(latent, "_agrees", lambda *given: True)
    hf = changed("another expansion")
    prompts = tiny.prompts(40, 27)
    want = stock_texts(hf, prompts)
    assert texts(LM(hf), prompts) != want


@pytest.mark.full
def test_what_expands_latents_is_not_packed():
    hf = tiny_models.build(tiny_models.config("deepseek_v3"))
    config = hf.config
    config.kv_lora_rank = 32
    hf = tiny_models.build(config)
    quantize(hf, "int8")
    attention = hf.model.layers[0].self_attn
    assert (
        isinstance(attention.o_proj, PackedLinear) and type(attention.kv_b_proj) is torch.nn.Linear
    )
    assert len(latents_of(hf)) == config.num_hidden_layers
    prompts = [tiny_models.prompt(n) for n in (40, 17)]
    hf.generation_config.eos_token_id = None
    want = stock_texts(hf, prompts)
    assert texts(LM(hf), prompts) == want


def test_training_on_part_of_a_small_models_values_is_refused():
    lm = tiny.target(MODEL)
    with pytest.raises(InputError, match="caches latents in place of keys and values"):
        BudgetObjective(Frozen(tiny.target("llama")), lm)


# Planted faults -----------------------------------------------------------------------------------


def another_row(self: KVCache, layer: int, b: int, stored_row=KVCache.stored_row):
    """Keys of the next row where a pass has several."""
    k, v = stored_row(self, layer, (b + 1) % len(self.length)).numbers()
    own = stored_row(self, layer, b).keys()
    return StoredRow(torch.cat([own[:, :3], k[:, 3:4], own[:, 4:]], 1), v)


def kept_part(self: EagerPass, layer: int, q, k, v, *options, attend=EagerPass.attend):
    """The rotated part of a node is that of the node before it."""
    width = options[-1].__self__.rank  # of the Latent that attends
    return attend(
        self, layer, q, torch.cat([k[..., :width], k[..., width:].roll(1, 2)], -1), v, *options
    )


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(KVCache, "stored_row", another_row), (EagerPass, "attend", kept_part)],
)
def test_a_wrong_latent_is_caught(owner, name, fault, monkeypatch):
    """Slot 3 of a row is read from another row; a rotated part is its neighbor's."""
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError):
        check_tree_pass(MODEL)
    monkeypatch.undo()
    check_tree_pass(MODEL)
