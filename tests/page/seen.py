"""What a page shows, read from its elements, and what it should show for a trace."""

from __future__ import annotations

import time
from typing import Any

CHIPS = """i => [...document.querySelectorAll(`.lane:nth-child(${i + 1}) .round:not([hidden]) .t:not(.no)`)]
  .map(x => [x.textContent, [...x.classList].find(c => /^(d\\d|own)$/.test(c))])"""
FIGURES = """i => Object.fromEntries([...document.querySelectorAll(`.lane:nth-child(${i + 1}) .figures div`)]
  .map(x => [x.querySelector('dt').textContent, x.querySelector('dd').textContent]))"""
STYLES = {"model": "d0", "n-grams": "d1", "heads": "d2", "small model": "d3", "block": "d4"}


def chips(page: Any, lane: int) -> list[list[str]]:
    """[text, style] of each token of a lane that is visible."""
    return page.evaluate(CHIPS, lane)


def figures(page: Any, lane: int) -> dict[str, str]:
    return page.evaluate(FIGURES, lane)


def visible(text: str) -> str:
    return text.replace("\n", "↵").replace("\t", "⇥") or "·"


def expected_chips(trace: dict, lane: int, until: float = float("inf")) -> list[list[str]]:
    found = []
    for r in trace["lanes"][lane]["rounds"]:
        if r["at_s"] <= until:
            by = [STYLES[r["nodes"][n]["by"]] for n in r["path"]]
            found += [
                [visible(t), by[i] if i < r["accepted"] else "own"]
                for i, t in enumerate(r["texts"])
            ]
    return found


def expected_figures(trace: dict, lane: int) -> dict[str, str]:
    """Of a whole run with two lanes."""
    rounds = trace["lanes"][lane]["rounds"]
    tokens = sum(len(r["tokens"]) for r in rounds)
    s = rounds[-1]["at_s"]
    found = {"tokens": str(tokens), "seconds": f"{s:.2f}", "tokens/s": f"{tokens / s:.1f}"}
    if lane:
        drafts = [r for r in rounds if r["nodes"]]
        plain = trace["lanes"][0]["rounds"][-1]["at_s"]
        mean = 1 + sum(r["accepted"] for r in drafts) / len(drafts)
        found |= {"mean acceptance length": f"{mean:.2f}", "speedup": f"{plain / s:.2f}×"}
    return found


def run(page: Any) -> None:
    """Press Run and wait for the end."""
    page.click("#run")
    page.wait_for_selector("#verdict:not([hidden])")
    settle(page)


def until(page: Any, expression: str, seconds: float = 15) -> None:
    """Wait for an expression to be true. Playwright's own wait evaluates strings in the page: its
    policy stops that.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        time.sleep(0.02)


def settle(page: Any) -> None:
    """Wait until the page has drawn all that it has."""
    page.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => "
        "setTimeout(done, 250))))"
    )


def scrolls_sideways(page: Any) -> bool:
    return page.evaluate(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )
