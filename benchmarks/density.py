"""How dense Python code is: characters per line, and how much is decided on one line.

    python benchmarks/density.py src/longdraft

One row of a Markdown table for each folder. Lines of code are those that have a token beside
comments and docstrings. Comprehensions include generator expressions. Assignments of several
targets are `a, b = x, y` and `a = b = x`, but not the unpacking of one value.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from arguments import Arguments, status

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
LONG = 100  # characters
HEAD = (
    "| folder | lines / files | mean characters | lines over 100 | nested conditionals "
    "| conditionals per 1,000 | comprehensions per 1,000 | several targets per 1,000 |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def assigns_several(node: ast.AST) -> bool:
    """Whether this is one statement for several assignments, none of which takes a value apart."""
    if not isinstance(node, ast.Assign):
        return False
    pairs = isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    return pairs or len(node.targets) > 1


def is_nested(node: ast.AST) -> bool:
    """Whether this is a conditional expression that contains another one."""
    if not isinstance(node, ast.IfExp):
        return False
    parts = (node.test, node.body, node.orelse)
    return any(isinstance(inner, ast.IfExp) for part in parts for inner in ast.walk(part))


def docstrings(tree: ast.AST) -> set[int]:
    """The numbers of lines that docstrings take."""
    lines = set[int]()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def code_lines(text: str, tree: ast.AST) -> Iterator[str]:
    """The lines that have code."""
    words = tokenize.generate_tokens(io.StringIO(text).readline)
    numbers = {
        line
        for word in words
        if word.type not in SILENT
        for line in range(word.start[0], word.end[0] + 1)
    }
    lines = text.splitlines()
    for number in sorted(numbers - docstrings(tree)):
        yield lines[number - 1]


def measure(folder: Path) -> Counter[str]:
    """Counts over all Python files of a folder."""
    counts = Counter[str]()
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        counts["files"] += 1
        counts["lines"] += len(text.splitlines())
        counts["long"] += sum(len(line) > LONG for line in text.splitlines())
        for line in code_lines(text, tree):
            counts["code"] += 1
            counts["characters"] += len(line)
        for node in ast.walk(tree):
            counts["conditionals"] += isinstance(node, ast.IfExp)
            counts["nested"] += is_nested(node)
            counts["comprehensions"] += isinstance(node, COMPREHENSIONS)
            counts["several"] += assigns_several(node)
    return counts


def row(folder: Path) -> str:
    """The folder's row of the table."""
    counts = measure(folder)
    lines = max(counts["lines"], 1)

    def rate(name: str) -> str:
        return f"{1000 * counts[name] / lines:.1f}"

    cells = [
        str(folder),
        f"{counts['lines']:,} / {counts['files']:,}",
        f"{counts['characters'] / max(counts['code'], 1):.0f}",
        f"{counts['long'] / lines:.1%}",
        str(counts["nested"]),
        rate("conditionals"),
        rate("comprehensions"),
        rate("several"),
    ]
    return f"| {' | '.join(cells)} |"


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of Python files")
    return parser


def main(words: list[str] | None = None) -> None:
    rows = [row(folder) for folder in options().parse(words).folders]
    print("\n".join([HEAD, *rows]))


if __name__ == "__main__":
    sys.exit(status(main))
