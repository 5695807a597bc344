"""What is kept of prompts: by default a text of the whole context, of longer ones the beginning,
and a line says so.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny

from longdraft import PrefixCache, Session, generate
from longdraft.prompts import prefix_room as room
from longdraft.prompts.prefix_room import FLOOR, MIN_TOKENS, prefix_room

BLOCK = 16
NEW = 4
SLOT = 3 * 2 * 2 * 16 * 4  # bytes of a token's keys and values of the tiny Llama


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr("longdraft.models.lm.PART", 2 * BLOCK)
    monkeypatch.setattr("longdraft.models.lm.CHECKPOINT", 2 * BLOCK)


@pytest.fixture
def machine(monkeypatch):
    """Sets the bytes that are available, and those of the control group."""

    def has(available: int | None, limit: int | None = None) -> None:
        monkeypatch.setattr(room.memory, "available", lambda: available)
        monkeypatch.setattr(room.memory, "total", lambda: None)
        monkeypatch.setattr(room.limits, "memory", lambda: limit)

    return has


@torch.inference_mode()
def state_slots() -> float:
    """How many slots of the tiny hybrid have as many bytes as its states."""
    lm = tiny.target("qwen3.5")
    scratch = lm.new_cache(1, 1)
    lm.prefill([0], scratch)
    return sum(x.nbytes for x in (scratch.states_at(1) or {}).values()) / scratch.slot_bytes(3)


@pytest.mark.parametrize(
    ("context", "available", "limit", "models", "tokens"),
    [
        (512, 1 << 40, None, 1, MIN_TOKENS),
        (200_000, 1 << 40, None, 1, 200_000),
        (200_000, None, None, 1, 200_000),
        (200_000, 4 * 50_000 * SLOT, None, 1, 50_000),
        (200_000, 4 * 50_000 * SLOT, None, 2, 25_000),
        (200_000, 1 << 40, 4 * 9_000 * SLOT, 1, 9_000),
        (200_000, 5, None, 1, FLOOR),
        (200_000, 1 << 40, 5, 1, FLOOR),
    ],
)
def test_the_default_is_the_context_within_the_memory(
    machine, context, available, limit, models, tokens
):
    lm = tiny.target("llama")
    machine(available, None if limit is None else limit + lm.nbytes())
    assert prefix_room(lm, context, 8 * context, models) == tokens


def test_the_default_has_room_for_states_and_counts_codes(machine):
    machine(1 << 40)
    lm = tiny.target("qwen3.5")
    states = state_slots()
    assert (
        100_000 * (1 + states / 32)
        <= prefix_room(lm, 100_000, 0)
        <= 100_000 * (1 + (states + 1) / 32)
    )
    machine(4 * 10_000 * SLOT)
    assert 10_000 < prefix_room(tiny.target("llama-torch-kv8"), 400_000, 0) < 40_000


def turns(model: str, prefixes: PrefixCache, lengths: tuple[int, ...], seed: int = 0) -> list[int]:
    """A text is continued to these lengths, each turn saying what `generate` says -> how much each
    knew.
    """
    lm, [text], known = tiny.target(model), tiny.prompts(max(lengths), seed=seed), list[int]()
    with Session(lm, batch=1, slots=700, prefixes=prefixes) as s:
        for length in lengths:
            s.submit(text[:length], NEW, eos=())
            said = []
            before = prefixes.hits
            while s.running or s.waiting:
                said += [token for event in s.step() for token in event.tokens]
            assert [said] == generate(lm, [text[:length]], max_new_tokens=NEW, eos=())
            known.append(prefixes.hits - before)
    return known


@pytest.mark.full
@pytest.mark.parametrize("model", ["llama", "llama-torch"])
def test_a_conversation_beyond_the_room_is_told_of_once(model):
    told = list[str]()
    prefixes = PrefixCache(128, BLOCK, told.append)
    assert turns(model, prefixes, (97, 120)) == [0, 96] and told == []
    assert turns(model, prefixes, (190, 200, 260))[1:] == [128, 128] and len(told) == 1
    assert "only the first 128 of a prompt's" in told[0] and "--prefix-tokens" in told[0]
    # another conversation
    assert turns(model, prefixes, (170, 180), seed=1) == [0, 128] and len(told) == 2
    assert turns(model, PrefixCache(128, BLOCK), (170, 180)) == [0, 128]  # nobody to tell


@pytest.mark.full
def test_a_hybrid_beyond_the_room_keeps_its_beginning():
    """Blocks and states of one prompt pushed out its own first blocks, so that all of it was read
    in every turn.
    """
    told = list[str]()
    state = int(state_slots())
    prefixes = PrefixCache(3 * (state + 32 + BLOCK), BLOCK, told.append)
    known = turns("qwen3.5", prefixes, (300, 350, 400))
    assert known[1] == known[2] >= 64 and len(told) == 1 and f"first {known[1]} " in told[0]
    small = PrefixCache(state, BLOCK, told.append)  # not even one of its states
    assert (
        turns("qwen3.5", small, (300, 350)) == [0, 0]
        and len(told) == 2
        and "none of a prompt's" in told[1]
    )
