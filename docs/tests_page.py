"""Writes the table of tests/README.md: one row per test file, with the first paragraph of its docstring.

python docs/tests_page.py
python docs/tests_page.py --check     # is the table up to date?
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from measured import ROOT, filled, one_line, table, write_or_check

TESTS = ROOT / "tests"
PAGE = TESTS / "README.md"


def summary(path: Path) -> str:
    """The first paragraph of a test file's docstring, as a cell of a table."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{path.name} has no docstring")
    return one_line(docstring.split("\n\n")[0]).replace("|", "\\|")


def rows(tests: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(tests.glob("*/test_*.py")):
        yield f"`{path.parent.name}/{path.name}`", summary(path)


def page(text: str, tests: Path) -> str:
    """The text of the page with the table of these tests."""
    return filled(
        text, "tests", table(("file", "what it tests"), rows(tests)).replace("---:", "---")
    )


def main(arguments: list[str]) -> int:
    return write_or_check(
        {PAGE: page(PAGE.read_text(encoding="utf-8"), TESTS)},
        arguments,
        "the docstrings of the tests say",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
