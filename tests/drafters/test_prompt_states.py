"""Drafters on the target's states take the prompt's from the prefill: the same ones, and no token
is read twice.
"""

from __future__ import annotations

import pytest
import test_eagle
import torch
from support import broken, dflash_ring, tiny
from support.checks import SAMPLERS, SEED
from support.sessions import Ends, finish
from support.structure import close
from test_start import Spy, spy

from longdraft import Stats, generate
from longdraft.core.capture import PromptSpec
from longdraft.core.sampling import Sampler
from longdraft.core.verify import match
from longdraft.drafters import AdaptiveDraft, DFlash, Drafter, Eagle, Mtp, Sequential, Suffix
from longdraft.drafters.dflash.block import random_dflash
from longdraft.drafters.eagle.block import random_eagle2, random_eagle3
from longdraft.drafters.mtp.block import random_mtp
from longdraft.engine.conversation import Conversation
from longdraft.engine.decode_session import DecodeSession
from longdraft.engine.generate import prefill, step
from longdraft.engine.session import Session
from longdraft.models.lm import LM

MAKE = {
    "eagle2": lambda lm, reach: Eagle(lm, random_eagle2(lm, 0), 8, 2, 30, reach),
    "eagle3": lambda lm, reach: Eagle(lm, random_eagle3(lm, 0, 40), 8, 2, 30, reach),
    "dflash": lambda lm, reach: DFlash(lm, random_dflash(lm, 0, slots=5), 30, window=reach),
}
MTP = {"mtp": lambda lm, reach: Mtp(random_mtp(lm, 0), [4, 2], 0, reach)}
WINDOWED = {
    "eagle3, window": lambda lm, reach: Eagle(
        lm, random_eagle3(lm, 0, 40), 8, 2, 30, min(reach, 90), 12, 3
    )
}
WATCHED = {
    "eagle": lambda lm, reach: test_eagle.Watched(lm, random_eagle3(lm, 0), 8, 2, 30, reach),
    "eagle, window": lambda lm, reach: test_eagle.Watched(
        lm, random_eagle3(lm, 0), 8, 2, 30, min(reach, 40), 12, 3
    ),
    "dflash": lambda lm, reach: dflash_ring.Watched(
        lm, random_dflash(lm, 0, slots=5), 60, window=reach
    ),
}
each_method = pytest.mark.parametrize("method", MAKE | MTP)
with_window = pytest.mark.parametrize("method", [*MAKE, *WINDOWED])
each_watched = pytest.mark.parametrize("watched", WATCHED)


class CountingSpy(Spy):
    """Also counts tokens that run alone."""

    tokens = 0

    def __call__(self, tree, cache, start=0, *args, **given):
        self.tokens += len(tree.tokens) * (tree.size - start)
        return super().__call__(tree, cache, start, *args, **given)


def counting() -> CountingSpy:
    return CountingSpy(tiny.stock("llama"))


@torch.inference_mode()
@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize(
    ("length", "chunk", "count"), [(300, 64, 100), (300, 1024, 64), (90, 20, 500), (5, 7, 5)]
)
def test_kept_states_are_those_of_one_pass(path, length, chunk, count):
    lm, [prompt] = spy(path), tiny.prompts(length)
    cache = lm.new_cache(1, length)
    hidden = (0, 1, 2)
    kept = lm.prefill(prompt, cache, chunk, keep=PromptSpec(hidden, count))
    want = tiny.stock("llama")(
        input_ids=torch.tensor([prompt]), output_hidden_states=True
    ).hidden_states
    assert list(kept) == [0, 1, 2]
    for layer in (0, 1):  # stock's last one is normed
        assert kept[layer].shape[1] == min(count, length)
        close(kept[layer], want[layer][:, -count:], 1e-4)
    assert lm.prefill(prompt, cache, keep=PromptSpec(hidden)) == lm.prefill(prompt, cache) == {}
    assert lm.prefill([], cache, keep=PromptSpec(hidden, 4)) == {}


def test_a_union_satisfies_every_request():
    specs = [PromptSpec((3, 1), 5), PromptSpec(), PromptSpec((2, 3), 9)]
    assert PromptSpec.union(specs) == PromptSpec((1, 2, 3), 9)
    lm = tiny.target("llama")
    eagle = MAKE["eagle3"](lm, 20)
    assert (
        AdaptiveDraft(Sequential(eagle, Suffix())).prompt_captures()
        == eagle.prompt_captures()
        != PromptSpec()
    )


