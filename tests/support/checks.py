"""What must hold, as functions that raise AssertionError.

The good version passes each of them in its own test file; in test_broken.py every planted fault
must fail one. What a fault may replace is therefore looked up when a check runs (`verify.match`,
not a name imported once).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import torch
from support import tiny
from torch import Tensor

from longdraft import Sampler, Stats
from longdraft.core import verify
from longdraft.core.cache import KVCache
from longdraft.core.sequences import Sequences
from longdraft.core.tree import DraftLimits, Tree
from longdraft.core.verify import Verdict
from longdraft.drafters import Drafter, PlainDecoding, beam
from longdraft.drafters.marginals import BestPaths
from longdraft.engine.generate import generate
from longdraft.models.lm import LM
from longdraft.ops import noise

FALSE_ALARM = 1e-6  # of each chi-square test, were its seeds redrawn


def critical(freedom: int) -> float:
    """Upper quantile of chi-square by Wilson and Hilferty; within 1 % of the exact one from 3
    degrees on.
    """
    z = NormalDist().inv_cdf(1 - FALSE_ALARM)
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + z * spread**0.5) ** 3


def check_counts(counts: Tensor, law: Tensor, what: str = "") -> None:
    """counts [C] are draws from law [C]: chi-square; cells that expect fewer than 5 are pooled."""
    counts, expected = counts.double(), law.double() / law.sum() * counts.sum()
    assert counts[expected == 0].sum() == 0, f"{what}: a token of probability zero came out"
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    counts = counts[expected > 0]
    expected = expected[expected > 0]
    found = float(((counts - expected) ** 2 / expected).sum())
    limit = critical(max(len(counts) - 1, 1))
    assert found < limit, f"{what}: chi-square {found:.1f} exceeds {limit:.1f}"


# Losslessness -------------------------------------------------------------------------------------

PENALTY = Sampler(temperature=1.0, min_p=0.05, penalty=1.2, window=16)
SAMPLERS = {
    "greedy": Sampler(),
    "T=1": Sampler(temperature=1.0),
    "T=0.7 top-p": Sampler(temperature=0.7, top_p=0.9),
    "T=1 min-p penalty": PENALTY,
}
SEED = 11


@cache
def plain(model: str, sampler: Sampler, lengths: tuple[int, ...], new: int) -> list[list[int]]:
    """Plain decoding: what every method must reproduce."""
    return generate(
        tiny.target(model), tiny.prompts(*lengths), max_new_tokens=new, sampler=sampler, seed=SEED
    )


def check_lossless(
    build: Callable[[LM], Drafter],
    model: str = "llama",
    sampler: Sampler = SAMPLERS["T=1"],
    lengths: tuple[int, ...] = (70,),
    new: int = 16,
) -> Stats:
    """A method's output is plain decoding's, token for token."""
    lm = tiny.target(model)
    stats = Stats()
    options = {"max_new_tokens": new, "sampler": sampler, "seed": SEED, "verify": verify.match}
    found = generate(lm, tiny.prompts(*lengths), build(lm), stats=stats, **options)
    assert found == plain(model, sampler, lengths, new)
    assert stats.emitted == new * len(lengths)
    return stats


def check_full_acceptance(
    build: Callable[[LM], Drafter],
    gamma: int,
    model: str = "llama",
    sampler: Sampler = SAMPLERS["T=1"],
    lengths: tuple[int, ...] = (70,),
) -> None:
    """With a budget that covers the context the draft is the target: every step accepts gamma
    drafts.
    """
    # the first step drafts nothing; the others then fill their branches to the last token
    stats = check_lossless(build, model, sampler, lengths, new=1 + 4 * (gamma + 1))
    assert stats.mean_acceptance_length == gamma + 1
    assert stats.acceptance_per_position == [1.0] * gamma


def check_eos(
    build: Callable[[LM], Drafter], model: str = "llama", lengths: tuple[int, ...] = (70, 31)
) -> None:
    """A row ends at the end token and keeps it, though it was accepted in the middle of a branch;
    others go on.
    """
    lm = tiny.target(model)
    sampler = SAMPLERS["T=1"]
    new = 18
    full = plain(model, sampler, lengths, new)
    for at in (2, 3, 5, 8, 11):  # wherever it lies in a branch
        eos = full[0][at]
        want = [row[: row.index(eos) + 1] if eos in row else row for row in full]
        options = {"max_new_tokens": new, "sampler": sampler, "seed": SEED, "eos": (eos,)}
        assert generate(lm, tiny.prompts(*lengths), build(lm), **options) == want


def check_best_path(sampler: Sampler = SAMPLERS["T=1"], rows: int = 30, limit: int = 12) -> None:
    """Where each depth's distribution is the target's, the best path of a tree is what the target
    says.
    """
    # after any token the same
    p = (torch.randn(12, generator=torch.Generator().manual_seed(1)) * 2).expand(12, 12)
    refused = []

    class Told(Drafter):
        def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
            logits = p[0].expand(len(tree.tokens), 3, -1)
            return BestPaths(9).add(tree, logits, seqs, limits.within(width=1))

    def verifier(tree: Tree, logits: Tensor, sampler: Sampler, rows) -> Verdict:
        verdict = verify.match(tree, logits, sampler, rows)
        refused.append(int((tree.last + 1 - verdict.count).sum()))
        return verdict

    text = run_toy(verifier, Told(), p, sampler, rows, limit)
    assert torch.equal(text, run_toy(verify.match, PlainDecoding(), p, sampler, rows, limit))
    assert len(refused) == limit / 4 and sum(refused) == 0


# The law of what is emitted -----------------------------------------------------------------------


class Toy(Drafter):
    """Drafts from tables of logits q [H,V,V], one row per last token.

    The first round uses table 0; the next ones (H > 1) table 1 + the token drafted last in the
    round before, as a view depends on it that is guided by refused rows.
    """

    has_draft_probs = True

    def __init__(self, q: Tensor, widths: list[int], grow: Callable = beam):
        self.q = q
        self.widths = widths
        self._grow = grow

    def start(self, seqs: Sequences) -> None:
        self.table = torch.zeros_like(seqs.length)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        def step(tree: Tree, start: int) -> Tensor:
            return self.q[self.table[:, None], tree.tokens[:, start:]]

        return self._grow(step, tree, self.widths, seqs, limits)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured) -> None:
        if len(self.q) > 1:
            self.table = 1 + tree.tokens[:, -1] % (len(self.q) - 1)


def toy_sequences(rows: int, limit: int, sampler: Sampler, seed: int = 0) -> Sequences:
    """Many rows that differ in their seeds alone, which are neighbors: every one starts from token
    0.
    """
    found = Sequences.of([[0]] * rows, limit, KVCache(rows, 1), sampler)
    found.seed = seed + torch.arange(rows)
    return found


def run_toy(
    verifier, drafter: Drafter, p: Tensor, sampler: Sampler, rows: int, limit: int, seed: int = 0
) -> Tensor:
    """The engine's loop without a model: the target's logits after token t are p[t]. ->
    [rows,limit] tokens.
    """
    seqs = toy_sequences(rows, limit, sampler, seed)
    drafter.start(seqs)
    while not bool(seqs.done.all()):
        tree = Tree.root(seqs.last)
        if drafter.has_draft_probs:
            tree = tree.with_draft_probs(0, torch.zeros(rows, 1, len(p)))
        tree = drafter.grow(tree, seqs, DraftLimits(seqs.room))
        verdict = verifier(tree, p[tree.tokens], sampler, seqs)
        seqs.commit(verdict)
        drafter.update(seqs, tree, verdict, None)
    return seqs.tokens[:, 1 : 1 + limit]


def true_law(p: Tensor, sampler: Sampler, limit: int) -> Tensor:
    """[V**limit] joint law of the first `limit` tokens after token 0, by enumeration."""
    V = len(p)
    rows = toy_sequences(V, 1, sampler)
    step = (
        sampler.processed(p[:, None], Tree.root(torch.arange(V)), rows)[:, 0].double().softmax(-1)
    )
    joint = step[0]
    for _ in range(limit - 1):
        joint = (joint.view(-1, V)[..., None] * step).reshape(-1)
    return joint


def tables(vocab: int, seed: int, sharp: float = 1.5) -> Tensor:
    """[V,V] random logits."""
    return torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(seed)) * sharp


def remembering(grow: Callable = beam) -> dict:
    """A case for check_law: what is drafted second and then refused chooses the law of the round
    after.
    """
    never = [-9.0, -9.0, -9.0, 9.0]
    even = [0.0, 0.0, -99.0, -99.0]
    # drafts 3, which the target hardly ever says; then 0 or 1
    first = torch.tensor([never, never, never, even])
    later = torch.tensor([[2.2, 0.0, -99.0, -99.0], even, even, even])[:, None].expand(-1, 4, -1)
    p = torch.tensor([1.0, 1.0, 0.0, -4.0]).expand(4, 4)
    return {"drafter": Toy(torch.cat([first[None], later]), [1, 1], grow), "p": p, "limit": 3}


def check_law(
    name: str,
    drafter: Drafter | None = None,
    widths: tuple[int, ...] = (1, 1),
    sampler: Sampler = SAMPLERS["T=1"],
    rows: int = 1500,
    limit: int = 2,
    vocab: int = 5,
    p: Tensor | None = None,
) -> None:
    """The verifier of this name keeps the target's law: the first `limit` tokens, jointly, over
    many seeds.
    """
    p = tables(vocab, 1) if p is None else p
    drafter = drafter or Toy(tables(vocab, 2)[None], list(widths))
    found = run_toy(getattr(verify, name), drafter, p, sampler, rows, limit)
    V = len(p)
    index = (found * V ** torch.arange(limit - 1, -1, -1)).sum(1)
    check_counts(torch.bincount(index, minlength=V**limit), true_law(p, sampler, limit), name)


def check_greedy_law(name: str) -> None:
    """At temperature 0 the verifier emits the arg-max, whatever the tree."""
    p = tables(5, 1)
    want = []
    last = 0
    for _ in range(4):
        last = int(p[last].argmax())
        want.append(last)
    for widths in ([1, 1, 1], [3, 6]):
        found = run_toy(getattr(verify, name), Toy(tables(5, 2)[None], widths), p, Sampler(), 4, 4)
        assert found.tolist() == [want] * 4


def check_impossible(monkeypatch) -> None:
    """A drafted token that the target can never say is refused even by a coin that shows 0."""
    monkeypatch.setattr(
        verify, "uniform", lambda seed, position, token: torch.zeros(1, 1, 1, dtype=torch.float64)
    )
    seqs = toy_sequences(8, 1, SAMPLERS["T=1"])
    tree = Tree.root(seqs.last).with_draft_probs(0, torch.tensor([0.2, 0.8, 0.0]).expand(8, 1, 3))
    tree = tree.grow(torch.zeros(8, 1, dtype=torch.long), torch.ones(8, 1, dtype=torch.long))
    logits = torch.tensor([0.0, float("-inf"), 0.0]).expand(8, 2, 3)
    assert (verify.reject(tree, logits, seqs.sampler, seqs).emitted[:, 0] != 1).all()


# Noise --------------------------------------------------------------------------------------------


def check_noise_is_pure() -> None:
    """The value at (seed, position, token) is the same alone, in any batch, in any order."""
    seed = torch.tensor([3, 99, 4])
    position = torch.tensor([[5, 6, 900], [6, 7, 0], [1, 6, 2]])
    table = noise.gumbel(seed, position, 50)
    for b in range(3):
        for t in range(3):
            assert torch.equal(
                noise.gumbel(seed[b : b + 1], position[b : b + 1, t : t + 1], 50)[0, 0], table[b, t]
            )
    assert torch.equal(noise.gumbel(seed, position, 20), table[..., :20])
    assert torch.equal(noise.gumbel(seed.flip(0), position.flip(0, 1), 50), table.flip(0, 1))


def check_draws_are_independent() -> None:
    """Draws of neighboring rows and positions from one law, jointly: each token has its own
    noise.
    """
    even = torch.zeros(4, 4)
    rows = torch.arange(3000)
    # seeds of rows are mixed
    found = run_toy(verify.match, PlainDecoding(), even, SAMPLERS["T=1"], 3000, 3)
    seeds = noise.gumbel(rows, torch.tensor([[1, 2, 3]]).expand(3000, 3), 4).argmax(-1)
    pairs = [(found[:, 0], found[:, 1]), (found[:-1], found[1:])]
    # row or seed b at position p+1, b+1 at p
    pairs += [(x[:-1, 1:], x[1:, :-1]) for x in (found, seeds)]
    for x, y in pairs:
        check_counts(
            torch.bincount((x * 4 + y).flatten(), minlength=16), torch.ones(16), "neighboring draws"
        )
