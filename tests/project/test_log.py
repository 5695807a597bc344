"""The log: a page for each month, entries on the page of their month, newest first, and an index of
all months.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "log"
PAGES = {p.stem: p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("*.md"))}
RULE = "**A new entry** goes to the top of its month's page, `YYYY-MM.md` in `docs/log`."


def faults(pages: dict[str, str]) -> list[str]:
    """pages: by name without .md, `index` among them."""
    index = pages["index"]
    months = [name for name in pages if name != "index"]
    found = [] if RULE in index else ["the index does not say where a new entry goes"]
    if (listed := re.findall(r"^\| \[[^]]*\]\((\d{4}-\d\d)\.md\)", index, re.M)) != sorted(
        months, reverse=True
    ):
        found.append(f"the index lists {listed}")
    for month in months:
        days = re.findall(r"^## (\d{4}-\d\d-\d\d): ", pages[month], re.M)
        headings = re.findall(r"^## (.*)$", pages[month], re.M)
        if len(days) != len(headings):
            found.append(f"{month}.md has a heading without a date")
        found += [f"{month}.md has an entry of {day}" for day in days if not day.startswith(month)]
        if days != sorted(days, reverse=True):
            found.append(f"{month}.md is not newest first")
    return found


def test_the_log_is_by_month():
    assert faults(PAGES) == []
    assert not (FOLDER.parent / "log.md").exists()


MONTH = "2026-11"
MONTHS = sorted(PAGES.keys() - {"index"}, reverse=True)
FIRST = PAGES[MONTH].index("\n## ") + 1


@pytest.mark.parametrize(
    ("page", "text", "says"),
    [
        (MONTH, f"{PAGES[MONTH]}\n## 2026-10-30: early\n", "2026-11.md has an entry of 2026-10-30"),
        (MONTH, f"{PAGES[MONTH]}\n## 2026-11-30: below\n", "2026-11.md is not newest first"),
        (
            MONTH,
            f"{PAGES[MONTH][:FIRST]}## Today\n\n{PAGES[MONTH][FIRST:]}",
            "2026-11.md has a heading without a date",
        ),
        ("2099-12", "# Log: December 2099\n", f"the index lists {MONTHS}"),
        (
            "index",
            PAGES["index"].replace(RULE, ""),
            "the index does not say where a new entry goes",
        ),
    ],
)
def test_an_entry_or_a_page_out_of_place_is_seen(page, text, says):
    assert faults(PAGES | {page: text}) == [says]
