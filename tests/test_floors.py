"""Who may import whom (the table of floors in the design), where gradients are off, and how long a file may be."""

from __future__ import annotations

import ast
from pathlib import Path

import longdraft

SRC = Path(longdraft.__file__).parent
FLOORS = [
    {"errors", "files", "memory", "ops", "options", "threads"},
    {"tree", "cache", "processors", "rules", "sampling"},
    {"model", "decoder", "fast", "stock", "graphs", "wide", "verify", "sequences", "rounds", "loading", "untrusted"},
    {"views", "drafters"},
    {"engine"},
    {"methods", "small_models", "parts", "saved", "importers", "train", "runs", "session", "continuous", "controls"},
    {"bench", "serve", "integrations"},
    {"cli", "__init__", "__main__"},
]
FLOOR = {name: i for i, names in enumerate(FLOORS) for name in names}
FILES = sorted(SRC.rglob("*.py"))


def part_of(file: Path) -> str:
    return file.relative_to(SRC).with_suffix("").parts[0]


def floor(part: str) -> int:
    assert part in FLOOR, f"{part} has no floor: give it one in FLOORS"
    return FLOOR[part]


def imported(file: Path) -> set[str]:
    """Modules of longdraft that a file imports, those for type checkers alone left out: {'ops', 'drafters.base'}."""
    tree = ast.parse(file.read_text())
    hints = [n for i in ast.walk(tree) if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.unparse(i) for n in i.body]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in hints:
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node not in hints:
            assert node.level == 0, f"{file.name}: relative import"
            whole = node.module == "longdraft"
            found |= {f"longdraft.{a.name}" for a in node.names} if whole else {node.module or ""}
    return {name.removeprefix("longdraft.") for name in found if name.startswith("longdraft.")}


def test_imports_go_down():
    for file in FILES:
        for name in imported(file):
            here, there = part_of(file), name.split(".")[0]
            there = there if (SRC / f"{there}.py").exists() or (SRC / there).is_dir() else "__init__"  # a public name
            assert floor(there) <= floor(here), f"{file.relative_to(SRC)} imports {name}, which is above it"
            assert (here, there) != ("views", "drafters"), f"{file.name} imports a drafter"
            assert here != "drafters" or there != "views" or name == "views.base", f"{file.name} names a policy"
            assert here != "engine" or there != "drafters" or name == "drafters.base", "engine knows a drafter by name"


def test_gradients_are_turned_off_in_the_engine_alone():
    for file in FILES:
        if floor(part_of(file)) <= 4 and file.name != "engine.py":
            probes = [n for n in ast.walk(ast.parse(file.read_text())) if getattr(n, "name", "") == "probe"]
            inside = sum(ast.unparse(n).count("inference_mode") for n in probes)
            assert file.read_text().count("inference_mode") == inside, file.name


def test_no_file_is_longer_than_300_lines():
    assert [f.name for f in FILES if len(f.read_text().splitlines()) > 300] == []
