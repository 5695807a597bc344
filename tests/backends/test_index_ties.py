"""Indexers of few heads, with many equal scores: which of these are chosen is all that differs from
Transformers.

The scores are sums of rectified products, so they are often exactly zero. Transformers takes what
`torch.topk` returns first, which is not an order: on CPUs it changes with the number of scores.
longdraft takes the lowest positions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import tiny_models
import torch
from support.listed import full, weekly
from torch import Tensor

from longdraft import generate
from longdraft.backends.features import compressed, indexer
from longdraft.backends.features.indexer import TOPK, Intercepting, first_of_best
from longdraft.core.tree import Tree
from longdraft.models.lm import LM

KINDS = ("deepseek_v32", "deepseek_v4", "glm_moe_dsa", "axk2", "hy_v4", "dots3_note")
LATER = ("glm_moe_dsa", "axk2", "hy_v4", "dots3_note")
MORE = [
    pytest.param(kind, seed, marks=full if seed == 1 else weekly)
    for kind in KINDS
    for seed in range(1, 5)
]
each = pytest.mark.parametrize(
    ("kind", "seed"),
    [*(pytest.param(k, 0, marks=full if k in LATER[1:] else ()) for k in KINDS), *MORE],
)
LENGTH = 90
# per indexer its scores [1,W,S] and what it chose of them [1,W,k]
Chosen = list[tuple[Tensor, Tensor]]


@cache
def stock(kind: str, seed: int = 0, heads: int = 1) -> Any:
    if kind not in tiny_models.KINDS:
        pytest.skip("this version of Transformers has no such model")
    config = tiny_models.config(kind)
    config.get_text_config().index_n_heads = heads
    hf = tiny_models.build(config, seed)
    hf.generation_config.eos_token_id = None
    return hf


@contextmanager
def choosing(hf: Any, replaced: Callable[[Any], Callable[..., Any] | None]) -> Generator[None]:
    """Transformers' own attention, with functions in the place of some that its indexer call."""
    modules = [m for name, m in hf.named_modules() if name.endswith("indexer")]
    hf.set_attn_implementation("eager")
    try:
        for m in modules:
            m.forward = lambda *a, call=m.forward, **k: _inside(replaced, call, *a, **k)
        yield
    finally:
        for m in modules:
            del m.forward
        hf.set_attn_implementation("longdraft")


def _inside(replaced: Any, call: Any, *args: Any, **options: Any) -> Any:
    with Intercepting(replaced):
        return call(*args, **options)


def noting(choose: Callable[..., Any], chosen: Chosen) -> Callable[..., Any]:
    """A top-k that adds to `chosen`."""

    def noted(scores: Tensor, k: int, dim: int = -1, **options: Any) -> Any:
        best = choose(scores, k, dim, **options)
        chosen.append((scores.clone(), best.indices.clone()))
        return best

    return noted


def by_position(func: Any) -> Callable[..., Any] | None:
    """Equal scores in the order of positions, whatever longdraft's modules are patched to do."""
    return first_of_best if func in TOPK else None


def beyond(kind: str, heads: int = 1) -> int:
    """A length at which every indexer has more than twice as many keys as it chooses."""
    config = stock(kind, heads=heads).config.get_text_config()
    rates = getattr(config, "compress_rates", None) or {}
    assert 2 * config.index_topk < LENGTH // rates.get("compressed_sparse_attention", 1)
    return LENGTH


def logits_of(hf: Any, ids: Tensor) -> Tensor:
    lm = LM(hf)
    return lm(Tree.chain(ids), lm.new_cache(1, ids.shape[1]))


@torch.inference_mode()
def check_all_but_ties(kind: str, seed: int = 0, heads: int = 1) -> None:
    """Transformers with equal scores in the order of positions: the same logits, and the same
    tokens by `generate`.
    """
    hf = stock(kind, seed, heads)
    prompt = tiny_models.prompt(beyond(kind, heads))
    ids = torch.tensor([prompt])
    with choosing(hf, by_position):
        want = hf(input_ids=ids, use_cache=False).logits
        options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        said = hf.generate(ids, attention_mask=torch.ones_like(ids), **options)[
            0, len(prompt) :
        ].tolist()
    torch.testing.assert_close(logits_of(hf, ids), want, rtol=1e-3, atol=1e-3)
    assert generate(LM(hf), [prompt], max_new_tokens=8, eos=())[0] == said


