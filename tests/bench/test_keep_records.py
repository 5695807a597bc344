"""Records that the repository keeps: without outputs, with six digits, and equal for equal runs."""

from __future__ import annotations

import gzip
import json

import keep_records
import pytest

RECORD = {
    "task": "speed",
    "text": "said",
    "token_ids": [1, 2],
    "decode_s": 0.12345678,
    "new_tokens": 12345678,
    "options": {"share": [1 / 3, None, "1.23456789"]},
}


@pytest.mark.parametrize("outputs", [False, True])
def test_what_is_kept(tmp_path, outputs):
    run = tmp_path / "run.jsonl"
    run.write_text(f"{json.dumps(RECORD)}\n")
    files = [tmp_path / f"{i}.jsonl.gz" for i in range(2)]
    for file in files:
        keep_records.main([str(run), str(file)] + ["--with-outputs"] * outputs)
    assert files[0].read_bytes() == files[1].read_bytes()
    [found] = map(json.loads, gzip.decompress(files[0].read_bytes()).splitlines())
    rest = {"decode_s": 0.123457, "options": {"share": [0.333333, None, "1.23456789"]}}
    whole = RECORD | rest
    assert found == {k: v for k, v in whole.items() if outputs or k not in ("text", "token_ids")}


def test_a_number_that_is_cut_too_short_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(keep_records, "DIGITS", 5)
    with pytest.raises(AssertionError):
        test_what_is_kept(tmp_path, False)
