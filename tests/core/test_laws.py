"""What is emitted has the target's law, and the noise behind it is uniform, independent and a pure
function.

Chi-square tests with a false-alarm rate of 1e-6 each (checks.FALSE_ALARM); their seeds are fixed,
so a run repeats.
"""

from __future__ import annotations

import pytest
import torch
from support import checks
from support.checks import SAMPLERS, Toy, check_counts, check_law, remembering, run_toy, tables
from support.listed import case, weekly

from longdraft import InputError, Sampler
from longdraft.core import verify
from longdraft.core.tree import DraftLimits
from longdraft.drafters import PlainDecoding
from longdraft.ops import ACCEPT, DRAFT, RESIDUAL, gumbel, noise, row_seed, uniform

SHAPES = {"chain": (1, 1), "one level": (3,), "two levels": (3, 6), "wider than top-p": (4, 8)}
KINDS = {
    "T=1": SAMPLERS["T=1"],
    "top-p": Sampler(temperature=0.8, top_p=0.7),
    "top-k": Sampler(temperature=1.3, top_k=3),
}
each_kind = pytest.mark.parametrize(
    "sampler", [case(s, id=name, daily=name == "T=1") for name, s in KINDS.items()]
)


@pytest.mark.parametrize("rows", [3000, pytest.param(20_000, marks=weekly)])
@each_kind
@pytest.mark.parametrize("widths", SHAPES.values(), ids=SHAPES)
def test_match_keeps_the_law(widths, sampler, rows):
    check_law("match", widths=widths, sampler=sampler, rows=rows, limit=3, vocab=4)


@pytest.mark.full
@each_kind
@pytest.mark.parametrize("widths", SHAPES.values(), ids=SHAPES)
def test_reject_keeps_the_law(widths, sampler):
    check_law("reject", widths=widths, sampler=sampler, rows=600, limit=3, vocab=4)


@pytest.mark.full
def test_reject_keeps_the_law_at_more_rows():
    check_law("reject", widths=(3, 6), rows=3000, vocab=5)


@pytest.mark.full
def test_reject_keeps_the_law_when_refused_drafts_choose_the_next_law():
    check_law("reject", **remembering())


@pytest.mark.parametrize("name", ["match", "reject"])
def test_greedy_verification_emits_the_argmax(name):
    checks.check_greedy_law(name)


def test_a_coin_of_zero_accepts_nothing_impossible(monkeypatch):
    checks.check_impossible(monkeypatch)


@pytest.mark.full
def test_match_emits_the_same_tokens_whatever_was_drafted():
    """By equality, not by statistics: for each of many seeds the text is the one that plain
    decoding draws.
    """
    p = tables(6, 1)
    sampler = SAMPLERS["T=1"]
    want = run_toy(verify.match, PlainDecoding(), p, sampler, 1000, 4)
    for widths in ([1, 1, 1], [2, 4], [5]):
        for q in (p, tables(6, 2), torch.zeros(6, 6)):
            assert torch.equal(
                run_toy(verify.match, Toy(q[None], widths), p, sampler, 1000, 4), want
            )


