"""Plots made from records alone. Only those are drawn for which there are records."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from longdraft.bench.grouping import Record, grouped
from longdraft.bench.plots import acceptance, speed, time
from longdraft.bench.plots.svg import settings, svg
from longdraft.bench.report import Section

MISSING = "no plots: they need matplotlib, which pip install 'longdraft[plots]' adds"


class Plot(NamedTuple):
    """name: part of a file name; svg: the text of that file."""

    name: str
    title: str
    svg: str


OF_TASK: dict[str, dict[str, Callable[[list[Record]], Any]]] = {
    "speed": {
        "speedup": speed.speedup,
        "peers": speed.beside_peers,
        "positions": acceptance.by_position,
        "time": time.per_token,
    },
    "suite": {},
    "steps": {"step": time.of_a_step},
    "anchored": {"positions": acceptance.by_position},
}
NAMES = ("budget", *dict.fromkeys(name for of_task in OF_TASK.values() for name in of_task))


def available() -> bool:
    return find_spec("matplotlib") is not None


def plots(report: list[Section]) -> list[list[Plot]]:
    """The plots of each table. A plot over budgets is of all runs in one setting, beside the first
    of their tables.
    """
    anchored = [r for s in report for r in s.records if r["task"] == "anchored"]
    pooled = {group[0]["record"]: group for group in grouped(anchored)}
    made = []
    with settings():
        for s in report:
            drawn = [
                (name, draw(s.records)) for name, draw in OF_TASK[s.records[0]["task"]].items()
            ]
            drawn += [
                ("budget", acceptance.by_budget(pooled[r["record"]]))
                for r in s.records
                if r["record"] in pooled
            ]
            made.append(
                [Plot(name, f.get_suptitle(), svg(f)) for name, f in drawn if f is not None]
            )
    return made
