"""A headless Chromium, and pages that must end without an error or a request to anywhere but their
own server.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake import Fake, serving

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
BROKEN = (
    "net::ERR_"  # what the browser itself prints when a server stops in the middle of an answer
)


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's browser; no other is ever downloaded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        made = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield made
        made.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    pytest.importorskip(
        "playwright", reason="the page's tests need Playwright: make test-page installs it"
    )
    if not Path(CHROMIUM).exists():
        pytest.skip(
            "the page's tests need Chromium: apt install chromium, or set CHROMIUM to its path"
        )
    with chromium() as made:
        yield made


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """visit(url, status=(), **options): a new page at url; status: of answers that the server may
    refuse with.
    """
    contexts = []
    wrong = []
    urls = []

    def printed(message: Any, allowed: tuple[str, ...]) -> None:
        if message.type in ("error", "warning") and not any(
            x in message.text for x in (BROKEN, *allowed)
        ):
            wrong.append(message.text)

    def open_page(url: str, status: tuple[int, ...] = (), **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        allowed = tuple(f"status of {x}" for x in status)
        page.on("console", lambda message: printed(message, allowed))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: urls.append((url, request.url)))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
    elsewhere = [to for own, to in urls if not to.startswith((own, "data:", f"blob:{own}"))]
    assert elsewhere == []


@pytest.fixture
def server() -> Iterator[Callable[..., Fake]]:
    """server(**options): a fake server that runs until the test ends."""
    running = []

    def start(**options: Any) -> Fake:
        running.append(serving(**options))
        return running[-1].__enter__()

    yield start
    for made in running:
        made.__exit__(None, None, None)
