"""README.md stays short: three minutes aloud, one small table of speed, at most two figures in a
sentence.

docs/performance.md has its figures in tables, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longdraft.methods import CONTROLS, METHODS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
# read aloud, without code and tables
WORDS_PER_MINUTE = 160
MINUTES = 3
# of the table of speed
ROWS = 6
COLUMNS = 5
FIGURES = 2  # in a sentence
# neither SmolLM2 nor T=1
FIGURE = re.compile(r"(?<![\w.=-])\d[\d.,]*(?:x|%|K|M|B|ms|MB|GB)?(?!\w)")


def prose(page: str) -> str:
    """A page without code, comments, tables, images and the targets of links."""
    for pattern in (r"```.*?^```", r"<!--.*?-->", r"^\|.*?$", r"!\[[^]]*\]\([^)]*\)"):
        page = re.sub(pattern, "", page, flags=re.M | re.S)
    return re.sub(r"\]\([^)]*\)", "]", page)


def sentences(page: str) -> list[str]:
    """Of each paragraph, heading and point of a list."""
    parts = re.split(r"\n\s*\n|\n(?=- |#)", prose(page))
    return [s for part in parts for s in re.split(r"(?<=[.?!])\**\s+", part.strip()) if s]


def crowded(page: str) -> list[str]:
    """Sentences with too many figures; dates and code do not count."""
    plain = re.sub(r"`[^`\n]*`|\b\d{4}-\d\d-\d\d\b|\bZen \d", "", prose(page))
    return [s for s in sentences(plain) if len(FIGURE.findall(s)) > FIGURES]


def tables(page: str) -> list[list[list[str]]]:
    """The cells of each table, by row, without the line below its head."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", page, re.M)
    cells = [
        [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()] for block in blocks
    ]
    return [[head, *rows] for head, _, *rows in cells]


def speed(page: str) -> str:
    return page.split("\n## Speed\n")[1].split("\n## ")[0]


def faults(page: str) -> list[str]:
    """What is too long or too much."""
    found = []
    words = len(re.findall(r"\w[\w'’.+-]*", prose(page)))
    most = WORDS_PER_MINUTE * MINUTES
    if words > most:
        found.append(f"{words} words take more than {MINUTES} minutes: at most {most}")
    shown = tables(speed(page))
    if len(shown) != 1:
        found.append(f"{len(shown)} tables of speed")
    for head, *rows in shown:
        if len(rows) > ROWS or len(head) > COLUMNS or {len(row) for row in rows} != {len(head)}:
            found.append(f"a table of speed with {len(rows)} rows and {len(head)} columns")
    found += [f"more than {FIGURES} figures: {s}" for s in crowded(page)]
    named = {
        name
        for row in tables(page.split("\n## Methods\n")[1])[0]
        for name in re.findall(r"`([^`]+)`", row[1])
    }
    unknown = sorted(named - {*METHODS, *CONTROLS})
    return found + [f"no such method: {name}" for name in unknown]


def test_the_readme_is_short():
    assert faults(README) == []


LINE = next(line for line in speed(README).splitlines() if line.startswith("| SmolLM2"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "## Where next\n",
            "## Where next\n\n" + "One more sentence that nobody reads. " * 20,
            "take more than 3 minutes",
        ),
        (LINE, f"{LINE}\n{LINE}", "7 rows and 5 columns"),
        (r"(?m)^(\|.*\|)$", r"\1 |", "6 rows and 6 columns"),
        ("## When not", "| a | b |\n| --- | --- |\n| c | d |\n\n## When not", "2 tables of speed"),
        (
            "## Two commands\n",
            "## Two commands\n\nIt takes 3 s, 4.5 s and 1,024 MB.\n",
            "more than 2 figures: It takes",
        ),
        (
            "- Only safetensors",
            "- It is 1.2x, 1.3x, 0.9x.\n- Only safetensors",
            "more than 2 figures: - It is",
        ),
        ("`suffix`, `lookup`", "`sufix`, `lookup`", "no such method: sufix"),
    ],
)
def test_a_readme_that_grows_is_seen(old, new, says):
    part = speed(README)
    if old.startswith("(?m)"):
        changed = README.replace(part, re.sub(old, new, part))
    else:
        assert README.count(old) == 1
        changed = README.replace(old, new)
    found = faults(changed)
    assert len(found) == 1 and says in found[0]


def test_the_page_on_performance_has_its_figures_in_tables():
    assert crowded(PERFORMANCE) == []
    added = "A step takes 3 ms, 4.5 ms and 1.2x."
    assert crowded(f"{PERFORMANCE}\n{added}\n") == [added]


def test_names_and_versions_are_no_figures():
    assert FIGURE.findall(
        "SmolLM2-135M runs under Apache-2.0 with Qwen2.5 and AVX-512, 1,024 tokens at 1.5x."
    ) == [
        "1,024",
        "1.5x",
    ]
