"""The tokens after a text's last whole block are kept too, and used for that text only."""

from __future__ import annotations

import pytest
import torch
from support import tiny

from longdraft import PrefixCache, Sampler, Session, generate
from longdraft.models.lm import LM
from longdraft.prompts import prefix_cache

BLOCK = 16
NEW = 10
MODELS = ("llama", "qwen3.5")


def cache(tokens: int = 8000) -> PrefixCache:
    return PrefixCache(tokens, BLOCK, tails=True)


def exact(model: str) -> LM:
    lm = tiny.target(model)
    if lm.prompt_block > 1:
        pytest.skip("torch reads prompts here, in blocks")
    return lm


def said(lm: LM, prefixes: PrefixCache, text: list[int], owner: str = "") -> tuple[list[int], int]:
    """The answer to a text, which must be that of `generate`, and how many tokens were known."""
    before = prefixes.hits
    tokens = list[int]()
    with Session(lm, batch=1, slots=400, sampler=Sampler(1.0), prefixes=prefixes) as s:
        s.submit(text, NEW, seed=3, eos=(), owner=owner)
        while s.running or s.waiting:
            tokens += [token for event in s.step() for token in event.tokens]
    alone = generate(lm, [text], max_new_tokens=NEW, sampler=Sampler(1.0), seed=3, eos=())
    assert [tokens] == alone
    return tokens, prefixes.hits - before


def conversation(model: str, prefixes: PrefixCache) -> list[int]:
    """The tokens that each turn knew, less those that it could know."""
    lm = exact(model)
    text, *more = tiny.prompts(70, 9, 5, 23)
    missing = list[int]()
    sent = 0
    for new in more:
        answer, known = said(lm, prefixes, text)
        missing.append(sent - known)
        sent = len(text) + NEW - 1  # the last token of an answer was never read
        text = text + answer + new
    return missing


# Use ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_text_goes_on_after_its_last_token(model):
    assert conversation(model, cache()) == [0, 0, 0]


@pytest.mark.parametrize("model", MODELS)
def test_dropped_tails_are_noticed(model, monkeypatch):
    monkeypatch.setattr(PrefixCache, "_tail", lambda *_: None)
    assert all(conversation(model, cache())[1:])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("agreed", [2, 8])
def test_an_answer_that_comes_back_otherwise_is_read_after_its_prompt(model, agreed):
    """Its first tokens may fill the prompt's last block, after which no states are kept."""
    lm = exact(model)
    text, other = tiny.prompts(75, 30)
    prefixes = cache()
    answer, _ = said(lm, prefixes, text)
    other[0] = (answer[agreed] + 1) % 90
    _, known = said(lm, prefixes, text + answer[:agreed] + other)
    block = (75 + agreed) // BLOCK * BLOCK if model == "llama" else 0
    assert known == max(block, 74)


class Others(PrefixCache):
    """Takes a tail after the same blocks, whatever its tokens are."""

    def _tail(self, keys, tokens, owner):
        before = self._blocks[keys[-1]].number if keys else owner
        rest = len(tokens) - len(keys) * self.block
        tails = [key for key in self._blocks if key[0] == before and len(key[1]) <= rest]
        return tails[0] if tails else None


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_tail_of_other_tokens_is_not_used(model, wrong):
    lm = exact(model)
    text, one, two = tiny.prompts(64, 12, 12)
    prefixes = (Others if wrong else PrefixCache)(8000, BLOCK, tails=True)
    said(lm, prefixes, text + one)
    if wrong:
        with pytest.raises(AssertionError):
            said(lm, prefixes, text + two)
    else:
        said(lm, prefixes, text + two)


@torch.inference_mode()
@pytest.mark.parametrize("model", MODELS)
def test_a_tail_that_ends_within_a_prompt_block_is_not_used(model):
    """After 72 of a prompt block's tokens, reading would go on in a pass of another size."""
    lm = tiny.target(model)
    [text] = tiny.prompts(100)
    row = lm.new_cache(1, 200)
    lm.prefill(text[:72], row)
    prefixes = cache()
    prefixes.store(text[:72], row)
    for multiple, known in ((32, 64), (24, 72), (1, 72), (128, 0)):
        known = known if model == "llama" or known == 72 else 0  # states are kept at the end only
        assert prefixes.known(text, multiple) == known
        assert prefixes.load(text, lm.new_cache(1, 200), multiple) == known


def test_a_tail_whose_end_is_no_border_would_be_noticed(monkeypatch):
    monkeypatch.setattr(prefix_cache, "resumable", lambda block, end, multiple: end)
    with pytest.raises(AssertionError):
        test_a_tail_that_ends_within_a_prompt_block_is_not_used("llama")


# Room ---------------------------------------------------------------------------------------------


def nbytes(prefixes: PrefixCache) -> tuple[int, int]:
    """The bytes of all that is kept, and those of a block."""
    sizes = [
        (sum(x.nbytes for kv in b.layers.values() for x in kv), len(key[1]))
        for key, b in prefixes._blocks.items()
    ]
    blocks = list(prefixes._blocks.values())
    states = sum(x.nbytes for b in blocks for x in (b.states or {}).values())
    return states + sum(size for size, _ in sizes), sizes[0][0] // sizes[0][1] * BLOCK


@pytest.mark.parametrize("tokens", [160, 8000])
@pytest.mark.parametrize("model", MODELS)
def test_tails_count_by_their_size(model, tokens):
    lm = exact(model)
    text, *more = tiny.prompts(70, 50, 9, 20)
    prefixes = cache(tokens)
    for i, new in enumerate(more):
        answer, _ = said(lm, prefixes, text, f"owner {i % 2}")
        text = text + answer + new
        taken = sum(block.room for block in prefixes._blocks.values())
        assert prefixes._taken == taken <= prefixes.most
        if prefixes._blocks:
            used, block = nbytes(prefixes)
            rounded = 2 * len(prefixes._blocks)  # a tail counts as a block, and states are rounded
            assert used <= taken * block <= used + rounded * block


def test_owners_have_their_own_tails():
    lm = exact("llama")
    [text] = tiny.prompts(BLOCK - 4)
    prefixes = cache()
    found = [said(lm, prefixes, text, owner)[1] for owner in ("a", "b", "a", "b")]
    assert found == [0, 0, BLOCK - 5, BLOCK - 5]


def test_a_used_tail_is_the_first_to_go_and_asking_is_no_use():
    lm = exact("llama")
    text, other = tiny.prompts(75, 40)
    prefixes = cache()
    said(lm, prefixes, other)
    answer, _ = said(lm, prefixes, text)
    before = list(prefixes._blocks)
    longer = text + answer
    assert prefixes.known(longer) == 84 and list(prefixes._blocks) == before
    with torch.inference_mode():
        assert prefixes.load(longer, lm.new_cache(1, 200)) == 84
    assert next(iter(prefixes._blocks))[1] == tuple(longer[80:84])
