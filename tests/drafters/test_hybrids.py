"""Drafters of a target with recurrent layers, which cannot take back every token: long prompts,
pauses, prefix hits.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from support import tiny
from support.listed import OPTIONS, full, make
from support.prices import Stated
from support.sessions import Ends, finish

import longdraft
from longdraft import AdaptiveDraft, Session, Stats, generate
from longdraft.core.capture import CaptureSpec
from longdraft.core.states import RECENT
from longdraft.drafters import DFlash, Drafter, Eagle, Mtp, rereading
from longdraft.drafters.combined import Combined
from longdraft.drafters.eagle.pairs import Pairs
from longdraft.engine.conversation import Conversation
from longdraft.prompts.prefix_cache import PrefixCache

MODEL = "qwen3.5-long"
SMALL = {
    "eagle2": {"topk": 3, "levels": 1, "nodes": 6},
    "eagle3": {"topk": 3, "levels": 1, "nodes": 6},
}
# what they hold of a text is computed from the target's states
HOLD = (
    "dflash",
    "eagle2",
    "eagle3",
    "mtp",
)
ON_STATES = (*HOLD, "medusa")
every = pytest.mark.parametrize(
    "method",
    [*ON_STATES, *(pytest.param(name, marks=full) for name in OPTIONS if name not in ON_STATES)],
)


def drafter(method: str, **options) -> Drafter:
    return make(method, tiny.target(MODEL), **SMALL.get(method, {}) | options)


@cache
def plain(*lengths: int, new: int) -> list[list[int]]:
    return generate(tiny.target(MODEL), tiny.prompts(*lengths), max_new_tokens=new)


@pytest.mark.full
def test_every_drafter_on_states_is_tried():
    """What captures hidden states, or has the prefill keep them, may have to read tokens again."""
    lm = tiny.target(MODEL)
    built = {name: make(name, lm, **options) for name, options in OPTIONS.items()}
    found = [name for name, d in built.items() if d.captures().hidden or d.prompt_captures().hidden]
    assert sorted(found) == sorted(ON_STATES)


@pytest.mark.each_value
@every
@pytest.mark.parametrize(
    "length", [1100, *(pytest.param(n, marks=full) for n in (700, 1024, 3000))]
)
def test_long_prompts(method, length):
    """Longer than a drafter's window, and than states reach back."""
    stats = Stats()
    found = generate(
        tiny.target(MODEL), tiny.prompts(length), drafter(method), max_new_tokens=8, stats=stats
    )
    assert found == plain(length, new=8)
    assert method not in ON_STATES or stats.drafts.drafted


# Pauses -------------------------------------------------------------------------------------------


class Pauses(Combined[Drafter]):
    """Drafts in three steps, rests for some, and so on. As while adaptive drafting is off, those
    capture nothing and are not passed on. drafts: for each, the tokens in the cache and the keys
    that the inner drafter held.
    """

    def __init__(self, inner: Drafter, rest: int):
        self.combine((inner,))
        self.inner = inner
        self.rest = rest
        self.count = 0
        self.drafts = list[tuple[int, torch.Tensor]]()

    @property
    def on(self) -> bool:
        return self.count % (3 + self.rest) < 3

    def captures(self):
        return self.inner.captures() if self.on else CaptureSpec()

    def grow(self, tree, seqs, limits):
        if not self.on or limits.depth < 1:
            return tree
        tree = self.inner.grow(tree, seqs, limits)
        self.drafts.append((int(seqs.cache.length[0]), keys_of(self.inner)))
        return tree

    def update(self, seqs, tree, verdict, captured):
        if self.on:
            super().update(seqs, tree, verdict, captured)
        self.count += 1


def keys_of(drafter: Drafter) -> torch.Tensor:
    """[n,d]: its keys of the first row's tokens, in their order."""
    if isinstance(drafter, Eagle):
        keys = drafter.pairs.own.read(0, 0)[0]
        order = torch.arange(int(drafter.pairs.own.length[0]))
    elif isinstance(drafter, DFlash | Mtp):
        ring = drafter.ring if isinstance(drafter, DFlash) else drafter.rings[0]
        keys = (
            drafter.ring.k[0, 0]
            if isinstance(drafter, DFlash)
            else drafter.rings[0].cache.read(0, 0)[0]
        )
        order = ring.held[0].argsort()[int((ring.held[0] < 0).sum()) :]
    else:
        return torch.zeros(0, 1)
    return keys[:, order].transpose(0, 1).flatten(1).float()


REACH = {"reach": 4096}
WIDE = {
    "dflash": {"window": 4096},
    "mtp": {"window": 4096, "sink": 0},
    "eagle2": REACH,
    "eagle3": REACH,
}


@cache
def never_paused(method: str, length: int, new: int) -> torch.Tensor:
    """The keys of every token of a text, by a drafter to which all steps are passed on."""
    whole = drafter(method, **WIDE[method])
    assert generate(tiny.target(MODEL), tiny.prompts(length), whole, max_new_tokens=new) == plain(
        length, new=new
    )
    return keys_of(whole)