@torch.inference_mode()
def check_choice(kind: str, monkeypatch: Any) -> int:
    """The first indexer, whose inputs are equal: every query's scores of what is chosen are
    Transformers' -> how many queries chose other slots of equal scores.
    """
    hf = stock(kind)
    ids = torch.tensor([tiny_models.prompt(beyond(kind))])
    theirs = Chosen()
    ours = Chosen()
    with choosing(hf, lambda func: noting(func, theirs) if func in TOPK else None):
        hf(input_ids=ids, use_cache=False)
    with monkeypatch.context() as patch:
        for module in (indexer, compressed):
            patch.setattr(module, "first_of_best", noting(module.first_of_best, ours))
        logits_of(hf, ids)
    (scores, slots), (own_scores, own_slots) = (_shown(*chosen[0]) for chosen in (theirs, ours))
    torch.testing.assert_close(own_scores, scores, rtol=1e-4, atol=1e-5)
    return int((own_slots.sort(-1).values != slots.sort(-1).values).any(-1).sum())


def _shown(scores: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of what each query chose, in order, and the slots; those that it may not see count
    as none.
    """
    best = scores.gather(-1, slots)
    hidden = best < torch.finfo(best.dtype).min / 2
    return best.masked_fill(hidden, float("-inf")).sort(-1).values, slots.masked_fill(hidden, -1)


@pytest.mark.full
@each
def test_ties_are_all_that_differs_from_transformers(kind, seed):
    check_all_but_ties(kind, seed)
    check_all_but_ties(kind, seed, heads=2)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=full if k in LATER else ()) for k in KINDS])
def test_other_slots_are_chosen_only_of_equal_scores(kind, monkeypatch):
    assert check_choice(kind, monkeypatch) > 0


@torch.inference_mode()
@each
def test_without_ties_nothing_differs(kind, seed):
    """With many heads no score is zero, and what is chosen has one order: torch's."""
    hf = stock(kind, seed, heads=32)
    ids = torch.tensor([tiny_models.prompt(beyond(kind, 32))])
    chosen = Chosen()
    with choosing(hf, lambda func: noting(func, chosen) if func in TOPK else None):
        want = hf(input_ids=ids, use_cache=False).logits
    assert chosen and not any((scores == 0).any() for scores, _ in chosen)
    torch.testing.assert_close(logits_of(hf, ids), want, rtol=1e-3, atol=1e-3)


# What the checks must catch -----------------------------------------------------------------------


def _but_the_best(scores: Tensor, k: int, dim: int = -1, **options: Any) -> Any:
    """A choice that has the next score instead of the best, where there are more than are
    chosen.
    """
    if not 0 < k < scores.shape[-1]:
        return first_of_best(scores, k, dim)
    best = scores.topk(k + 1, dim)
    return torch.return_types.topk((best.values[..., 1:], best.indices[..., 1:]))


@pytest.mark.parametrize("kind", ["deepseek_v32", "deepseek_v4"])
def test_a_choice_without_the_best_is_caught(kind, monkeypatch):
    for module in (indexer, compressed):
        monkeypatch.setattr(module, "first_of_best", _but_the_best)
    with pytest.raises(AssertionError):
        check_choice(kind, monkeypatch)
    with pytest.raises(AssertionError):
        check_all_but_ties(kind)


def test_ties_by_the_last_positions_are_caught(monkeypatch):
    def last(scores, k, dim=-1, **options):
        best = first_of_best(scores.flip(-1), k, dim)
        return torch.return_types.topk((best.values, scores.shape[-1] - 1 - best.indices))

    monkeypatch.setattr(indexer, "first_of_best", last)
    check_choice("deepseek_v32", monkeypatch)  # its scores are as good
    with pytest.raises(AssertionError):
        check_all_but_ties("deepseek_v32")
