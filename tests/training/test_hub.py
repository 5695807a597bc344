"""hf: names as sources of text: what the `datasets` library streams, without it (a stand-in) and
with it.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from longdraft import InputError
from longdraft.training import data, hub


def stand_in(monkeypatch, rows: list[dict]) -> list:
    """A `datasets` module that holds these rows; -> what it is asked for, and every row that is
    taken.
    """
    asked: list = []

    def load_dataset(where, config, split, streaming):
        asked.append((where, config, split, streaming))
        for row in rows:
            asked.append(row)
            yield row

    made = SimpleNamespace(load_dataset=load_dataset, disable_progress_bars=lambda: None)
    monkeypatch.setitem(sys.modules, "datasets", made)
    return asked


def test_rows_are_streamed_until_there_is_enough(monkeypatch):
    rows = [{"text": "x" * 10, "id": i} for i in range(100)]
    asked = stand_in(monkeypatch, rows)
    assert list(hub.documents("hf:org/name", 25)) == [("book", "x" * 10)] * 3
    assert asked == [("org/name", None, "train", True), *rows[:3]]


def test_config_and_split_are_passed_on(monkeypatch):
    asked = stand_in(monkeypatch, [{"content": "y"}])
    assert list(hub.documents("hf:org/name:small:validation", 9)) == [("code", "y")]
    assert asked[0] == ("org/name", "small", "validation", True)


def test_what_cannot_be_read_is_said(monkeypatch):
    stand_in(monkeypatch, [{"words": "y", "id": 3}])
    with pytest.raises(InputError, match="columns words, id"):
        list(hub.documents("hf:org/name", 9))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"longdraft\[datasets\]"):
        list(hub.documents("hf:org/name", 9))


def test_the_library_itself(tmp_path):
    pytest.importorskip("datasets")
    lines = [json.dumps({"text": f"line {i} of the text"}) for i in range(50)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    found = data.collect(data.Sources([f"hf:{tmp_path}"], environment=False, dataset_cap=100))
    assert sorted(d.text for d in found) == [f"line {i} of the text" for i in range(6)]
    assert {d.kind for d in found} == {"book"} and len({d.group for d in found}) == 6
    with pytest.raises(InputError, match="cannot read hf:/nowhere"):
        data.collect(data.Sources(["hf:/nowhere"], environment=False))
