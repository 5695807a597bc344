"""The page's scripts as the modules that they are, each loaded by itself: here the browser checks
their imports.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fake import Fake, recorded
from seen import chips, expected_chips, settle, until

from longdraft.server import page as package
from longdraft.server.page import page as document

FOLDER = Path(package.__file__).parent
FAULTS = {
    "an import forgotten": (r'^import \{ \$ \} from "\./dom\.js";\n', "", "$ is not defined"),
    "an import of nothing": (r"import \{ \$ \}", "import { $, nothing }", "'nothing'"),
    "an import assigned to": (
        r"^  useKey\(key\);",
        "  useKey = key;",
        "Assignment to constant variable",
    ),
}


def open_unjoined(
    browser: Any, fake: Fake, fault: tuple[str, str] | None = None
) -> tuple[Any, list[str]]:
    """A page that loads main.js and what it imports -> itself and its errors. fault: (pattern,
    text) in connect.js.
    """
    html = re.sub(
        r'<script type="module">.*?</script>',
        '<script type="module" src="main.js"></script>',
        document()[0],
        flags=re.S,
    )
    html = re.sub(r"<meta http-equiv[^>]*>", "", html)  # its policy allows the joined script only

    def serve(route: Any) -> None:
        name = route.request.url.removeprefix(fake.url)
        if name == "":
            return route.fulfill(body=html, content_type="text/html; charset=utf-8")
        if not name.endswith(".js"):
            return route.continue_()
        code = (FOLDER / name).read_text(encoding="utf-8")
        if fault and name == "connect.js":
            code, count = re.subn(*fault, code, flags=re.M)
            assert count == 1
        route.fulfill(body=code, content_type="text/javascript; charset=utf-8")

    page = browser.new_page()
    errors = []
    page.set_default_timeout(10_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route("**/*", serve)
    page.goto(fake.url)
    return page, errors


def test_a_run_with_every_module_loaded_by_itself(browser, server):
    page, errors = open_unjoined(browser, server())
    page.wait_for_selector("#method:enabled")
    page.click("#run")
    page.wait_for_selector("#verdict.yes")
    settle(page)
    assert chips(page, 1) == expected_chips(recorded(), 1)
    page.locator(".lane").nth(1).locator(".round").nth(5).click()
    until(page, "document.getElementById('round-title').textContent.startsWith('Round 6 of')")
    assert errors == []
    page.close()


@pytest.mark.parametrize("name", FAULTS)
def test_the_browser_refuses(browser, server, name):
    pattern, text, message = FAULTS[name]
    page, errors = open_unjoined(browser, server(), (pattern, text))
    settle(page)
    assert any(message in error for error in errors), errors
    page.close()
