"""Tests lie in the folder of the room that they test, helpers in support/, and folders import from
support alone.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOMS = {p.name for p in (TESTS.parent / "src" / "longdraft").iterdir() if p.is_dir()}
# documents and packaging, the plugin, and the page in a browser
OTHER = {
    "project",
    "vllm",
    "page",
}
# what pytest and the Makefile run
ENTRY_POINTS = {
    "conftest.py",
    "changed.py",
    "harder.py",
    "oldest.py",
    "run.py",
}


IMPORTS_TEST = re.compile(r"^\s*(from|import)\b.*\btest_", re.MULTILINE)


def misplaced(tests: Path) -> list[str]:
    """Each file that lies elsewhere than the layout has it, and each import of another folder's
    test.
    """
    faults = [p.name for p in tests.glob("*.py") if p.name not in ENTRY_POINTS]
    folder_of = {p.stem: p.parent.name for p in tests.glob("*/test_*.py")}
    for path in sorted(tests.glob("*/*.py")):
        room = path.parent.name
        if path.stem in folder_of and room not in ROOMS | OTHER:
            faults.append(f"{room}/{path.name}: no such room")
        if path.stem not in folder_of and room in ROOMS:
            faults.append(f"{room}/{path.name}: a helper outside support")
        text = path.read_text(encoding="utf-8")
        if not IMPORTS_TEST.search(text):
            continue  # most files: not parsed
        for node in ast.walk(ast.parse(text)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            faults += [
                f"{room}/{path.name} imports {n}" for n in names if folder_of.get(n, room) != room
            ]
    return faults


def test_every_file_is_where_a_reader_looks_for_it():
    assert misplaced(TESTS) == []


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("test_lost.py", "", "test_lost.py"),
        ("attic/test_lost.py", "", "attic/test_lost.py: no such room"),
        ("core/tools.py", "", "core/tools.py: a helper outside support"),
        ("core/test_a.py", "from test_b import x", "core/test_a.py imports test_b"),
        ("support/tools.py", "import test_b", "support/tools.py imports test_b"),
    ],
)
def test_what_lies_elsewhere_is_caught(file, text, fault, tmp_path):
    for path, content in (("views/test_b.py", "x = 1"), (file, text)):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    assert misplaced(tmp_path) == [fault]
