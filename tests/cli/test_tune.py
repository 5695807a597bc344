"""`longdraft tune` measures, shows and keeps costs, which the next load of the model has."""

from __future__ import annotations

import json

import pytest
import torch

from longdraft.costs.passes import PassCosts
from longdraft.models.loading import load
from longdraft.tuning import stopwatch
from longdraft.tuning.known import known_costs
from longdraft.tuning.stored import place_of

FEW = ("tune", "-m", "tiny", "--context", "96", "--repeat", "1", "--most-rows", "2")


@pytest.fixture(autouse=True)
def idle_machine(tmp_path, monkeypatch):
    """The measurements' own cache folder, and no processes that disturb them."""
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stopwatch, "waited", lambda: 0.0)
    threads = torch.get_num_threads()
    yield tmp_path / "cache" / "costs"
    torch.set_num_threads(threads)


@pytest.mark.full
def test_costs_are_kept_and_used_from_then_on(cli, idle_machine):
    status, out, err = cli(*FEW, "--threads", "1", "--json")
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert set(told["errors"]) == {"median", "nine_of_ten"} and told["disturbed"] == 0
    assert {"measured_s", "predicted_s", "rows", "context", "nodes"} <= set(told["held_out"][0])
    assert 0 < len(told["held_out"]) < told["passes"]
    target = load("tiny", "bfloat16")[0]
    assert place_of(target).parent == idle_machine and place_of(target).is_file()
    assert known_costs(target) == known_costs(target, exact=False) == PassCosts(**told["terms"])
    other = load("tiny", "float32")[0]
    assert not place_of(other).exists()  # of another data type


def test_a_table_says_what_each_term_is_and_how_far_off_predictions_are(cli):
    status, out, _ = cli(*FEW)
    assert status == 0
    for word in (
        "reading weights",
        "GB/s",
        "choosing a view",
        "predicted",
        "nine of ten within",
        "Kept in",
    ):
        assert word in out, word


@pytest.mark.full
def test_nothing_is_kept_from_a_busy_machine(cli, idle_machine, monkeypatch):
    now = iter(range(1 << 30))
    monkeypatch.setattr(stopwatch, "waited", lambda: float(next(now)))
    status, out, _ = cli(*FEW)
    assert status == 1 and not idle_machine.exists()
    assert (
        "Other processes disturbed 100% of the passes" in " ".join(out.split())
        and "Not kept." in out
    )
    assert cli(*FEW, "--json")[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--context", "3"),
        ("--repeat", "0"),
        ("--most-rows", "0"),
        ("-m", "nowhere"),
        ("--kv", "int3"),
    ],
)
def test_wrong_options_are_one_line(cli, words):
    status, _, err = cli(*FEW, *words)
    assert status == 2 and err.count("\n") == 1 and err.startswith("longdraft: ")


def test_a_folder_that_cannot_be_written_is_one_line(cli, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "file"))
    status, _, err = cli(*FEW)
    assert status == 2 and "set LONGDRAFT_CACHE" in err and err.count("\n") == 1
