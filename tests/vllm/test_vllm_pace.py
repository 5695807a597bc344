"""The plugin for vLLM drafts where that is faster and stops where it is not, on machines of made-up
speeds.

vLLM itself is not needed: a machine is a clock that each step moves by what it costs there.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "longdraft-vllm" / "src"
STEPS = 600
MOST = 5


@pytest.fixture
def plugin(monkeypatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(SOURCES)
    names = ("pace", "paced_views", "paced_text", "costs", "acceptance")
    found = {name: import_module(f"longdraft_vllm.{name}") for name in names}
    for name in ("paced_views", "paced_text"):
        monkeypatch.setattr(found[name], "agree", lambda x: x)
    return found


@dataclass
class Machine:
    """Milliseconds of a pass: `weights`, and so much for each token that it reads and for each
    1,000 keys of each.
    """

    weights: float = 20.0
    token: float = 2.0
    keys: float = 2.0
    verify: float = 3.0  # for each drafted token that is verified
    select: float = 0.0  # for each 1,000 keys
    view: float = 0.5  # thousands of keys that a draft reads
    noise: float = 0.05
    spikes: float = 0.0  # how often a step takes five times as long
    # drafted tokens: how much longer first passes take
    cold: dict[int, list[float]] = field(default_factory=dict)
    now: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    seen: Counter[int] = field(default_factory=Counter)

    def spend(self, ms: float) -> None:
        spike = 5 if self.rng.random() < self.spikes else 1
        self.now += ms * spike * (1 + self.noise * self.rng.random())

    def step(self, context: list[int], drafted: int) -> float:
        return (
            self.weights
            + self.token * len(context)
            + self.keys * sum(context) / 1000
            + self.verify * drafted
        )

    def warming(self, drafted: int) -> float:
        """How much longer this verification takes."""
        self.seen[drafted] += 1
        return dict(enumerate(self.cold.get(drafted, ()), 1)).get(self.seen[drafted], 0.0)


def accepted(rng: random.Random, drafted: int, right: float) -> int:
    return next((i for i in range(drafted) if rng.random() > right), drafted)


def decode(
    plugin: Any,
    machine: Machine,
    context: list[int],
    right: Any = 0.95,
    steps: int = STEPS,
    pace: Any = None,
    **o: Any,
) -> tuple[float, Any, list[int]]:
    """A batch by vegas -> how many times as fast as plain decoding, its pace, and the depth of each
    step.
    """
    given = {"every": None, "guided": True} | o
    pace = pace or plugin["paced_views"].PacedViews(0.95, MOST, **given)
    pace.pace.clock = lambda: machine.now
    row = plugin["pace"].Row
    lengths = list(context)
    tokens = 0
    plain = 0.0
    drafted = [0] * len(context)
    depths = []
    started = machine.now
    ages = 0
    worth_changes = callable(right)
    for step in range(steps):
        now_right: float = right(step) if worth_changes else right
        machine.spend(machine.step(lengths, sum(drafted)))
        new = [1 + accepted(machine.rng, n, now_right) for n in drafted]
        lengths = [a + b for a, b in zip(lengths, new, strict=True)]
        tokens += sum(new)
        plain += sum(new) / len(new) * machine.step(lengths, 0) * (1 + machine.noise / 2)
        plan = pace.begin({i: row(*x) for i, x in enumerate(zip(lengths, new, strict=True))}, True)
        depths.append(plan.depth)
        drafted = [plan.depth] * len(lengths)
        if plan.depth:
            ages = ages + 1 if ages < plan.every else 1

            anew = len(lengths) if ages == 1 else 0
            keys = sum(lengths) / 1000

            def select(anew=anew, keys=keys):
                machine.spend(machine.select * keys + 0.01 if anew else 0.0)
                return anew

            pass_ms = machine.weights + len(lengths) * (machine.token + machine.keys * machine.view)
            pace.timed(select, lambda ms=pass_ms, n=plan.depth: machine.spend(n * ms))
        pace.end()
    return plain / (machine.now - started), pace, depths


# Where drafts lose: each costs as much as a step, and verifying costs too. Where they pay: keys are
# most of a step.
LOSES = {
    "a request": (Machine(), [1000]),
    "many": (Machine(), [1000] * 8),
    "dear": (Machine(verify=30), [7000] * 8),
}
PAYS = {
    "long": (Machine(weights=5, keys=10), [8000]),
    "long, many": (Machine(weights=5, keys=10), [8000] * 8),
}


def fresh(machine: Machine, **changes: Any) -> Machine:
    return Machine(
        **{k: v for k, v in vars(machine).items() if k not in ("now", "rng", "seen")} | changes
    )


@pytest.mark.parametrize("spikes", [0.0, 0.02])
@pytest.mark.parametrize("where", LOSES)
def test_drafting_that_loses_is_turned_off(plugin, where, spikes):
    machine, context = LOSES[where]
    rate, pace, depths = decode(plugin, fresh(machine), context)
    noisy, _, _ = decode(plugin, fresh(machine, spikes=spikes), context, pace=pace)
    assert rate > 0.98 and (spikes or noisy > 0.99)
    assert sum(map(bool, depths)) < 0.1 * STEPS


@pytest.mark.parametrize("where", PAYS)
def test_drafting_that_pays_goes_on(plugin, where):
    machine, context = PAYS[where]
    rate, _, depths = decode(plugin, fresh(machine), context)
    assert rate > 1.5
    assert sum(map(bool, depths)) > 0.9 * STEPS


def free(costs: Any, size: Any) -> list[tuple[float, float]]:
    """Verification costs nothing beyond a plain step."""
    return [(0.0, costs.plain(size)), (1.0, costs.plain(size))]


def blind(plugin: Any, monkeypatch: Any) -> None:
    """A planted fault: a model that ignores verification, without a budget."""
    monkeypatch.setattr(plugin["costs"].Costs, "verify", free)
    monkeypatch.setattr(plugin["pace"], "LIMIT", float("inf"))


def stubborn(plugin: Any, monkeypatch: Any) -> None:
    """A planted fault: what was once begun is never given up."""
    monkeypatch.setattr(plugin["pace"], "MARGIN", 0.0)
    monkeypatch.setattr(plugin["pace"], "LIMIT", float("inf"))


@pytest.mark.parametrize("fault", [blind, stubborn])
def test_a_pace_that_does_not_see_costs_is_caught(plugin, monkeypatch, fault):
    fault(plugin, monkeypatch)
    machine, context = LOSES["dear"]
    rate, _, _ = decode(plugin, fresh(machine), context)
    assert rate < 0.9


def test_what_it_loses_is_bounded_where_costs_are_wrong(plugin, monkeypatch):
    """The budget alone keeps a model that sees no verification near plain decoding."""
    monkeypatch.setattr(plugin["costs"].Costs, "verify", free)
    machine, context = LOSES["dear"]
    rate, _, _ = decode(plugin, fresh(machine), context)
    assert rate > 0.96


def test_it_follows_acceptance(plugin):
    machine, context = PAYS["long"]
    worth = lambda step: 0.95 if step < 200 or step >= 1000 else 0.0  # noqa: E731
    _, _, depths = decode(plugin, fresh(machine), context, worth, 2000)
    share = lambda a, b: sum(map(bool, depths[a:b])) / (b - a)  # noqa: E731
    assert share(20, 200) > 0.9 and share(400, 1000) < 0.1 and share(1800, 2000) > 0.9


def test_sizes_are_told_apart(plugin):
    """One engine: off for a short text, on for a long one, and off again."""
    machine = fresh(PAYS["long"][0])
    _, pace, _ = decode(plugin, machine, [300])
    rate, _, depths = decode(plugin, machine, [8000], pace=pace)
    again, _, short = decode(plugin, machine, [300], pace=pace)
    assert rate > 1.5 and sum(map(bool, depths)) > 0.8 * STEPS
    assert again > 0.98 and sum(map(bool, short)) < 0.1 * STEPS


def test_views_are_chosen_rarely_where_that_is_expensive(plugin):
    _, cheap, _ = decode(plugin, Machine(weights=5, keys=10), [8000])
    _, expensive, _ = decode(plugin, Machine(weights=5, keys=10, select=20), [8000])
    assert cheap.plan.every == 1 < 4 <= expensive.plan.every
    _, given, _ = decode(plugin, Machine(weights=5, keys=10, select=20), [8000], every=2)
    assert given.plan.every == 2


def test_only_a_watched_pass_is_drafted_from(plugin):
    watched = []
    begin = plugin["paced_views"].PacedViews.begin

    class Watching(plugin["paced_views"].PacedViews):
        def begin(self, rows, alone):
            before = self.plan.watch
            plan = begin(self, rows, alone)
            watched.append(before or not plan.depth)
            return plan

    pace = Watching(0.95, MOST, every=None, guided=True)
    decode(plugin, fresh(PAYS["long"][0]), [8000], pace=pace)
    assert all(watched)


def test_steps_that_others_disturb_are_not_measured(plugin):
    pace = plugin["pace"].Pace(0.9, MOST, clock=iter(range(100)).__next__)
    row = plugin["pace"].Row
    for length, alone, counted in (
        (10, True, 0),
        (11, True, 1),
        (12, False, 1),
        (13, True, 2),
        (50, True, 2),
    ):
        rows = {"a": row(length, 1)}
        pace.saw(rows, alone)
        assert sum(len(t.plain) for t in pace.costs.times.values()) == counted
        pace.ended(rows, 0)


def test_every_process_does_what_the_first_has_found(plugin, monkeypatch):
    """Processes whose clocks differ: the second one drafts as the first says, whatever it would
    have done.
    """
    monkeypatch.setattr(plugin["paced_views"], "agree", lambda x: (3, 2, True))
    _, pace, depths = decode(plugin, fresh(LOSES["dear"][0]), LOSES["dear"][1])
    assert set(depths) == {3} and pace.plan.every == 2


def text_of(rng: random.Random, repeats: float, length: int) -> list[int]:
    return [i % 10 if rng.random() < repeats else rng.randrange(50) for i in range(length)]


def decode_text(
    plugin: Any, machine: Machine, repeats: list[float], steps: int = STEPS, start: int = 50
) -> Any:
    """Rows, so much of which repeats itself -> the rate, and how many tokens were verified for each
    row.
    """
    pace = plugin["paced_text"].PacedText(0.6, MOST)
    pace.pace.clock = lambda: machine.now
    whole = [text_of(machine.rng, r, (MOST + 1) * steps + 2 * start) for r in repeats]
    at = [start] * len(whole)
    drafts = {}
    verified = [0] * len(whole)
    plain = 0.0
    started = machine.now
    for _ in range(steps):
        count = sum(map(len, drafts.values()))
        machine.spend(machine.step(at, count) + machine.warming(count))
        new = {}
        for b, text in enumerate(whole):
            draft = drafts.get(b, [])
            right = next((i for i, x in enumerate(draft) if x != text[at[b] + i]), len(draft))
            new[b] = right + 1
            verified[b] += len(draft)
            at[b] += new[b]
        plain += sum(new.values()) / len(new) * machine.step(at, 0) * (1 + machine.noise / 2)
        pace.begin({b: text[: at[b]] for b, text in enumerate(whole)}, new, True)
        drafts = pace.cut(
            {b: [x % 10 for x in range(at[b], at[b] + MOST)] for b in range(len(whole))}
        )
    return plain / (machine.now - started), verified


def test_rows_that_repeat_themselves_are_verified_further(plugin):
    rate, verified = decode_text(plugin, Machine(verify=4), [1, 0, 0, 0])
    assert rate > 1.2
    assert verified[0] > 4 * max(verified[1:])


def test_drafts_that_are_wrong_are_not_verified(plugin, monkeypatch):
    rate, verified = decode_text(plugin, Machine(verify=8), [0] * 8)
    assert rate > 0.98
    stubborn(plugin, monkeypatch)
    wrong, more = decode_text(plugin, Machine(verify=8), [0] * 8)
    assert wrong < 0.9 and sum(more) > 4 * sum(verified)


class Everything(set):
    """Has everything in it."""

    def __contains__(self, _: object) -> bool:
        return True


def first_passes_count(plugin: Any, monkeypatch: Any) -> None:
    """A planted fault."""
    made = plugin["pace"].Pace.__init__

    def begin(self, *given):
        made(self, *given)
        self.warm = Everything()

    monkeypatch.setattr(plugin["pace"].Pace, "__init__", begin)


def nothing_is_forgotten(plugin: Any, monkeypatch: Any) -> None:
    """A planted fault."""
    monkeypatch.setattr(plugin["costs"].Times, "forget", lambda self: None)


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize(
    ("cold", "fault"),
    [
        ({n: [30.0] for n in range(1, MOST + 1)}, first_passes_count),
        ({3: [0.0, 30.0]}, nothing_is_forgotten),
    ],
)
def test_a_number_of_tokens_that_was_slow_at_first_is_not_given_up(
    plugin, monkeypatch, cold, fault, planted
):
    """As with vLLM's kernels for CPUs, where drafting two tokens once looked slower than one for
    good.
    """
    if planted:
        fault(plugin, monkeypatch)
    _, verified = decode_text(
        plugin, Machine(weights=12, token=0, keys=0, verify=0.7, cold=cold), [0.7], start=20_000
    )
    assert (verified[0] > 2000) != planted


def test_a_text_that_begins_to_repeat_itself_is_noticed_without_verifying(plugin):
    """Drafts that nobody verified are compared with the text: acceptance is known when drafting is
    off.
    """
    pace = plugin["paced_text"].PacedText(0.6, MOST)
    ticks = iter(range(10**6))
    pace.pace.clock = lambda: float(next(ticks))
    for n in range(1, 200):
        # never alone: no step is measured, so none is drafted
        pace.begin({0: [7] * n}, {0: 1}, False)
        assert pace.cut({0: [7] * MOST}) == {0: []}
    assert min(pace.pace.acceptance.chances(0)) > 0.9


def test_another_request_in_the_same_row_starts_afresh(plugin):
    pace = plugin["paced_text"].PacedText(0.6, MOST)
    for n in range(1, 100):
        pace.begin({0: [7] * n}, {0: 1}, False)
        pace.cut({0: [7] * MOST})
    own = pace.pace.acceptance.chances(0)[0]
    pace.begin({0: [8] * 300}, {0: 1}, False)
    assert pace.pace.acceptance.chances(0)[0] < own


def test_costs_follow_the_lines_through_what_was_measured(plugin):
    costs = plugin["costs"].Costs()
    costs.at((2, 2000)).plain.extend([1.0, 1.0, 9.0])
    assert costs.verify((2, 2000)) is None
    costs.verified((2, 2000), 4, 2.0)
    costs.verified((2, 2000), 8, 2.5)
    points = costs.verify((2, 2000))
    along = plugin["costs"].along
    assert [along(points, x) for x in (0, 1, 2, 3, 4, 6)] == [1.0, 1.5, 2.0, 2.25, 2.5, 3.0]
    costs.at((8, 80000)).plain.append(10.0)
    assert [y for _, y in costs.verify((8, 80000))] == [10.0, 20.0, 25.0]
