"""The package is not dense: one assignment to a field per statement, no nested conditionals."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from density import assigns_several, is_nested, row

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("src", "longdraft-drafters/src", "longdraft-vllm/src")


def assigns_fields(node: ast.AST) -> bool:
    """Whether one statement assigns to several places and one of them is a field."""
    if not (isinstance(node, ast.Assign) and assigns_several(node)):
        return False
    places = [place for target in node.targets for place in getattr(target, "elts", [target])]
    return any(isinstance(place, ast.Attribute) for place in places)


def dense(text: str) -> list[str]:
    """Each statement or expression of this code that has to be taken apart."""
    nodes = ast.walk(ast.parse(text))
    return [ast.unparse(node) for node in nodes if assigns_fields(node) or is_nested(node)]


def test_one_statement_for_each_decision():
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 400
    found = {file: dense(file.read_text(encoding="utf-8")) for file in files}
    lines = [f"{file.relative_to(ROOT)}: {code}" for file, codes in found.items() for code in codes]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    "code",
    [
        "self.a, self.b = 1, 2",
        "self.a, b = f(), g()",
        "self.a = self.b = 0",
        "x = 1 if a else 2 if b else 3",
        "x = f(1 if a else 2) if b else 3",
    ],
)
def test_dense_code_is_caught(code):
    assert dense(code)


@pytest.mark.parametrize("code", ["a, b = f()", "self.a, self.b = f()", "x = 1 if a else 2"])
def test_plain_code_passes(code):
    assert not dense(code)


def test_the_table_counts_what_it_names(tmp_path):
    (tmp_path / "one.py").write_text('"""Text."""\na, b = 1, 2\nc = 3 if a else 4\n')
    assert row(tmp_path) == f"| {tmp_path} | 3 / 1 | 14 | 0.0% | 0 | 333.3 | 0.0 | 333.3 |"
