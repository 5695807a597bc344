"""Costs are measured within their time, kept per model, machine and kernels, and asked for in the
right order.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from time import process_time

import pytest
import torch
from support import tiny

from longdraft.core import Captures, Tree
from longdraft.costs.counts import counted, pass_over
from longdraft.costs.passes import PassCosts
from longdraft.tuning import known, measure, stopwatch
from longdraft.tuning import stored as storage
from longdraft.tuning.known import forget, known_costs
from longdraft.tuning.measure import (
    Held,
    bias,
    fitted,
    held_out,
    measured,
    measured_briefly,
    quantiles,
    thorough_shapes,
)
from longdraft.tuning.stopwatch import CallTime, shortest, turn
from longdraft.tuning.stored import fingerprint, place_of, store, stored
from longdraft.tuning.workload import PassShape, Workload, branching, passes_of

COSTS = PassCosts(*(0.001 * (i + 1) for i in range(len(fields(PassCosts)))))
KINDS = ["llama", "mistral-window", "qwen3-kv8", "qwen3.5", "gpt-oss", "llama-torch", "qwen3-a8"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path))
    for name in ("llama", "llama-torch"):
        forget(tiny.target(name))
    yield tmp_path
    for name in ("llama", "llama-torch"):
        forget(tiny.target(name))


def test_turns_that_had_their_processors_count():
    assert shortest([CallTime(3.0), CallTime(2.0), CallTime(1.0, waited=0.5)]) == 2.0
    # the middle one
    assert shortest([CallTime(3.0, 0.6), CallTime(4.0, 4.0), CallTime(9.0, 0.9)]) == 3.0 * math.exp(
        -0.2
    )
    assert 0 < shortest([CallTime(4.0, 9.0)]) < 1.0
    done = []
    assert turn(lambda: done.append(1), torch.device("cpu")).seconds > 0 and done == [1]
    assert stopwatch.waited() >= 0


def test_a_gpu_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    turn(lambda: None, torch.device("cuda", 1))
    assert waited == [torch.device("cuda", 1)]


class Seeing:
    """A model that notes the passes it runs."""

    def __init__(self, model):
        self.model = model
        self.seen = []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, tree: Tree, cache, start=0, view=None, captured=None, logits=0):
        self.seen.append((cache.length.tolist(), tree.size - start, view, captured))
        return self.model(tree, cache, start, view, captured, logits)


@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_a_workload_runs_what_is_counted(name):
    model = Seeing(tiny.target(name))
    work = Workload(model, 2, 48)
    model.seen.clear()
    for shape in (PassShape(2, 48, 5), PassShape(1, 20, 1), PassShape(2, 30, 3, scored=True)):
        call = work.timed(shape)
        for _ in range(2):  # a call leaves the cache as it was
            assert call().shape == (shape.rows, shape.nodes)
            lengths, nodes, view, captured = model.seen.pop()
            assert lengths == [shape.context] * shape.rows and nodes == shape.nodes and view is None
            full = len(model.windows) < model.depth
            assert bool(captured.scores) == (shape.scored and full)
            assert passes_of(model.model, shape) == [
                pass_over(model.model, lengths, nodes, scored=captured.spec)
            ]
    drafts = PassShape(2, 40, 3, 0.25)
    work.timed(drafts)()
    counted_as = passes_of(model.model, drafts)
    assert len(counted_as) == 3 and [p.chained for p in counted_as] == [False, True, True]
    assert work.view(drafts).seen([40, 40]) == [10, 10]
    assert counted_as[0] == pass_over(model.model, [40, 40], 1, seen=work.view(drafts).seen)


def test_every_slot_of_a_workload_is_memory_of_its_own():
    """Pages that were never written are one page of zeros, which is read from the processor's
    cache.
    """
    work = Workload(tiny.target("llama"), 2, 64)
    for layer in work.cache.layers:
        for b in (0, 1):
            assert all(bool((x != 0).all()) for x in work.cache.stored(layer, b))


def test_trees_branch():
    tree = branching(torch.arange(12)[None])
    assert (
        tree.size == 12
        and int(tree.depth.max()) < 11
        and branching(torch.zeros(2, 1, dtype=torch.long)).size == 1
    )


@pytest.mark.full
@torch.inference_mode()
def test_costs_at_load_predict_this_machine():
    model = tiny.target("llama")
    costs = measured_briefly(model, 2.0)
    assert costs is not None and costs != counted(model)
    assert all(
        math.isfinite(x) and x >= 0 for x in (getattr(costs, f.name) for f in fields(PassCosts))
    )
    timed = measured(model, [PassShape(1, 64), PassShape(1, 256, 8), PassShape(4, 128, 2)], 20)
    held = held_out(model, costs, timed)
    assert all(0.2 < h.predicted / h.measured < 5 for h in held), held  # beside any load


def test_a_slow_model_is_not_measured_at_load(monkeypatch):
    model = tiny.target("llama")
    slow = replace(counted(model), call=1.0)
    monkeypatch.setattr(measure, "counted", lambda model: slow)
    monkeypatch.setattr(measure, "Workload", None)
    assert measured_briefly(model, 0.6) is None


@pytest.mark.full
def test_measuring_ends_in_time(monkeypatch):
    """On a clock that moves by 0.01 s with every pass."""
    model = tiny.target("llama")
    now = [0.0]

    def turned(call, device):
        now[0] += 0.01
        return CallTime(0.01)

    monkeypatch.setattr(measure, "turn", turned)
    monkeypatch.setattr(measure, "perf_counter", lambda: now[0])
    assert measured_briefly(model, 0.3) is not None and now[0] <= 0.31
    now[0] = 0.0
    own, others = thorough_shapes(model, [256], 2)
    timed = measured(model, [*own, *others], repeat=1000, seconds=3.0)
    assert len(timed) == len(own) + len(others) and now[0] <= 3.0 + 0.01 * len(timed)


@torch.inference_mode()
def test_costs_fitted_to_some_passes_predict_others(monkeypatch):
    """With times that follow from terms: what is left is the fit's own error."""
    model = tiny.target("llama")
    own, others = thorough_shapes(model, [64, 256], 4)
    assert not set(own) & set(others) and {s.rows for s in others} == {1, 4}
    assert max(s.context for s in own) < max(s.context for s in others)

    start = counted(model)
    true = replace(
        start,
        call=start.call / 3,
        read=start.read * 5,
        key=start.key * 400,
        attend=start.attend * 90,
    )

    def timed(shapes):
        return [measure.Timed(s, measure.predicted(true, passes_of(model, s))) for s in shapes]

    monkeypatch.setattr(measure, "overheads", lambda *_: {"step": 0.5})
    costs = fitted(model, timed(own))
    held = held_out(model, costs, timed(others))
    assert quantiles(held)[1] < 0.05 and abs(bias(held)) < 0.03 and costs.step == 0.5
    # planted: costs that do not know attention
    blind = replace(costs, key=0.0, attend=0.0)
    assert quantiles(held_out(model, blind, timed(others)))[1] > 0.2


