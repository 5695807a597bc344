"""The documentation's site (`make docs`): no page is wider than a phone or a desktop; colors follow
the system.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(os.environ.get("SITE") or Path(__file__).resolve().parents[2] / "site")
WIDE = '<div class="md-typeset"><pre style="width:2000px;overflow:visible">one line</pre></div>'
SIZES = {"phone": (390, 844), "desktop": (1440, 900)}


def wider(page: Any, paths: list[Path]) -> dict[str, list[int]]:
    """{name: [its width, the window's]} of each page that scrolls sideways as a whole."""
    found = {}
    for path in paths:
        page.goto(path.as_uri())
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        if widths[0] > widths[1]:
            found[path.name] = widths
    return found


@pytest.fixture(params=sorted(SIZES))
def page(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    width, height = SIZES[request.param]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark")
    context.route("http*://**", lambda route: route.abort())  # the diagram's script
    yield context.new_page()
    context.close()


@pytest.mark.skipif(not SITE.is_dir(), reason="no site/: make docs builds it")
def test_no_page_of_the_site_scrolls_sideways(page):
    paths = sorted(SITE.rglob("*.html"))
    assert len(paths) > 20 and wider(page, paths) == {}
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"


def test_a_page_that_scrolls_sideways_is_caught(page, tmp_path):
    for name, text in (("good", "<pre style='overflow:auto'>" + "x" * 3000), ("wide", WIDE)):
        (tmp_path / f"{name}.html").write_text(
            f"<!doctype html><meta name=viewport content=width=device-width>{text}"
        )
    assert list(wider(page, sorted(tmp_path.glob("*.html")))) == ["wide.html"]
