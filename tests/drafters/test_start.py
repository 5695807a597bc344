"""What a drafter reads before its first draft and after a pause: no more than it will see, and not
before it drafts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, SEED, check_full_acceptance
from support.filled import doubt_copies
from support.listed import BUILD, make
from support.prices import Stated
from support.structure import close

from longdraft import Stats, build
from longdraft.core.cache import KVCache, _Store
from longdraft.core.sampling import Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.tree import DraftLimits, Tree
from longdraft.core.verify import match
from longdraft.drafters import (
    AdaptiveDraft,
    DFlash,
    Drafter,
    Eagle,
    Fill,
    Hierarchical,
    PlainDecoding,
    SelfDrafter,
    SmallModelDrafter,
)
from longdraft.drafters.adaptive.decision import PLAIN
from longdraft.drafters.adaptive.pace import Pace
from longdraft.drafters.small_model.drafter import NEAR, SINK, random_lm
from longdraft.engine.generate import generate, prefill, step
from longdraft.models.lm import LM
from longdraft.views import Chunks, Full, Policy, Retrieval, SinkWindow

TAIL = 40
POLICIES: dict[str, Callable[[], Policy]] = {
    "full": Full,
    "chunks": lambda: Chunks(32),
    "chunks, chosen again": lambda: Chunks(32, every=2),
    "window": lambda: SinkWindow(4, 0.0, 24),
}
each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


class Spy(LM):
    """Records every pass over more than one node, as (rows, nodes, nodes whose logits were asked
    for).
    """

    def __init__(self, hf):
        super().__init__(hf)
        self.passes: list[tuple[int, int, int]] = []

    def __call__(self, tree, cache, start=0, view=None, captured=None, logits=0):
        if tree.size - start > 1:
            self.passes.append((len(tree.tokens), tree.size - start, logits or tree.size - start))
        return super().__call__(tree, cache, start, view, captured, logits)

    @property
    def read(self) -> int:
        return sum(rows * nodes for rows, nodes, _ in self.passes)


def spy(path: str = "native") -> Spy:
    lm = Spy(tiny.stock("llama"))
    lm.backend = lm.backend if path == "native" else lm.eager
    return lm


def begun(
    drafter: Drafter, texts: list[list[int]], limit: int = 20, sampler: Sampler | None = None
) -> Sequences:
    """After the first step, which drafts nothing."""
    seqs = prefill(tiny.target("llama"), texts, limit, sampler or Sampler(), SEED, ())
    drafter.start(seqs)
    step(tiny.target("llama"), drafter, seqs, match, Stats(), draft=False)
    return seqs


# How much is read, and when -----------------------------------------------------------------------


@pytest.mark.each_value
@torch.inference_mode()
@each_policy
@pytest.mark.parametrize("path", ["native", "torch"])
def test_a_small_model_reads_the_end_of_a_long_prompt_and_only_when_it_drafts(policy, path):
    small = spy(path)
    drafter = SmallModelDrafter(small, policy(), [1, 1], tail=TAIL)
    seqs = begun(drafter, tiny.prompts(400, 300))
    assert small.read == 0
    drafter.ready(seqs)
    assert small.read == 2 * (SINK + TAIL - 1)  # the root runs with the draft
    drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
    more = 2 * 32 if isinstance(drafter.policy, Chunks) else 0  # the queries that choose
    assert small.read <= 2 * (SINK + TAIL) + 2 * more


@torch.inference_mode()
def test_who_never_drafts_reads_nothing(monkeypatch):
    monkeypatch.setattr(Pace, "decide", lambda self, captured: PLAIN)
    small = spy()
    drafter = AdaptiveDraft(SmallModelDrafter(small, Full(), [1, 1], tail=TAIL), Stated())
    generate(tiny.target("llama"), tiny.prompts(200), drafter, max_new_tokens=30)
    assert small.read == 0


@torch.inference_mode()
def test_one_of_several_drafters_reads_when_its_turn_comes():
    lm = tiny.target("llama")
    small = spy()
    first = SelfDrafter(lm, Full(), [1])
    second = SmallModelDrafter(small, Full(), [1, 1], tail=TAIL)
    second.usual = (0.1, 0.1)
    drafter = Fill([first, second], Stated())
    seqs = begun(drafter, tiny.prompts(200), 40)
    for _ in range(4):
        step(lm, drafter, seqs, match, Stats())
    assert small.read == 0
    drafter.use.now = drafter.sources[1]
    drafter._give_captures()
    doubt_copies(drafter)
    for _ in range(4):
        step(lm, drafter, seqs, match, Stats())
    assert small.read > SINK + TAIL // 2


@torch.inference_mode()
def test_dflash_reads_its_window_and_only_when_it_drafts():
    """The target runs again for features that are missing, for no more than the block sees."""
    lm = Spy(tiny.stock("llama"))
    drafter = make("dflash", lm, window=30)
    seqs = prefill(lm, tiny.prompts(200), 300, Sampler(), SEED, ())
    lm.passes.clear()
    drafter.start(seqs)
    step(lm, drafter, seqs, match, Stats(), draft=False)
    assert isinstance(drafter, DFlash) and lm.read == 0
    drafter.ready(seqs)
    assert lm.read == 30
    for _ in range(4):
        step(lm, PlainDecoding(), seqs, match, Stats())
    drafter.ready(seqs)
    assert lm.read == 34
    for _ in range(60):
        step(lm, PlainDecoding(), seqs, match, Stats())
    lm.passes.clear()
    drafter.ready(seqs)
    assert lm.read == 30
    fresh = DFlash(lm, drafter.block, window=30)
    fresh.start(seqs)
    assert torch.equal(
        *(
            d.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room)).tokens
            for d in (drafter, fresh)
        )
    )


@torch.inference_mode()
@pytest.mark.parametrize("method", ["eagle2", "eagle3"])
@pytest.mark.parametrize("span", [{"reach": 30}, {"reach": 80, "window": 27, "sink": 3}])
def test_eagle_reads_its_reach_and_only_when_it_drafts(method, span):
    """The target runs again for its features: at the first draft, and after a pause no more than
    `reach` tokens, or the window and the sinks.
    """
    lm = Spy(tiny.stock("llama"))
    drafter = make(method, lm, topk=4, levels=1, nodes=8, **span)
    assert isinstance(drafter, Eagle) and drafter.span.sink == span.get("sink", 4)
    seqs = prefill(lm, tiny.prompts(200), 300, Sampler(), SEED, ())
    lm.passes.clear()
    drafter.start(seqs)
    step(lm, drafter, seqs, match, Stats(), draft=False)
    assert lm.read == 0
    drafter.ready(seqs)
    assert lm.read == 30
    for _ in range(100):
        step(lm, PlainDecoding(), seqs, match, Stats())
    lm.passes.clear()
    drafter.ready(seqs)
    assert lm.read == 30
    fresh = make(method, lm, drafter.block, topk=4, levels=1, nodes=8, **span)
    fresh.start(seqs)
    assert torch.equal(
        *(
            d.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room)).tokens
            for d in (drafter, fresh)
        )
    )


@torch.inference_mode()
@pytest.mark.parametrize("method", ["suffix", "tokenswift"])
def test_a_text_is_indexed_at_the_first_draft(method):
    drafter = BUILD[method](tiny.target("llama"))
    seqs = begun(drafter, tiny.prompts(70))
    [rows] = [
        part.rows for part in getattr(drafter, "drafters", [drafter]) if hasattr(part, "rows")
    ]
    indexed = lambda: getattr(rows[0], "seen" if method == "suffix" else "size")  # noqa: E731
    assert indexed() == 0
    drafter.ready(seqs)
    assert indexed() == 71


def test_the_methods_read_no_more_than_pays():
    """`reads` bounds it, and never below what may be seen; 0 reads all."""
    lm = tiny.target("llama")
    tails = [
        ("sd", {}, 2048),
        ("sd", {"reads": 0}, 0),
        ("budgetdraft", {}, 2048),
        ("budgetdraft", {"reads": 0}, 0),
        ("budgetdraft", {"reads": 100}, 256),
        ("sd-sparse", {"budget": 4096}, 4096),
        ("triforce", {}, 1024),
        ("triforce", {"window": 3000}, 3000),
        ("specextend", {}, 0),
    ]
    for name, option, tail in tails:
        drafter = build(name, lm, random_lm(lm, 1), any_target=True, **option)
        inner = drafter.inner if isinstance(drafter, Hierarchical) else drafter
        assert isinstance(inner, SmallModelDrafter) and inner.tail == tail, name


def test_a_policy_that_names_slots_of_the_whole_text_reads_it():
    with pytest.raises(ValueError, match="needs tail=0"):
        SmallModelDrafter(tiny.target("llama"), Retrieval(), [1], tail=TAIL)


# What is not read is never seen -------------------------------------------------------------------


def excerpt(text: list[int], left: int) -> list[int]:
    return text[:SINK] + text[SINK + left :]


def drafts(
    drafter: SmallModelDrafter, texts: list[list[int]], rounds: int = 4
) -> list[torch.Tensor]:
    """The trees of some rounds."""
    lm = tiny.target("llama")
    found = []
    with torch.inference_mode():
        seqs = begun(drafter, texts)
        good = drafter.grow
        drafter.grow = lambda *a: (tree := good(*a), found.append(tree.tokens))[0]  # type: ignore[method-assign]
        for _ in range(rounds):
            step(lm, drafter, seqs, match, Stats())
    return found


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def check_unread_slots(policy: Callable[[], Policy], path: str = "native") -> None:
    """Slots that were never written hold NaN, and no draft changes."""
    make = lambda: SmallModelDrafter(spy(path), policy(), [1, 1, 1], tail=TAIL)  # noqa: E731
    texts = tiny.prompts(400, 30, 150)
    want = drafts(make(), texts)
    room = _Store.reserve

    def poisoned(self, layer, end, k, v):
        made = self.allocations
        buffers = room(self, layer, end, k, v)
        if self.allocations != made:
            for x in buffers:
                x[x == 0] = float("nan")
        return buffers

    with pytest.MonkeyPatch.context() as mp:
        mp.setattr(_Store, "reserve", poisoned)
        assert same(drafts(make(), texts), want)


@pytest.mark.each_value
@each_policy
@pytest.mark.parametrize("path", ["native", "torch"])
def test_slots_that_were_never_written_are_never_seen(policy, path):
    check_unread_slots(policy, path)


@each_policy
def test_a_slot_that_was_skipped_is_caught(policy, monkeypatch):
    """The test above would see it: the cache counts one token as read that is not."""
    good = SmallModelDrafter._read

    def skips(self, seqs, b):
        self.cache.length[b] += 1
        good(self, seqs, b)

    monkeypatch.setattr(SmallModelDrafter, "_read", skips)
    with pytest.raises(AssertionError):
        check_unread_slots(policy)


@pytest.mark.each_value
@torch.inference_mode()
@each_policy
@pytest.mark.parametrize("path", ["native", "torch"])
def test_the_drafts_are_those_of_a_prompt_without_what_is_not_read(policy, path):
    """And so no token that was left out has a say in them."""
    texts = tiny.prompts(400, 150)
    drafter = SmallModelDrafter(spy(path), policy(), [2, 3], tail=TAIL)
    seqs = begun(drafter, texts)
    found = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
    assert drafter._left.tolist() == [401 - SINK - TAIL, 151 - SINK - TAIL]
    short = [
        excerpt(seqs.tokens[b, : int(n)].tolist(), int(left))
        for b, (n, left) in enumerate(zip(seqs.length, drafter._left, strict=True))
    ]
    alone = SmallModelDrafter(spy(path), policy(), [2, 3])
    read = Sequences.of(short, 20, KVCache(2, 1), Sampler(), SEED)
    alone.start(read)
    assert torch.equal(
        alone.grow(Tree.root(read.last), read, DraftLimits(read.room)).tokens, found.tokens
    )


@pytest.mark.parametrize("reads", [10, 2048, 0])
def test_a_budget_as_large_as_the_context_accepts_every_draft(reads):
    options = {"gamma": 5, "budget": 112, "reads": reads}
    for rows in ((70,), (70, 1, 31)):
        check_full_acceptance(lambda t: build("budgetdraft", t, t, **options), 5, lengths=rows)


@torch.inference_mode()
def test_a_hierarchy_takes_back_what_its_inner_drafter_has_read():
    """Places in an excerpt are not places in the text."""
    lm = tiny.target("llama")
    inner = SmallModelDrafter(random_lm(lm, 1), Full(), [1, 1], lm.vocab, tail=12)
    drafter = Hierarchical(lm, Chunks(24), inner, 4)
    seqs = begun(drafter, tiny.prompts(70, 31, 1), 40, SAMPLERS["T=1"])
    for _ in range(6):
        step(lm, drafter, seqs, match, Stats())
        check_excerpts(inner, seqs)
    assert inner._left.tolist()[:2] == [71 - SINK - 12, 32 - SINK - 12]


def check_excerpts(drafter: SmallModelDrafter, seqs: Sequences) -> None:
    """The cache holds what a fresh prefill of a prefix of each live row's excerpt gives."""
    for b in (~seqs.done).nonzero()[:, 0].tolist():
        n = int(drafter.cache.length[b])
        text = excerpt(seqs.tokens[b, : int(seqs.length[b])].tolist(), int(drafter._left[b]))
        assert 0 < n < len(text)
        want = drafter.small.new_cache(1, n)
        drafter.small.prefill(text[:n], want)
        for layer in want.layers:
            for mine, theirs in zip(drafter.cache.read(layer, b), want.read(layer, 0), strict=True):
                close(mine[:, :n], theirs[:, :n])