def test_quantiles_of_errors():
    held = [Held(PassShape(1, 1), 1.0, 1.0 + x) for x in (0.1, -0.3, 0.2, 0.0, -0.05)]
    assert quantiles(held) == (pytest.approx(0.1), pytest.approx(0.3))


def test_stored_costs_are_read_again(own_cache, capsys):
    model = tiny.target("llama")
    assert stored(model) is None
    place = store(model, COSTS, {"median": 0.05})
    assert place.parent == own_cache / "costs" and stored(model) == COSTS
    assert [p.name for p in place.parent.iterdir()] == [place.name]  # no parts are left
    assert stored(tiny.target("qwen3")) is None and stored(tiny.target("llama-torch")) is None
    assert capsys.readouterr().err == ""


def damaged(text: str) -> list[str]:
    """What may have become of a file."""
    content = json.loads(text)
    terms = content["terms"]
    changed = [
        content | {"terms": terms | {"read": -1.0}},
        content | {"terms": terms | {"read": "fast"}},
        content | {"terms": terms | {"read": True}},
        content | {"terms": terms | {"read": 1e9}},
        content | {"terms": terms | {"more": 1.0}},
        content | {"terms": {k: v for k, v in terms.items() if k != "read"}},
        content | {"terms": None},
        content | {"fingerprint": content["fingerprint"] | {"kernels": "other"}},
        {},
        [],
    ]
    return [
        text[: len(text) // 2],
        "",
        "\0",
        "[" * 10_000,
        text.replace("0.001", "NaN", 1),
        *map(json.dumps, changed),
    ]


def test_damaged_and_foreign_files_are_ignored_with_a_line(capsys):
    model = tiny.target("llama")
    place = store(model, COSTS, {})
    for text in damaged(place.read_text()):
        place.write_text(text)
        assert stored(model) is None, text[:200]
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.startswith("longdraft: note: costs in "), text[:200]
    place.unlink()
    place.mkdir()
    assert stored(model) is None


@pytest.mark.parametrize("field", ["machine", "kernels", "threads", "model", "dtype", "version"])
def test_costs_of_something_else_are_not_found(field, monkeypatch):
    model = tiny.target("llama")
    store(model, COSTS, {})
    own = fingerprint(model)
    monkeypatch.setattr(storage, "fingerprint", lambda model: own | {field: "other"})
    assert stored(model) is None
    monkeypatch.setattr(storage, "fingerprint", lambda model: own)
    assert stored(model) == COSTS


def test_what_is_stored_comes_before_what_is_measured_and_that_before_counts(monkeypatch):
    model = tiny.target("llama")
    asked = []
    assert model.exact
    monkeypatch.setattr(known, "measured_briefly", lambda model: asked.append(model) or COSTS)
    assert known_costs(model) is known_costs(model) is COSTS and len(asked) == 1  # asked once
    assert known_costs(model, exact=False) == counted(model) and len(asked) == 1
    forget(model)
    other = replace(COSTS, call=7.0)
    store(model, other, {})
    assert known_costs(model) == known_costs(model, exact=False) == other and len(asked) == 1
    forget(model)
    place_of(model).unlink()
    monkeypatch.setattr(known, "measured_briefly", lambda model: None)  # no time to
    assert known_costs(model) == counted(model)


def test_where_outputs_could_depend_on_costs_nothing_is_measured(monkeypatch):
    """Planted in the end: costs measured on a backend that is not exact."""

    def check() -> None:
        forget(model)
        assert known_costs(model) == counted(model)

    model = tiny.target("llama-torch")
    monkeypatch.setattr(known, "measured_briefly", lambda model: COSTS)
    assert not model.exact
    check()
    monkeypatch.setattr(type(model.backend), "exact", True)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.full
@pytest.mark.timing
def test_asking_takes_less_than_a_second():
    model = tiny.target("llama")
    begin = process_time()
    known_costs(model)
    assert process_time() - begin < 5  # 0.7 s of one thread on an idle machine


def test_captures_are_what_vegas_asks_for():
    from longdraft.methods import build
    from longdraft.tuning.workload import KEPT

    vegas = build("vegas", tiny.target("llama"), adaptive=False)
    policy = vegas.policy
    policy._longest = 1 << 20
    assert vegas.captures() == KEPT and Captures(KEPT).spec == KEPT
