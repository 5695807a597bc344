"""Class names are unique in the package, and docstrings begin with the thing that they describe."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "longdraft"
INDIRECT = ("What", "Where", "Of", "As", "Those")


def shared_names(texts: dict[str, str]) -> dict[str, list[str]]:
    """The public classes that several of these files define -> the files."""
    files = defaultdict[str, list[str]](list)
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(name)
    return {name: found for name, found in files.items() if len(found) > 1}


def indirect(text: str) -> list[str]:
    """The first lines of docstrings that begin with a word such as What."""
    lines = list[str]()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if docstring and docstring.split()[0].strip(",.:") in INDIRECT:
            lines.append(docstring.splitlines()[0])
    return lines


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 400
    return {str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8") for file in files}


def test_a_class_name_means_one_class(texts):
    assert shared_names(texts) == {}


def test_docstrings_name_the_thing(texts):
    found = {name: lines for name, text in texts.items() if (lines := indirect(text))}
    assert found == {}


def test_a_second_class_with_a_name_is_caught():
    both = {"a.py": "class Part: pass", "b.py": "class Part: pass\nclass _Own: pass"}
    assert shared_names(both) == {"Part": ["a.py", "b.py"]}
    assert shared_names({**both, "b.py": "class Piece: pass"}) == {}


@pytest.mark.parametrize("line", ["What files say of a machine.", "Of several, the best.", "As f."])
def test_an_indirect_docstring_is_caught(line):
    assert indirect(f'def f():\n    """{line}"""') == [line]
    assert indirect('def f():\n    """Reads the machine\'s fingerprint."""') == []
