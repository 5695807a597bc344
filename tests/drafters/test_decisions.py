"""Which drafts AdaptiveDraft decides to make, step by step, at stated prices: as stored.

A change that should not change decisions must leave decisions.txt as it is. After one that should,
`PYTHONPATH=src:tests python tests/drafters/test_decisions.py > tests/drafters/decisions.txt` writes
it anew.

Of each play it has what rows forecast as they begin, and a word for each step: "?" before any
decision, "_" the same without captures, "." plain, "c" captures only, "7x2" a draft of 7 levels of
2 nodes ("7x2/3": of which 3 were found); "'" if the step captured something, "@4" for how many
steps a view stays, "1:" the number of the drafter in use, "*9" for nine such steps. At the end: the
budget, and what is known of acceptance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support import tiny
from support.play import Play, Scripted, coin
from support.prices import Stated

from longdraft.core import CaptureSpec, DraftLimits
from longdraft.costs.passes import PassCosts
from longdraft.drafters import AdaptiveDraft
from longdraft.drafters.adaptive import adaptive_draft
from longdraft.drafters.adaptive.basis import Basis
from longdraft.drafters.adaptive.pause import Pause
from longdraft.drafters.adaptive.prices import Predicted

STORED = Path(__file__).parent / "decisions.txt"

LOOK = CaptureSpec(rows="mean")


def good() -> Play:
    return Play(AdaptiveDraft(Scripted(), Stated(0.1)), coin(1, 0.85)).run(120)


def bad() -> Play:
    return Play(AdaptiveDraft(Scripted(), Stated(0.1)), coin(2, 0.0)).run(400)


def captured() -> Play:
    return Play(AdaptiveDraft(Scripted(spec=LOOK), Stated(0.15, look=0.3)), coin(3, 0.4)).run(300)


def captured_bad_then_good() -> Play:
    play = Play(
        AdaptiveDraft(Scripted(spec=LOOK), Stated(0.2, fixed=0.3, look=0.2)), coin(4, 0.0)
    ).run(250)
    play.right = coin(5, 0.97)
    return play.run(250)


def hopeless() -> Play:
    return Play(AdaptiveDraft(Scripted(spec=LOOK), Stated(1.0, fixed=1.0)), coin(6, 0.9)).run(150)


def short_of_room() -> Play:
    play = Play(AdaptiveDraft(Scripted(), Stated(0.05)), coin(7, 0.9)).run(20)
    for depth in (6, 3, 2, 1, 0, 0):
        play.limits = DraftLimits(depth)
        play.run(2)
    return play


def texts() -> Play:
    """Three texts, of which the second is sampled, so that something else is usual."""
    play = Play(
        AdaptiveDraft(Scripted(usual=(0.9, 0.3)), Stated(0.12, once=5.0)), coin(8, 0.3)
    ).run(60)
    play.greedy = False
    play.begin()
    play.run(60)
    play.greedy = True
    play.begin()
    return play.run(60)


def finds_little() -> Play:
    inner = Scripted(depth=16, usual=(0.6, 0.6), finds=0.5)
    draw = random.Random(9)
    inner.there = lambda step: draw.choice([0, 0, 2, 5, 16])
    return Play(AdaptiveDraft(inner, Stated(0.01)), coin(10, 0.7, 16)).run(250)


def bush(rank: int) -> Play:
    inner = Scripted(depth=4, wide=6, rank=rank)
    return Play(AdaptiveDraft(inner, Stated(0.02, node=0.04)), coin(11 + rank, 0.85, 4)).run(120)


def view_that_renews() -> Play:
    inner = Scripted(spec=LOOK, renews=True)
    play = Play(AdaptiveDraft(inner, Stated(0.05, look=0.6)), coin(20, 0.95)).run(100)
    play.right = coin(21, 0.3)
    play.run(150)
    play.right = coin(22, 0.97)
    return play.run(200)


def view_that_is_expensive() -> Play:
    """For how many steps it stays follows acceptance."""
    inner = Scripted(depth=12, spec=LOOK, renews=True, usual=(0.9, 0.9))
    play = Play(AdaptiveDraft(inner, Stated(0.02, look=1.0)), coin(48, 0.7, 12)).run(80)
    play.right = coin(49, 0.98, 12)
    play.run(100)
    play.right = coin(50, 0.7, 12)
    return play.run(100)


def rows_come_and_go() -> Play:
    inner = Scripted(spec=CaptureSpec(hidden=(1,)))
    prices = Stated(0.05, look=0.05, more=lambda rows: 1 if rows < 3 else 6 * rows)
    play = Play(AdaptiveDraft(inner, prices), coin(23, 0.8), rows=0)
    for _ in range(2):
        play.enter()
        play.run(12)
    play.enter()
    play.enter()
    play.run(60)
    play.leave(0)
    play.run(30)
    play.leave(2)
    play.run(30)
    play.seqs.done[1] = True
    play.run(20)
    play.leave(1)
    return play.run(60)


def rows_grow() -> Play:
    """Costs depend on slots, and are predicted again as those grow."""

    class ByLength(Stated):
        def verify(self, lengths, nodes, spec):
            return 1 + 0.0002 * (nodes - 1) * float(sum(lengths.slots))

    play = Play(AdaptiveDraft(Scripted(), ByLength(0.05)), coin(24, 0.85), slots=64)
    for _ in range(8):
        play.run(15)
        play.seqs.length += 100
    return play


def rejecting(told: bool) -> Play:
    inner = Scripted(spec=LOOK, has_draft_probs=True)
    play = Play(
        AdaptiveDraft(inner, Stated(0.05, look=0.1), Stated(0.4, look=0.1)), coin(25, 0.8), rows=1
    )
    play.run(20)
    play.rejects = True
    if told:
        play.begin(told=True)
    play.run(60)
    play.rejects = False
    return play.run(60)


def forced_between() -> Play:
    play = Play(AdaptiveDraft(Scripted(spec=LOOK), Stated(0.15, look=0.1)), coin(26, 0.6))
    play.run(60, lambda step: step % 7 in (2, 3))
    play.right = coin(27, 0.0)
    play.run(150, lambda step: step % 7 in (2, 3))
    play.begin()
    return play.run(30, lambda step: step % 2 == 0)


def timed(seed: int, drafts: float, nodes: float, spec: CaptureSpec) -> Play:
    """A clock that the script moves: drafts take `drafts` times what is predicted."""
    seconds = [100.0]

    def clock(more: float) -> None:
        seconds[0] += more

    costs = PassCosts(call=0.4e-3, node=0.1e-3, score=1e-9, choice=0.2e-3, step=4e-3)
    inner = Scripted(spec=spec, took=0.4e-3 * drafts, usual=(0.7, 0.7), clock=clock)
    adaptive_draft.perf_counter = lambda: seconds[0]
    prices = Predicted(tiny.target("llama"), costs, corrects=True)
    fixed = Predicted(tiny.target("llama"), costs)
    play = Play(AdaptiveDraft(inner, prices, fixed), coin(seed, 0.75))
    play.clock = clock
    play.rates = (4.6e-3, nodes)
    play.run(150)
    play.rates = (7e-3, 1.5 * nodes)
    play.run(100)
    play.right = coin(seed + 1, 0.1)
    play.run(150)
    play.begin(2)
    play.right = coin(seed + 2, 0.8)
    return play.run(80)


def no_prices() -> Play:
    """They follow from arithmetic once a pass has been verified."""
    return Play(AdaptiveDraft(Scripted(spec=LOOK, usual=(0.9, 0.9))), coin(40, 0.9)).run(60)


PLAYS: dict[str, Callable[[], Play]] = {
    "good": good,
    "bad": bad,
    "captured": captured,
    "captured, bad then good": captured_bad_then_good,
    "hopeless": hopeless,
    "short of room": short_of_room,
    "three texts": texts,
    "finds little": finds_little,
    **{f"bush, rank {rank}": (lambda rank=rank: bush(rank)) for rank in (0, 1, 3, 5)},
    "view that renews": view_that_renews,
    "expensive view": view_that_is_expensive,
    "rows come and go": rows_come_and_go,
    "rows grow": rows_grow,
    "reject, told": lambda: rejecting(True),
    "reject, learned": lambda: rejecting(False),
    "forced between": forced_between,
    "timed, right": lambda: timed(28, 1.0, 0.1e-3, CaptureSpec()),
    "timed, slow drafts": lambda: timed(31, 2.5, 0.1e-3, CaptureSpec()),
    "timed, slow verification, captured": lambda: timed(34, 1.0, 0.4e-3, LOOK),
    "no prices": no_prices,
}


def stored() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in STORED.read_text().splitlines())


@pytest.mark.parametrize("name", PLAYS)
def test_the_same_drafts_are_made(name, monkeypatch):
    monkeypatch.setattr(adaptive_draft, "perf_counter", adaptive_draft.perf_counter)  # restored
    assert PLAYS[name]().text() == stored()[name]


def test_every_stored_play_is_played():
    assert list(stored()) == list(PLAYS)


def pauses_stay(mp) -> None:
    """A pause goes on as if the rows were the same."""
    mp.setattr(Pause, "shorten", lambda self: None)


def corrections_ignored(mp) -> None:
    """Costs are not predicted again when measurements have corrected predictions."""
    mp.setattr(Basis, "moved", lambda self, scales, share: False)


@pytest.mark.parametrize(
    ("fault", "name"),
    [(pauses_stay, "rows come and go"), (corrections_ignored, "timed, slow drafts")],
    ids=["pauses_stay", "corrections_ignored"],
)
def test_other_decisions_are_caught(fault, name, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        test_the_same_drafts_are_made(name, monkeypatch)


if __name__ == "__main__":
    for name, play in PLAYS.items():
        print(f"{name}: {play().text()}")