# After a pause ------------------------------------------------------------------------------------


def paused(drafter: Drafter, missed: list[int], done: list[int]) -> Sequences:
    """Rows of 60 tokens that say so many while the drafter, which had drafted before, sees none of
    it.
    """
    texts = tiny.prompts(*[60 + n for n in missed])
    seqs = Sequences.of([t[:60] for t in texts], 2000, KVCache(len(texts), 1), Sampler(), SEED)
    drafter.start(seqs)
    drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
    for b, text in enumerate(texts):
        seqs.tokens[b, : len(text)] = torch.tensor(text)
        seqs.length[b] = len(text)
    seqs.done[done] = True
    return seqs


@torch.inference_mode()
@pytest.mark.parametrize("tail", [0, TAIL])
@pytest.mark.parametrize("path", ["native", "torch"])
def test_a_long_pause_is_caught_up_in_bounded_passes(path, tail):
    """Rows that missed 1,500 tokens, 700, a few and none, and one that was done early."""
    drafter = SmallModelDrafter(small := spy(path), Full(), [1, 1, 1], tail=tail)
    missed = [1500, 10, 700, 3, 0]
    seqs = paused(drafter, missed, done=[1])
    small.passes.clear()
    found = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
    reading = [p for p in small.passes if p[0] == 1]
    joint = [p for p in small.passes if p[0] > 1]
    assert sum(nodes for _, nodes, _ in reading) == 1500 + 700
    assert all(
        nodes <= small.backend.max_nodes if path == "native" else logits == 1
        for _, nodes, logits in reading
    )
    assert all(nodes <= NEAR + 1 for _, nodes, _ in joint)
    check_excerpts(drafter, seqs)
    if not tail:
        fresh = SmallModelDrafter(spy(path), Full(), [1, 1, 1])
        fresh.start(seqs)
        again = fresh.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
        live = ~seqs.done
        assert torch.equal(again.tokens[live], found.tokens[live])


@torch.inference_mode()
def test_a_row_that_is_done_never_widens_a_pass():
    """Its lag grows from round to round of the others, and it is not read on."""
    drafter = SmallModelDrafter(small := spy(), Full(), [1, 1])
    seqs = paused(drafter, [1500, 1500], done=[0])
    small.passes.clear()
    for _ in range(3):
        drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
        seqs.length[1] += 1
    assert max(rows * nodes for rows, nodes, _ in small.passes) <= small.backend.max_nodes
    assert int(drafter.cache.length[0]) < 100


@torch.inference_mode()
def test_a_row_of_unequal_lag_keeps_its_drafts():
    """After a joint pass that padded some rows, what is accepted is kept where it belongs."""
    target = tiny.target("llama")
    small = spy()
    drafter = SmallModelDrafter(small, Full(), [1, 1, 1])
    seqs = begun(drafter, tiny.prompts(60, 90, 31), 60)
    for at in range(12):
        if at % 3:
            step(target, PlainDecoding(), seqs, match, Stats())  # it does not see this round
        else:
            step(target, drafter, seqs, match, Stats())
            check_excerpts(drafter, seqs)