@pytest.mark.full
def test_shared_noise_couples_draft_and_target():
    """Equal laws always agree; laws at total variation distance d agree with probability
    (1-d)/(1+d) or more.
    """
    p = tables(6, 1)
    other = tables(6, 2)
    for q in (p, (p + other) / 2, other):
        seqs = checks.toy_sequences(4000, 2, SAMPLERS["T=1"])
        drafter = Toy(q[None], [1])
        drafter.start(seqs)
        tree = drafter.grow(verify.Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
        accepted = float(
            (verify.match(tree, p[tree.tokens], seqs.sampler, seqs).count == 2).double().mean()
        )
        d = float((p[0].softmax(-1) - q[0].softmax(-1)).abs().sum() / 2)
        # five standard errors at the most
        assert accepted >= (1 - d) / (1 + d) - 5 * 0.5 / 4000**0.5
        assert accepted == 1 or q is not p


def test_reject_without_a_law_is_refused():
    rows = checks.toy_sequences(2, 3, SAMPLERS["T=1"])
    tree = verify.Tree.root(rows.last)
    with pytest.raises(InputError, match="keeps its draft probabilities"):
        verify.reject(tree, torch.zeros(2, 1, 4), rows.sampler, rows)


# Noise --------------------------------------------------------------------------------------------

N = 300
SEED = torch.arange(N)
POSITION = torch.arange(N)[None].expand(N, -1)
TOKEN = torch.arange(8)


def test_rows_of_neighboring_seeds_share_no_noise():
    """Seed 1's row 0 is not seed 0's row 1, nor is any other pair of run and row another's."""
    runs = [*range(40), 1 << 60, (1 << 62) - 1, 1 << 62]
    seeds = [row_seed(seed, row) for seed in runs for row in range(40)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s <= 1 << 62 for s in seeds)  # so that each can be given again
    assert [row_seed(s, 0) for s in runs] == runs  # one prompt's text is that of its seed
    assert row_seed(-1, 0) == row_seed((1 << 64) - 1, 0) == -1
    assert (
        torch.tensor([row_seed(s, 3) for s in (-(1 << 63), (1 << 63) - 1, 1 << 200)]).dtype
        == torch.long
    )
    drawn = uniform(torch.tensor(seeds), POSITION[:1, :40].expand(len(seeds), -1), TOKEN).view(
        len(runs), 40, -1
    )
    for a, b in (
        (drawn[:-1], drawn[1:]),
        (drawn[:, :-1], drawn[:, 1:]),
        (drawn[1:, :-1], drawn[:-1, 1:]),
    ):
        cells = (a * 16).long() * 16 + (b * 16).long()
        check_counts(torch.bincount(cells.flatten(), minlength=256), torch.ones(256))


def test_row_seeds_never_change():
    assert [row_seed(7, row) for row in range(3)] == [7, 1033106683395038124, 1552580498769569342]


def histogram(x: torch.Tensor, bins: int) -> torch.Tensor:
    return torch.bincount((x.flatten() * bins).long(), minlength=bins)


def test_noise_is_uniform():
    u = uniform(SEED, POSITION, TOKEN)
    assert float(u.min()) > 0 and float(u.max()) < 1
    check_counts(histogram(u, 256), torch.ones(256))
    for fine in (u * 2**20 % 1, u * 2**36 % 1):  # the low bits too
        check_counts(histogram(fine, 256), torch.ones(256))


def pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    u = uniform(SEED, POSITION, TOKEN)
    found = {
        "seed": (u[:-1], u[1:]),
        "position": (u[:, :-1], u[:, 1:]),
        "token": (u[..., :-1], u[..., 1:]),
    }
    found["diagonal"] = (u[1:, :-1], u[:-1, 1:])  # seed + position is not what counts
    found["seed and token"] = (u[1:, :, :-1], u[:-1, :, 1:])
    found["position and token"] = (u[:, 1:, :-1], u[:, :-1, 1:])
    for name, salt in {"accept": ACCEPT, "residual": RESIDUAL, "draft": DRAFT}.items():
        found[f"salt {name}"] = (u, uniform(SEED ^ salt, POSITION, TOKEN))
    found["salts"] = (
        uniform(SEED ^ ACCEPT, POSITION, TOKEN),
        uniform(SEED ^ RESIDUAL, POSITION, TOKEN),
    )
    return found


@pytest.mark.parametrize("name", pairs())
def test_noise_is_independent_of_its_neighbors(name):
    a, b = pairs()[name]
    cells = (a * 16).long() * 16 + (b * 16).long()
    check_counts(torch.bincount(cells.flatten(), minlength=256), torch.ones(256), name)


def test_rounds_of_drafting_share_no_noise():
    """The salt that keeps a round's drafts apart from the next one's
    (drafters.beam_search.beam).
    """
    rounds = [uniform((SEED ^ DRAFT) + (length << 32), POSITION, TOKEN) for length in (7, 8)]
    cells = (rounds[0] * 16).long() * 16 + (rounds[1] * 16).long()
    check_counts(torch.bincount(cells.flatten(), minlength=256), torch.ones(256))


def test_gumbel_argmax_is_a_draw_and_top_k_are_draws_without_replacement():
    law = torch.tensor([0.4, 0.3, 0.2, 0.09, 0.01])
    scores = law.log() + gumbel(torch.arange(200), torch.arange(500)[None].expand(200, -1), 5)
    first, second = scores.topk(2).indices.flatten(0, 1).T
    joint = law[:, None] * law / (1 - law[:, None])
    check_counts(torch.bincount(first, minlength=5), law)
    check_counts(
        torch.bincount(first * 5 + second, minlength=25), joint.fill_diagonal_(0).flatten()
    )


def test_noise_is_a_pure_function():
    checks.check_noise_is_pure()


def test_noise_never_changes():
    """A seed's text is a promise to whoever wrote the seed down."""
    found = uniform(
        torch.tensor([0, 1 << 40]), torch.tensor([[0, 5], [131071, 1]]), torch.tensor([0, 4095])
    )
    pinned = [0.6432041334675688, 0.36030036074990923, 0.8144826298125786, 0.6834246930647588]
    pinned += [0.07962558474908443, 0.16357748301094077, 0.5840546781051644, 0.46861537321283675]
    assert found.flatten().tolist() == pytest.approx(pinned, abs=1e-15)


def test_noise_stays_below_one(monkeypatch):
    for bits in (-1, 0):
        monkeypatch.setattr(noise, "_mix", lambda x, bits=bits: torch.full_like(x, bits))
        assert 0 < float(uniform(SEED[:1], POSITION[:1, :1], TOKEN[:1])) < 1
