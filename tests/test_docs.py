"""Documents that can fail: what they name exists, and their code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longdraft.cli import COMMANDS, main
from longdraft.methods import CONTROLS, METHODS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {p.name: p.read_text(encoding="utf-8") for p in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}


def test_the_readme_names_every_method():
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", README, re.M) == list(METHODS)
    assert all(f"`{name}`" in README for name in CONTROLS)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_explained(name):
    headings = re.findall(r"^## (.*)$", PAGES["methods.md"], re.M)
    assert name in {n for heading in headings for n in heading.split(", ")}, f"docs/methods.md has no section {name}"


def test_the_readme_program_runs(monkeypatch, capsys):
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code
    monkeypatch.chdir(ROOT)
    exec(compile(code[1], "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_readme_commands_are_known(capsys):
    lines = re.findall(r"^longdraft (.*?)(?:  +#.*)?$", README, re.M)
    assert len(lines) >= 3
    for line in lines:
        name, *words = line.split()
        assert name in COMMANDS
        assert main([name, *(words[:1] if name == "train" else []), "--help"]) == 0
        known = capsys.readouterr().out
        assert [w for w in words if w.startswith("-") and w not in known] == []


def test_the_readme_tree_is_there():
    tree = re.search(r"## The tree of files\n\n```\n(.*?)```", README, re.S)
    assert tree
    at = ROOT
    for line in tree[1].splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            at = ROOT
        place = at / name
        assert place.exists(), name
        if name == "src/longdraft/":
            at = place


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = ROOT if (ROOT / page).exists() else ROOT / "docs"
    links = re.findall(r"\]\(([^)#]+)", PAGES[page])
    assert [x for x in links if "://" not in x and not (folder / x).exists()] == []


def test_files_that_the_pages_name_exist():
    named = {m for text in PAGES.values() for m in re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+)`", text)}
    assert named
    assert [n for n in named if not (ROOT / n).exists()] == []


def test_every_test_file_is_in_the_table_of_guarantees():
    table = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(test_\w+\.py)`", table)) == {p.name for p in (ROOT / "tests").glob("test_*.py")}
