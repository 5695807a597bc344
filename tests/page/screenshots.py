"""Takes the pictures of the page in docs/images, from the recorded runs.

PYTHONPATH=src .venv-page/bin/python tests/page/screenshots.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import chromium
from fake import recorded, serving
from seen import settle, until

RUN = recorded("novel")
NOVEL = (Path(__file__).parents[2] / "src/longdraft/assets/text/great-expectations.txt").read_text(
    encoding="utf-8"
)
IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDE = {"width": 1280, "height": 880}
NARROW = {"width": 360, "height": 780}


def started(page: Any, rounds: int) -> None:
    page.click("#run")
    until(page, f"document.querySelectorAll('.lane .round:not([hidden])').length >= {rounds}")


def streaming(page: Any) -> None:
    page.fill(
        "#document", NOVEL[: NOVEL.index(RUN["prompt"].removeprefix("… ")) + len(RUN["prompt"]) - 2]
    )
    page.fill("#prompt", "")
    page.fill("#temperature", str(RUN["sampler"]["temperature"]))
    page.fill("#max_tokens", str(RUN["slots"] - RUN["prompt_tokens"]))
    started(page, 56)


def stopped(page: Any) -> None:
    page.click("#run")
    page.wait_for_selector("#notice:not([hidden])")


def pinned(page: Any) -> None:
    page.click("#run")
    page.wait_for_selector("#verdict.yes")
    page.locator(".lane").nth(1).locator(".round").nth(36).locator(".t").first.click()


def narrow(page: Any) -> None:
    pinned(page)
    page.evaluate("document.querySelectorAll('.lane')[1].scrollIntoView()")
    page.evaluate("window.scrollBy(0, -12)")


BUNDLED = {"model": "bundled", "context": 131072, "default": "vegas-tree"}
PICTURES = {
    "first": (WIDE, "light", {}, lambda page: None),
    "streaming": (WIDE, "light", {"trace": RUN, "pause_after": 56, "about": BUNDLED}, streaming),
    "dark": (WIDE, "dark", {}, pinned),
    "stopped": (WIDE, "light", {"stop_after": 56}, stopped),
    "narrow": (NARROW, "light", {}, narrow),
}


def main() -> None:
    with chromium() as browser:
        for name, (size, scheme, options, act) in PICTURES.items():
            with serving(**options) as fake:
                context = browser.new_context(
                    viewport=size, color_scheme=scheme, reduced_motion="no-preference"
                )
                page = context.new_page()
                page.goto(fake.url)
                page.wait_for_selector("#method:enabled")
                act(page)
                page.mouse.move(2, 2)
                settle(page)
                settle(page)
                page.screenshot(path=IMAGES / f"page-{name}.png")
                context.close()


if __name__ == "__main__":
    main()
