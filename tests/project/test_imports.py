"""Which module may import which (docs/diagram.py has the table of rooms), where gradients are off,
sizes of files.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import diagram
from diagram import DATA, FACADE, ROOMS, SRC, imports, modules, room

INSIDE = sorted(modules().keys() - {FACADE})
ORDER = list(ROOMS)
ABOVE_THE_LOOP = ORDER[ORDER.index("prompts") :]  # rooms that may turn gradients off


def imported_by(*rooms: str) -> list[tuple[str, str]]:
    """(module, module that it imports) for all modules of these rooms."""
    return [
        (module, other)
        for module in INSIDE
        if room(module) in rooms
        for other in sorted(imports(module))
    ]


def none(wrong: Iterable[tuple[str, str]]) -> None:
    assert not (lines := [f"{module} imports {other}" for module, other in wrong]), "\n".join(lines)


def test_every_room_has_its_place():
    there = {
        p.stem
        for p in SRC.iterdir()
        if (p.is_dir() and p.name != "__pycache__") or p.suffix == ".py"
    }
    assert there - {"__init__", "__main__"} == ROOMS.keys() | DATA
    assert not [f for name in DATA for f in (SRC / name).rglob("*.py")]


def test_imports_point_down():
    inside = ((m, other) for m, other in imported_by(*ROOMS) if other != FACADE)
    none((m, other) for m, other in inside if ORDER.index(room(other)) > ORDER.index(room(m)))


def test_no_module_imports_the_facade():
    none((m, other) for m, other in imported_by(*ROOMS) if other == FACADE)


def test_there_are_no_cycles():
    try:
        TopologicalSorter({m: imports(m) for m in INSIDE}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_operations_import_errors_alone():
    none((m, other) for m, other in imported_by("ops") if room(other) not in ("ops", "errors"))
    none(imported_by("errors", "version"))


def test_views_and_drafters_know_no_backend():
    none((m, other) for m, other in imported_by("views", "drafters") if room(other) == "backends")


def test_the_engine_knows_no_particular_drafter():
    # forced: of any method
    known = {
        "longdraft.drafters.base",
        "longdraft.drafters.forced",
        "longdraft.drafters.step",
    }
    none(
        (m, other)
        for m, other in imported_by("engine")
        if room(other) == "drafters" and other not in known
    )


def test_drafters_know_no_particular_view():
    """A drafter takes its policy as an argument; an objective may name the policy that it trains
    under.
    """
    found = (pair for pair in imported_by("drafters") if not pair[0].endswith(".objective"))
    none(
        (m, other)
        for m, other in found
        if room(other) == "views" and other != "longdraft.views.base"
    )


def test_gradients_are_turned_off_above_the_loop_alone():
    """Except in functions called `probe`, which run a pass on a copy."""
    for module in INSIDE:
        if room(module) not in ABOVE_THE_LOOP:
            text = modules()[module].read_text(encoding="utf-8")
            probes = [n for n in ast.walk(ast.parse(text)) if getattr(n, "name", "") == "probe"]
            assert text.count("inference_mode") == sum(
                ast.unparse(n).count("inference_mode") for n in probes
            ), module


def test_no_file_is_longer_than_400_lines():
    long = {
        name: len(file.read_text(encoding="utf-8").splitlines()) for name, file in modules().items()
    }
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_the_architecture_page_is_up_to_date():
    assert diagram.main(["--check"]) == 0, "run python docs/diagram.py"


# The reader of imports itself ---------------------------------------------------------------------

EVERY_KIND = """
import longdraft
import longdraft.core.tree
from longdraft import ops, Sampler
from longdraft.core import cache
from longdraft.core.verify import match
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from longdraft.models.lm import LM
def f(name):
    from longdraft.views import base
    return import_module(f"longdraft.{name}")
TABLE = {"a": "longdraft.cli.audit", "b": "methods.spec:Spec"}
"""


def test_every_kind_of_import_is_seen(monkeypatch, tmp_path):
    file = tmp_path / "every.py"
    file.write_text(EVERY_KIND)
    monkeypatch.setitem(modules(), "longdraft.every", file)
    seen = {name.removeprefix("longdraft.") for name in imports("longdraft.every")}
    assert seen == {
        FACADE,
        "ops",
        *(f"core.{n}" for n in ("tree", "cache", "verify")),
        "models.lm",
        "views.base",
    } | {
        "cli.audit",
        "methods.spec",
    }
