"""A package that adds a method, from the files in docs/adding-a-method.md, installed into a
temporary folder.
"""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from longdraft.methods import elsewhere

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
FILES = {
    title: textwrap.dedent(text)
    for title, text in re.findall(r'^ *```\w+ title="(.*?)"\n(.*?)^ *```$', PAGE, re.M | re.S)
}
PACKAGE = ("pyproject.toml", "longdraft_bigram.py", "test_bigram.py")
PROJECT = tomllib.loads(FILES["pyproject.toml"])["project"]
ENTRIES = PROJECT["entry-points"]["longdraft.methods"]

Install = Callable[..., None]


def forget() -> None:
    elsewhere._entries.cache_clear()
    elsewhere._outcome.cache_clear()


@pytest.fixture
def forgotten():
    """What is installed is looked up anew in each test, and what was imported is gone after it."""
    before = set(sys.modules)
    forget()
    yield
    forget()
    for name in sys.modules.keys() - before:
        if name.startswith("longdraft_"):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch, forgotten) -> Install:
    """Installs a package of one module, as pip does: the module, and a folder with its name and its
    entry points.
    """
    site = tmp_path / "site"
    site.mkdir()

    def add(
        name: str = PROJECT["name"], code: str = FILES["longdraft_bigram.py"], **entries: str
    ) -> None:
        facts = site / f"{name.replace('-', '_')}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        named = "\n".join(f"{key} = {value}" for key, value in (entries or ENTRIES).items())
        (facts / "entry_points.txt").write_text(f"[longdraft.methods]\n{named}\n")
        (site / f"{name.replace('-', '_')}.py").write_text(code)
        monkeypatch.syspath_prepend(site)

    return add
