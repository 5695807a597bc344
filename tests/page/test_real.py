"""The page with the real server and its bundled model: every method it offers runs, equal, and can
be saved.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from seen import chips, expected_chips, until

LONGDRAFT = Path(__file__).parents[2] / ".venv" / "bin" / "longdraft"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not LONGDRAFT.exists():
        pytest.skip("the real server is not installed: make setup")
    line = [LONGDRAFT, "serve", "-m", "bundled", "--method", "suffix", "--port", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = next(
            (m[1] for x in process.stderr if (m := re.search(r"serving \S+ at (\S+)/v1", x))), None
        )
        assert found is not None, "the server did not start"
        yield f"{found}/"
        process.terminate()


def test_every_method_runs_beside_plain_decoding(visit, url):
    page = visit(url)
    until(page, "document.querySelector('#method').options.length > 5")
    assert page.input_value("#method") == "suffix"
    methods = page.eval_on_selector("#method", "e => [...e.options].map(o => o.value)")
    # auto is absent where it would copy the model
    assert {"vegas", "vegas-tree", "longspec"} <= set(methods)
    page.fill(
        "#document", "def walk(path):\n    for name in os.listdir(path):\n        yield name\n" * 30
    )
    page.fill("#max_tokens", "24")
    for method in methods:
        page.select_option("#method", method)
        page.click("#run")
        until(page, "!document.querySelector('#run').disabled", 60)
        assert page.inner_text("#verdict").startswith("equal: yes"), (
            method,
            page.inner_text("body")[-2000:],
        )


def test_a_real_run_is_saved_as_it_was_shown(visit, url):
    page = visit(url)
    until(page, "document.querySelector('#method').options.length > 5")
    page.select_option("#method", "vegas-reuse")
    page.fill("#max_tokens", "40")
    page.click("#run")
    page.wait_for_selector("#verdict.yes", timeout=60_000)
    with page.expect_download() as saving:
        page.click("#save")
    trace = json.loads(Path(saving.value.path()).read_text(encoding="utf-8"))
    assert [lane["method"] for lane in trace["lanes"]] == ["plain", "vegas-reuse"] and trace[
        "equal"
    ] is True
    for lane in (0, 1):
        assert chips(page, lane) == expected_chips(trace, lane)