def held(drafter: Drafter) -> list[torch.Tensor]:
    """What it has computed of the texts so far, row by row."""
    if isinstance(drafter, DFlash):
        return [drafter.ring.k, drafter.ring.v, drafter.ring.end, drafter.ring.held]
    if isinstance(drafter, Mtp):
        [ring] = drafter.rings
        return [
            x[:, : ring.slots][:, held]
            for b, held in enumerate(ring.held >= 0)
            for x in ring.cache.read(0, b)
        ]
    assert isinstance(drafter, Eagle)
    own = drafter.pairs.own
    pairs = drafter.pairs
    return [x[:, :n] for b, n in enumerate(own.length.tolist()) for x in own.read(0, b)] + [
        pairs.output,
        own.length,
    ]


@pytest.mark.each_value
@torch.inference_mode()
@each_method
@pytest.mark.parametrize("reach", [20, 512])
@pytest.mark.parametrize("path", ["native", "torch"])
def test_what_is_taken_from_the_prefill_equals_what_is_read_again(method, reach, path):
    """Rows of unequal lengths, of one token too; and the target reads nothing for it."""
    lm = spy(path)
    taking, reading = ((MAKE | MTP)[method](lm, reach) for _ in range(2))
    seqs = prefill(
        lm, tiny.prompts(200, 1, 40), 20, Sampler(), SEED, (), keep=taking.prompt_captures()
    )
    lm.passes.clear()
    taking.start(seqs)
    taking.ready(seqs)
    assert lm.read == 0
    seqs.prompt_states = {}
    reading.start(seqs)
    reading.ready(seqs)
    assert lm.read == min(200 - 1, reach) + min(40 - 1, reach)
    for mine, want in zip(held(taking), held(reading), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)


@each_method
def test_no_token_of_a_prompt_is_read_twice(method):
    """By generate, and by a session whose rows enter while others run."""
    lengths = (200, 40, 1)
    new = 6
    lm = counting()
    # more than a draft's nodes, so that a pass over them is no draft
    drafter = (MAKE | MTP)[method](lm, 60)
    for limit in (1, 2):  # the second step drafts
        lm.tokens = 0
        generate(lm, tiny.prompts(*lengths), drafter, max_new_tokens=limit, eos=())
        # the last token allowed is never drafted
        assert lm.tokens == sum(lengths) + (limit - 1) * len(lengths)
    lm.passes.clear()
    ends = Ends()
    with Session(lm, drafter, 2, 300) as s:
        for i, prompt in enumerate(tiny.prompts(*lengths)):
            s.submit(prompt, new + i, eos=())
            ends.take(s.step())
        finish(s, ends)
    assert not ends.errors and lm.backend.max_nodes > 60
    prompts = [nodes for rows, nodes, logits in lm.passes if (rows, logits) == (1, 1)]
    again = [
        nodes
        for rows, nodes, logits in lm.passes
        if rows == 1 and nodes == logits > drafts_of(drafter)
    ]
    assert sum(prompts) == sum(lengths) - 3 and not again


def drafts_of(drafter: Drafter) -> int:
    return drafter.nodes if isinstance(drafter, Eagle) else 31


@each_method
def test_without_the_prefills_states_it_is_read_again(method, monkeypatch):
    """The test above would see it."""
    monkeypatch.setattr(Eagle, "prompt_captures", Drafter.prompt_captures)
    monkeypatch.setattr(DFlash, "prompt_captures", Drafter.prompt_captures)
    monkeypatch.setattr(Mtp, "prompt_captures", Drafter.prompt_captures)
    with pytest.raises(AssertionError):
        test_no_token_of_a_prompt_is_read_twice(method)


@each_method
def test_every_decode_of_a_prompt_takes_the_states(method):
    """A session that decodes the prompt with one method after another, and a drafter used again."""
    lm = counting()
    drafter = (MAKE | MTP)[method](lm, 30)
    runs = DecodeSession(lm, tiny.prompts(90), 12, keep=drafter.prompt_captures())
    plain = []
    for d in (None, drafter, drafter, (MAKE | MTP)[method](lm, 30)):
        lm.passes.clear()
        plain.append(runs.rows(d))
        assert all(nodes <= 31 for _, nodes, _ in lm.passes)
    assert all(rows == plain[0] for rows in plain)


def enter_in_turn(make) -> int:
    """The watched drafter checks what it holds before every draft; rows enter and leave."""
    lm = tiny.target("llama")
    drafter = make(lm, 9)
    ends = Ends()
    wanted = []
    s = Session(lm, drafter, 2, 200, SAMPLERS["T=1"])
    for i, length in enumerate((30, 1, 50, 12)):
        [prompt] = tiny.prompts(length, seed=i)
        wanted.append(s.submit(prompt, 9 + i, seed=i, eos=()))
        ends.take(s.step())
    finish(s, ends)
    assert not ends.errors and [len(ends.texts[i]) for i in wanted] == [9, 10, 11, 12]
    return drafter.checked