def check_pauses(method: str, length: int = 1100, rest: int = 70, new: int = 84) -> None:
    """The output is plain decoding's; a draft after a pause has the keys of at least the latest
    tokens that can be read again, and those from before the pause; all of them are those of a
    drafter that never paused.
    """
    paused = Pauses(drafter(method), rest)
    assert generate(tiny.target(MODEL), tiny.prompts(length), paused, max_new_tokens=new) == plain(
        length, new=new
    )
    assert method not in HOLD or paused.drafts[-1][0] > length + rest
    for n, keys in paused.drafts if method in HOLD else ():
        whole = never_paused(method, length, new)
        distance, token = torch.cdist(keys, whole, compute_mode="donot_use_mm_for_euclid_dist").min(
            1
        )
        assert distance.max() < 1e-3, "keys of other states"
        assert token[-RECENT:].tolist() == list(range(n - RECENT, n)), (
            "what can be read again is missing"
        )
        assert bool((token.diff() > 0).all()) and int((token < length - 1).sum()) > 300, (
            "the prompt was dropped"
        )


@pytest.mark.full
@every
@torch.inference_mode()
def test_pauses(method):
    check_pauses(method)


@pytest.mark.full
@pytest.mark.parametrize(
    "method", [*HOLD[:1], *(pytest.param(name, marks=full) for name in HOLD[1:])]
)
@pytest.mark.parametrize("price", [0.5, pytest.param(0.2, marks=full)])
def test_pauses_of_adaptive_drafting(method, price):
    """Where prices are such that drafting is tried now and then."""
    adaptive = AdaptiveDraft(drafter(method), Stated(price))
    found = generate(tiny.target(MODEL), tiny.prompts(1100), adaptive, max_new_tokens=120)
    assert found == plain(1100, new=120) and adaptive.drafts > 1


@full
@pytest.mark.parametrize("method", HOLD)
def test_pauses_of_two_rows(method):
    """They forget different tokens."""
    paused = Pauses(drafter(method), 70)
    found = generate(tiny.target(MODEL), tiny.prompts(70, 1100), paused, max_new_tokens=160)
    assert found == plain(70, 1100, new=160) and len(paused.drafts) > 6


# Sessions, and conversations ----------------------------------------------------------------------


@pytest.mark.full
@every
def test_requests_that_begin_with_what_is_known(method):
    """The rest of a prompt is read behind a checkpoint: a part of it, and for the third request
    nothing.
    """
    doc, more, other = tiny.prompts(1100, 40, 600)
    prompts = [doc + more, doc + other, doc[:1025]]
    stats = Stats()
    ends = Ends()
    with Session(
        tiny.target(MODEL), drafter(method), 2, 2048, stats=stats, prefixes=PrefixCache(8192)
    ) as s:
        for prompt in prompts:
            before = stats.drafts.drafted
            id = s.submit(prompt, 6, eos=())
            assert not finish(s, ends).errors
            assert ends.texts[id] == generate(tiny.target(MODEL), [prompt], max_new_tokens=6)[0]
            assert method not in ON_STATES or stats.drafts.drafted > before
        assert s.prefixes is not None and s.prefixes.hits == 1024 + 1024


@pytest.mark.full
@every
def test_a_conversation(method):
    """The second answer continues the first, and the third another text that begins alike."""
    talk = Conversation(tiny.target(MODEL))
    d = drafter(method)
    stats = Stats()
    doc, more = tiny.prompts(1100, 30)
    for cut in (0, 1, 200):
        prompt = doc[: len(doc) - cut] + more * (cut > 0)
        said = [token for one in talk.answer(prompt, 6, d, stats) for token in one.tokens[0]]
        assert [said] == generate(tiny.target(MODEL), [prompt], max_new_tokens=6)
        doc = doc if cut else prompt + said
    assert method not in ON_STATES or stats.drafts.steps > 6


# Planted faults -----------------------------------------------------------------------------------


def begun_anew(mp) -> None:
    """What was held before a pause is dropped."""
    mp.setattr(
        Pairs, "leave_out", lambda self, b, to: self.skip(b, to) if to > int(self.next[b]) else None
    )


def one_late(mp) -> None:
    """The states of tokens that were read again are taken for those of the tokens before them."""
    good = rereading.read_again

    def wrong(*given):
        first, states = good(*given)
        return first, {layer: x.roll(1, 1) for layer, x in states.items()}

    mp.setattr("longdraft.drafters.eagle.drafter.read_again", wrong)


@pytest.mark.full
@pytest.mark.parametrize("fault", [begun_anew, one_late], ids=lambda x: x.__name__)
@torch.inference_mode()
@pytest.mark.whole
def test_wrong_states_are_harmless_and_caught(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=r"keys of other states|was dropped"):
        check_pauses("eagle3")


def test_what_is_reopened_is_asked_of_the_cache():
    """`reopen` takes back as many slots as it is told, so only the cache itself may say how
    many.
    """
    source = Path(longdraft.__file__).parent
    users = [
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if ".reopen(" in path.read_text()
    ]
    assert users == ["core"]
