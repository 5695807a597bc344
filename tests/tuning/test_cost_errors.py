"""Records of `benchmarks/cost_errors.py`: passes that costs were not fitted to are predicted well
enough.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from longdraft.bench.records import read_records

RECORDS = sorted(
    (Path(__file__).parents[2] / "benchmarks" / "records").glob("*-cost-errors*.jsonl.gz")
)
# of costs by `longdraft tune`, for each model and build
MEDIAN = 0.10
NINE_OF_TEN = 0.20
FEWEST = 40  # passes of a model and build
# at least so short and so long a context, so few and so many rows
CONTEXTS = (1024, 32000)
ROWS = (1, 8)
KINDS = ("plain", "verify 32", "verify 8, scored", "draft 4 under 7%")

Record = dict[str, Any]


def errors(records: list[Record], costs: str) -> list[float]:
    """Of each pass, how far its prediction is off, relative to what was measured; ascending."""
    return sorted(abs(r["predicted"][costs] / r["seconds"] - 1) for r in records)


def check(records: list[Record]) -> None:
    """Each model and build: enough passes, of all kinds, predicted well enough."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for r in records:
        assert r["task"] == "costs" and r["seconds"] > 0
        groups[r["model"], r["kernels"]].append(r)
    assert groups
    for group, own in groups.items():
        assert len(own) >= FEWEST, group
        assert {r["kind"] for r in own} >= set(KINDS), group
        assert (
            min(r["context"] for r in own) <= CONTEXTS[0]
            and max(r["context"] for r in own) >= CONTEXTS[1]
        ), group
        assert {r["rows"] for r in own} >= set(ROWS), group
        # else the times are those of other processes
        assert sum(r["calm"] for r in own) > 0.9 * len(own), group
        off = errors(own, "tune")
        assert off[len(off) // 2] <= MEDIAN, (group, off[len(off) // 2])
        assert off[int(0.9 * len(off))] <= NINE_OF_TEN, (group, off[int(0.9 * len(off))])


@pytest.mark.skipif(not RECORDS, reason="no records of prediction errors are in this checkout")
def test_recorded_passes_were_predicted():
    check([r for file in RECORDS for _, r in read_records(file)])


def good() -> list[Record]:
    """Records as they should be."""
    shared = {"task": "costs", "model": "m", "kernels": "avx2", "calm": True, "seconds": 0.01}
    return [
        shared
        | {
            "kind": kind,
            "context": context,
            "rows": rows,
            "predicted": {"tune": 0.01 * (1 + 0.1 * (i % 3 - 1))},
        }
        for i in range(3)
        for kind in (*KINDS, "verify 2")
        for context in (1024, 32000)
        for rows in (1, 8)
    ]


def broken() -> dict[str, list[Record]]:
    """Records that the check must refuse."""
    return {
        "predictions that ignore the context": [
            r | {"predicted": {"tune": 0.01 * 1024 / r["context"]}} for r in good()
        ],
        "a third of the passes is far off": [
            r | {"predicted": {"tune": 0.014}} if i % 3 == 0 else r for i, r in enumerate(good())
        ],
        "all are a little off": [r | {"predicted": {"tune": 0.0115}} for r in good()],
        "one build of two is off": good()
        + [r | {"kernels": "x", "predicted": {"tune": 0.02}} for r in good()],
        "long contexts are left out": [r for r in good() + good() if r["context"] < 32000],
        "batches are left out": [r for r in good() + good() if r["rows"] == 1],
        "drafts are left out": [r for r in good() if "draft" not in r["kind"]],
        "few passes": good()[:10],
        "none": [],
        "a busy machine": [r | {"calm": i % 2 == 0} for i, r in enumerate(good())],
    }


def test_the_check_can_fail():
    check(good())
    for name, records in broken().items():
        with pytest.raises(AssertionError):
            check(records)
            pytest.fail(name)
