"""Records grouped as tables and plots show them: what was measured under different settings never
stands together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from longdraft.recording.decode_figures import completed, speedups

Record = dict[str, Any]
# Records that differ in one of these fields never share a table.
SETTING = (
    "model",
    "weights_sha256",
    "rope",
    "weights",
    "kv",
    "activations",
    "dtype",
    "device",
    "threads",
)
SETTING += (
    "text_name",
    "text_sha256",
    "question",
    "temperature",
    "top_k",
    "top_p",
    "penalty",
    "window",
    "native",
    "kernels",
    "environment",
    "git_sha",
    "warmup_rounds",
    "oracle",
)


def numbered(records: list[Record]) -> list[Record]:
    """Copies with the field `record`, which counts from 1, the rates of `completed` and today's
    names.
    """
    entries = [r | {"record": i} for i, r in enumerate(records, 1)]
    return completed([r | {"warmup_rounds": r["settle"]} if "settle" in r else r for r in entries])


def grouped(records: list[Record], *more: str, without: tuple[str, ...] = ()) -> list[list[Record]]:
    """Records grouped by setting but for `without`, and by the fields `more`, in order of first
    appearance.
    """
    groups: dict[tuple, list[Record]] = {}
    names = [name for name in (*SETTING, *more) if name not in without]
    for r in records:
        groups.setdefault(tuple(str(r.get(k)) for k in names), []).append(r)
    return list(groups.values())


def cells(records: list[Record]) -> Iterable[tuple[int, str, list[Record]]]:
    """(context, label, records) with ascending contexts and methods in order of first
    appearance.
    """
    labels = list(dict.fromkeys(r["label"] for r in records))
    for context in sorted({r["context"] for r in records}):
        for label in labels:
            same = [r for r in records if r["context"] == context and r["label"] == label]
            if same:
                yield context, label, same


def by_instance(records: list[Record]) -> dict[tuple, list[Record]]:
    """A suite's records of each turn of each instance, by run too, since they are compared within
    one.
    """
    groups: dict[tuple, list[Record]] = {}
    for r in records:
        groups.setdefault(
            tuple(r[name] for name in ("run", "kind", "instance", "context", "turn")), []
        ).append(r)
    return groups


def ratios(records: list[Record], everything: list[Record], name: str) -> list[float]:
    """A speedup (measure.SPEEDUPS) of each record over plain decoding's median in the same run and
    context.
    """
    plains: dict[tuple, list[Record]] = {}
    for p in everything:
        if p["method"] == "plain":
            plains.setdefault((p["run"], p["context"]), []).append(p)
    gains = (speedups(r, plains.get((r["run"], r["context"]), []))[name] for r in records)
    return [speedup for speedup in gains if speedup is not None]


def by_peer(record: Record) -> bool:
    """Whether another engine decoded it."""
    return "peer" in record or record["method"].startswith("hf-")


# what these are made of
STEP_PARTS = {
    "plain",
    "draft at 7%",
    "verify 8 rows, scores kept",
    "choose and copy 7%",
}


def step_parts(ms: dict[str, float]) -> dict[str, float]:
    """Milliseconds by label (task steps) -> the parts of a decoding step of vegas with 7 drafts."""
    return {
        "7 drafts": 7 * ms["draft at 7%"],
        "verifying 8 rows": ms["verify 8 rows, scores kept"],
        "choosing and copying keys": ms["choose and copy 7%"],
    }


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, least, most)."""
    return median(values), min(values), max(values)


def anchor(records: list[Record]) -> str:
    """The name of a group of records on the page: that of its first record."""
    return f"g{records[0]['record']}"