@each_watched
def test_rows_that_enter_hold_what_recomputation_gives(watched):
    assert enter_in_turn(WATCHED[watched]) > 10


@each_watched
def test_states_one_token_late_are_noticed(watched, monkeypatch):
    broken.late_states(monkeypatch)
    with pytest.raises(AssertionError):
        enter_in_turn(WATCHED[watched])


# Conversations ------------------------------------------------------------------------------------


def converse(lm: LM, drafter: Drafter, cut: int = 0, early: bool = False) -> list[int]:
    """Four answers by one drafter, the third to another continuation -> tokens that the target read
    for each draft.
    """
    talk = Conversation(lm, SAMPLERS["T=1"], SEED)
    prompt = tiny.prompts(40)[0]
    read = []
    good = lm.extend_cache
    lm.extend_cache = lambda tokens, *rest: read.append(tokens.shape[1]) or good(tokens, *rest)  # type: ignore[method-assign]
    for turn, more in enumerate(tiny.prompts(9, 30, 1, 20, seed=1)):
        said = []
        steps = talk.answer(prompt, 14, drafter, Stats())
        for one in steps:
            said += one.tokens[0]
            if early and len(said) > 4:
                steps.close()
        if not early:
            assert [said] == generate(
                lm, [prompt], max_new_tokens=14, sampler=SAMPLERS["T=1"], seed=SEED
            )
        prompt = prompt + said
        prompt = prompt[: len(prompt) - (cut if turn == 1 else 0)] + more
    return read


@pytest.mark.full
@each_watched
@pytest.mark.parametrize("cut", [0, 1, 2, 25, 60])
@pytest.mark.parametrize("early", [False, True])
def test_what_is_kept_from_answer_to_answer_is_recomputation(watched, cut, early):
    """Only what both texts share is kept, also where the conversation goes another way."""
    lm = LM(tiny.stock("llama"))
    drafter = WATCHED[watched](lm, 512)
    converse(lm, drafter, cut, early)
    assert drafter.checked > 4


@pytest.mark.full
@with_window
@pytest.mark.parametrize("reach", [20, 512])
def test_a_conversation_reads_nothing_again(method, reach):
    """But for the sinks, where the pairs before are left out."""
    lm = LM(tiny.stock("llama"))
    make = (MAKE | WINDOWED)[method]
    sinks = converse(lm, make(lm, reach))
    # where more is new than is seen
    assert sinks == ([] if method in MAKE else [3, 3] if reach == 20 else [3])
    assert sum(converse(lm, make(lm, reach), cut=25)) <= sum(sinks) + 25 + 14


@torch.inference_mode()
@with_window
def test_no_more_is_kept_than_is_seen(method):
    """From answer to answer a drafter's memory stays within its reach and what is said."""
    lm = LM(tiny.stock("llama"))
    drafter = (MAKE | WINDOWED)[method](lm, 20)
    talk = Conversation(lm, seed=SEED)
    prompt = tiny.prompts(70)[0]
    for more in tiny.prompts(9, 30, 12, seed=1):
        said = [t for one in talk.answer(prompt, 14, drafter) for t in one.tokens[0]]
        if isinstance(drafter, Eagle):
            assert int(drafter.pairs.own.length) <= drafter.span.most + 14
        prompt = prompt + said + more


@torch.inference_mode()
@with_window
def test_one_drafter_for_unrelated_texts(method):
    """What it held of a batch, of a session and of other texts does not stay."""
    lm = spy()
    make = (MAKE | WINDOWED)[method]
    drafter = make(lm, 30)
    for lengths in ((50,), (40, 60), (70,)):
        generate(lm, tiny.prompts(*lengths, seed=len(lengths)), drafter, max_new_tokens=5)
    with Session(lm, drafter, 1, 200) as s:
        for length in (30, 45):
            s.submit(tiny.prompts(length, seed=7)[0], 5, eos=())
        assert not finish(s, Ends()).errors
    fresh = make(lm, 30)
    seqs = prefill(
        lm, tiny.prompts(80, seed=9), 20, Sampler(), SEED, (), keep=fresh.prompt_captures()
    )
    for d in (drafter, fresh):
        d.start(seqs)
    for mine, want in zip(held(drafter), held(fresh), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)
    step(lm, drafter, seqs, match, Stats(), draft=False)
    assert seqs.prompt_states == {}
