"""The table in the README of the plugin for vLLM is made from its records."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "longdraft-vllm" / "benchmarks"))
import compare  # noqa: E402


def records() -> list[dict]:
    return compare.read(sorted(ROOT.glob("benchmarks/records/*-vllm.jsonl.gz")))


def test_the_readme_has_the_table_of_the_records():
    page = (ROOT / "longdraft-vllm" / "README.md").read_text(encoding="utf-8")
    found = records()
    assert compare.table(found) in page
    found[-1]["tokens_per_s"] = [2 * rate for rate in found[-1]["tokens_per_s"]]
    assert compare.table(found) not in page


def test_records_say_where_they_come_from():
    for record in records():
        assert record["git_sha"] and record["git_dirty"] is False
        assert record["vllm"] and record["torch"] and record["cpu"] and record["threads"]


def test_a_difference_is_reported_with_its_margin():
    plain = {"outputs": [[1, 2, 3], [4, 5, 6]], "margins": [[1.0, 0.5, 0.25], [1.0, 0.03, 0.1]]}
    assert compare.agreement(plain, {"outputs": [[1, 2, 3], [4, 5, 6]]}) == "2 of 2"
    assert (
        compare.agreement(plain, {"outputs": [[1, 2, 3], [4, 7, 7]]}) == "1 of 2 (ties within 0.03)"
    )
