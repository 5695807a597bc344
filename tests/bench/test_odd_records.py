"""`longdraft report` on records from elsewhere: a table, or one line that names the file, the line
and the field.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_report import BUDGETS, PEERS, STEPS, records

from longdraft.bench import fields, plots
from longdraft.bench.records import read_records
from longdraft.cli import main

ODD = [
    None,
    -1,
    0,
    1 << 70,
    1.5,
    float("nan"),
    float("inf"),
    True,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    ["x"],
    {},
    {"x": []},
]


def samples() -> dict[str, list[dict]]:
    """Few records of each task that make a table with all its notes, and plots."""
    speed = [r for r in records(PEERS) if r["repeat"] < 2 and r["context"] == 1024]
    anchored = [r | {"accepted": [w[:2] for w in r["accepted"]]} for r in records(BUDGETS, 6)]
    first = records(STEPS)[0]["run"], records(STEPS)[0]["context"]
    return {
        "speed": speed,
        "anchored": anchored,
        "steps": [r for r in records(STEPS) if (r["run"], r["context"]) == first],
    }


SAMPLES = samples()


@pytest.fixture
def reported(tmp_path, capsys):
    """reported(records) -> (exit status, what was said); anything but one line of an error
    fails.
    """

    def call(found: list) -> tuple[int, str]:
        file = tmp_path / "odd.jsonl"
        file.write_text("".join(json.dumps(r) + "\n" for r in found))
        status = main(["report", str(file), "--out", str(tmp_path / "out")])
        said = capsys.readouterr().err
        assert status == 0 or (
            status == 2 and said.startswith("longdraft: ") and len(said.splitlines()) == 1
        ), said
        return status, said

    return call


@pytest.mark.parametrize("task", SAMPLES)
def test_a_field_that_is_missing_is_named(task, reported, monkeypatch):
    """Each field in turn, of the last record: it has company that is whole."""
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    whole = SAMPLES[task]
    refused = set()
    assert reported(whole) == (0, f"{plots.MISSING}\n")
    for name in whole[-1]:
        status, said = reported([*whole[:-1], {k: v for k, v in whole[-1].items() if k != name}])
        if status:
            assert (
                f"odd.jsonl, line {len(whole)}: " in said
                and {"settle": "warmup_rounds"}.get(name, name) in said
            )
            refused.add(name)
    needed = {k for k, f in fields.TASKS[task].model_fields.items() if f.is_required()}
    assert needed <= refused and {"label", "run", "context"} <= needed


def test_what_is_no_record_is_one_line(reported):
    for odd in (1, "x", [], {}, {"task": "speed"}, {"task": [], "method": "x", "context": 1}):
        assert "not a bench record" in reported([odd])[1]
    assert (
        "no records to report"
        in reported([{"task": "other", "method": "x", "context": 1, "run": []}])[1]
    )


@pytest.mark.full
def test_a_run_of_steps_that_was_interrupted_has_a_table(reported):
    whole = SAMPLES["steps"]
    for i in range(len(whole)):
        assert reported(whole[: i + 1])[0] == reported(whole[i:])[0] == 0


def test_records_of_other_anchors_are_not_paired(reported):
    """The check is needed: without it, the pairs have no meaning."""
    first, *others = SAMPLES["anchored"]
    status, said = reported([first | {"accepted": first["accepted"][:-1]}, *others])
    assert status == 2 and "differ in their anchors" in said


@pytest.mark.full
@pytest.mark.parametrize("drawn", [False, True], ids=["tables", "plots"])
@pytest.mark.parametrize("task", SAMPLES)
def test_no_field_makes_a_traceback(task, drawn, reported, monkeypatch):
    if drawn:
        pytest.importorskip("matplotlib")
    else:
        monkeypatch.setattr(plots, "find_spec", lambda name: None)
    for i in (0, len(SAMPLES[task]) - 1):
        record = SAMPLES[task][i]
        for name in record:
            for value in ODD[i % 2 :: 2] if drawn else ODD:
                found = list(SAMPLES[task])
                found[i] = record | {name: value}
                reported(found)


def test_the_boundary_of_records_is_needed(reported, monkeypatch):
    """Without the table of fields, a record that lacks its label raises, as it once did."""
    monkeypatch.setattr("longdraft.bench.records.fault", lambda record: None)
    first, *others = SAMPLES["speed"]
    with pytest.raises(KeyError, match="label"):
        reported([{k: v for k, v in first.items() if k != "label"}, *others])


@pytest.mark.full
def test_every_record_that_is_kept_is_known():
    folder = Path(__file__).parents[2] / "benchmarks" / "records"
    known = [
        r
        for f in sorted(folder.glob("*.jsonl*"))
        for _, r in read_records(f)
        if r.get("task") in fields.TASKS
    ]
    assert len(known) > 3000 and not any(map(fields.fault, known))
