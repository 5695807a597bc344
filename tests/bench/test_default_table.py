"""The tables of default settings: ratios to the best fixed setting of a method and to plain
decoding, by cell.
"""

from __future__ import annotations

import json

import default_table
import pytest

from longdraft.errors import InputError

SPEEDS = {
    "plain": 100,
    "vegas@pace=off": 150,
    "vegas@pace=off@gamma=4": 200,
    "vegas": 190,
    "suffix": 120,
    "auto": 180,
}


@pytest.fixture
def records(tmp_path):
    """Three repeats of two texts; on the second all but plain decoding is half as fast."""
    rows = []
    for text, factor in (("code", 1.0), ("book", 0.5)):
        for label, speed in SPEEDS.items():
            for noise in (0.5, 1.0, 1.1):
                row = dict(zip(default_table.KEYS, ("m", "k", text, 8, 1, 9, 0.0), strict=True))
                tokens = speed * noise * (1 if label == "plain" else factor)
                rows.append(
                    row | {"task": "speed", "method": label, "label": label, "tokens_per_s": tokens}
                )
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def check(file) -> None:
    found = default_table.compared(default_table.speeds([file]))
    code, book = (("m", "k", text, 8, 1, 9, 0.0) for text in ("code", "book"))
    # of its best fixed setting, of plain
    assert found["vegas"] == {
        code: (0.95, 1.9),
        book: (0.95, 0.95),
    }
    # of the best of all, plain decoding included
    assert found["auto"] == {
        code: (0.9, 1.8),
        book: (0.9, 0.9),
    }
    assert "suffix" not in found  # there is no fixed setting beside it
    assert "| auto | 2 | 0.90 | 0.90 | 0.90 | 1.35 | 0.99 | 0.90 |" in default_table.report([file])


def test_tasks_and_turns_are_cells_of_their_own(tmp_path):
    rows = []
    for turn, speed in ((1, 120), (2, 80)):
        for label, tokens in (("plain", 100), ("suffix", 101), ("auto", speed)):
            row = dict(zip(default_table.KEYS, ("m", "k", "chat 0", 8, 1, 9, 0.7), strict=True))
            row |= {"task": "suite", "method": label, "label": label, "tokens_per_s": tokens}
            rows.append(row | {"turn": turn, "turns": 2})
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = default_table.compared(default_table.speeds([file]))["auto"]
    assert [cell[2] for cell in found] == ["chat 0, turn 1", "chat 0, turn 2"]
    said = default_table.report([file])
    assert "| auto, m, k, 8 of context, sampled | 2 |" in said
    assert "| auto, where nothing gains | 2 | 0.99 |" in said


def test_ratios_of_medians(records, capsys):
    check(records)
    default_table.main([str(records)])
    assert "- 0.90: auto, m, k, book" in capsys.readouterr().out


def test_means_in_place_of_medians_are_noticed(records, monkeypatch):
    """A planted fault: a slow repeat counts."""
    monkeypatch.setattr(
        default_table, "median", lambda values: sum(values[1:]) / max(len(values) - 1, 1)
    )
    with pytest.raises(AssertionError):
        check(records)


def test_records_without_defaults(tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(InputError, match=r"default\.sh"):
        default_table.main([str(tmp_path / "none.jsonl")])
