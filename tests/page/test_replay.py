"""Saved runs: replayed, saved and loaded again, refused if malformed, harmless if hostile, and
embedded in a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake import recorded
from seen import chips, expected_chips, expected_figures, figures, run, settle, until

from longdraft.server.page import page as document

HOSTILE = '</script><img src=x onerror="window.hit=1"><svg onload="window.hit=1">'
DROP = """text => { const data = new DataTransfer(); data.items.add(new File([text], 'run.json'));
  document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})) }"""


def test_a_saved_run_loads_again_with_the_same_chips(visit, server, tmp_path):
    page = visit(server().url)
    run(page)
    before = [chips(page, 0), chips(page, 1), figures(page, 1)]
    with page.expect_download() as saved:
        page.click("#save")
    assert saved.value.suggested_filename == "longdraft-vegas-reuse.json"
    saved.value.save_as(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8")) == recorded()
    page.reload()
    page.set_input_files("#trace-file", tmp_path / "run.json")
    page.wait_for_selector("#verdict.yes")
    settle(page)
    assert [chips(page, 0), chips(page, 1), figures(page, 1)] == before
    assert page.inner_text("#status") == "A saved run of smollm2 of 2026-11-23: 160 tokens."
    page.click("#saved summary")
    assert "fog signal" in page.inner_text("#text") and "temperature=0" in page.inner_text(
        "#settings"
    )


def test_the_scrubber_shows_what_there_was_at_a_time(visit, server):
    trace = recorded()
    page = visit(server().url)
    run(page)
    for t in (1.5, 0.5, 2.0):
        page.evaluate("t => { clock.value = t; clock.dispatchEvent(new Event('input')) }", t)
        settle(page)
        for lane in (0, 1):
            assert chips(page, lane) == expected_chips(trace, lane, t)
        assert page.inner_text("#time") == f"{t:.2f} s of 3.91 s"
    assert page.get_attribute("#clock", "aria-valuetext") == "2.00 s"


def test_play_and_pause(visit, server):
    trace = recorded()
    page = visit(server().url)
    run(page)
    page.select_option("#speed", "4")
    page.click("#play")
    assert page.inner_text("#play") == "Pause"
    page.wait_for_timeout(300)
    page.click("#play")
    settle(page)
    some = chips(page, 1)
    assert 0 < len(some) < 160 and some == expected_chips(trace, 1)[: len(some)]
    page.click("#play")
    until(page, "document.getElementById('play').textContent === 'Play'")
    settle(page)
    assert chips(page, 1) == expected_chips(trace, 1) and figures(page, 1) == expected_figures(
        trace, 1
    )


def test_with_reduced_motion_the_tree_waits_for_the_end(visit, server):
    fake = server(pause_after=40)
    page = visit(fake.url, reduced_motion="reduce")
    page.click("#run")
    until(page, "document.querySelectorAll('.lane .round:not([hidden])').length === 40")
    settle(page)
    assert page.locator("#tree svg").count() == 0
    fake.go.set()
    page.wait_for_selector("#verdict.yes")
    page.wait_for_selector("#tree svg")


def change(**values) -> Callable[[dict], object]:
    return lambda t: t | values


def in_round(**values) -> Callable[[dict], object]:
    def made(t: dict) -> dict:
        t["lanes"][1]["rounds"][12].update(values)
        return t

    return made


def in_node(**values) -> Callable[[dict], object]:
    def made(t: dict) -> dict:
        t["lanes"][1]["rounds"][12]["nodes"][2].update(values)
        return t

    return made


MALFORMED = {
    "another format": (change(format="x"), "it is not a trace"),
    "another version": (change(version=2), "its version is 2: this page reads version 1"),
    "a list": (lambda t: [t], "it is not a trace"),
    "no lanes": (change(lanes=[]), "lanes must be one or two"),
    "three lanes": (lambda t: t | {"lanes": t["lanes"] * 2}, "lanes must be one or two"),
    "two methods": (
        lambda t: t | {"lanes": t["lanes"][1:] * 2},
        'the first of two lanes must be "plain"',
    ),
    "slots": (change(slots=5), "slots must be"),
    "slots of text": (change(slots="980"), "slots must be"),
    "equal": (change(equal="yes"), "equal must be"),
    "a wrong equal": (
        in_round(tokens=[1, 2], texts=["", ""], accepted=0, path=[]),
        "its lanes have different tokens",
    ),
    "time goes back": (in_round(at_s=0), "at_s must be"),
    "time without end": (in_round(at_s=1e300), "at_s must be"),
    "texts": (in_round(texts=["a"]), "texts must be"),
    "long texts": (in_round(tokens=[1], texts=["x" * 5000], accepted=0, path=[]), "texts must be"),
    "accepted": (in_round(accepted=99), "accepted must be"),
    "path": (in_round(path=[0, 0, 0, 0]), "path must lead down"),
    "path outside": (in_round(path=[0, 1, 2, 9999]), "path must be indices"),
    "too many nodes": (
        in_round(nodes=[{"parent": -1, "token": 1, "text": "", "by": ""}] * 5000),
        "nodes must be",
    ),
    "a later parent": (in_node(parent=2), "parent must be an earlier node"),
    "a parent of text": (in_node(parent="0"), "parent must be an earlier node"),
    "a node's text": (in_node(text=None), "token, text and by"),
    "shown": (in_round(shown=[101]), "shown must be"),
    "too many bins": (in_round(shown=[1] * 1000), "shown must be"),
    "too many rounds": (
        lambda t: t | {"lanes": [t["lanes"][0] | {"rounds": rounds(100_001)}]},
        "too many to show",
    ),
}


def rounds(n: int) -> list[dict]:
    empty = {"draft_s": 0, "accepted": 0, "nodes": [], "path": [], "shown": None}
    return [empty | {"at_s": 0, "tokens": [1], "texts": ["a"]}] * n


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_trace_is_refused_in_one_line_and_nothing_is_lost(
    visit, server, tmp_path, name
):
    damage, says = MALFORMED[name]
    page = visit(server().url)
    run(page)
    (tmp_path / "bad.json").write_text(json.dumps(damage(recorded())), encoding="utf-8")
    page.set_input_files("#trace-file", tmp_path / "bad.json")
    page.wait_for_selector("#notice:not([hidden])")
    said = page.inner_text("#notice")
    assert said.startswith("bad.json was not loaded: ") and says in said and "\n" not in said
    assert chips(page, 1) == expected_chips(recorded(), 1) and page.is_enabled("#save")


def test_a_loaded_trace_is_saved_as_it_was(visit, server, tmp_path):
    page = visit(server().url)
    text = json.dumps(recorded() | {"seed": (1 << 62) - 1, "more": "kept"})
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    page.set_input_files("#trace-file", tmp_path / "run.json")
    page.wait_for_selector("#verdict.yes")
    with page.expect_download() as saved:
        page.click("#save")
    assert saved.value.path().read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[[[[", "[" * 200_000, '{"format": "longdraft-trace"}']
)
def test_what_is_not_json_is_refused(visit, server, tmp_path, text):
    page = visit(server().url)
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    page.set_input_files("#trace-file", tmp_path / "bad.json")
    page.wait_for_selector("#notice:not([hidden])")
    assert page.inner_text("#notice").startswith("bad.json was not loaded: ")
    assert page.is_visible("#anatomy")


def hostile() -> dict:
    """A trace whose every text is markup; the deepest and the widest tree that a trace may have."""
    trace = recorded()
    trace |= {
        "model": HOSTILE,
        "prompt": HOSTILE,
        "equal": None,
        "sampler": {HOSTILE[:60]: HOSTILE},
        "time": "<i>",
    }
    second = trace["lanes"][1]
    second |= {"method": HOSTILE[:60], "options": {"__proto__": HOSTILE}}
    for r in second["rounds"]:
        r["texts"] = [HOSTILE for _ in r["texts"]]
        for n in r["nodes"]:
            n |= {"text": HOSTILE, "by": HOSTILE[:60]}
    base = {"token": 1, "text": "\u202e" + HOSTILE, "by": "constructor"}
    deep = [base | {"parent": i - 1} for i in range(4096)]
    wide = [base | {"parent": -1} for i in range(4096)]
    last = second["rounds"][-1]
    second["rounds"] += [last | {"nodes": n, "path": [], "accepted": 0} for n in (deep, wide)]
    return trace


def test_hostile_texts_are_texts(visit, server, tmp_path):
    page = visit(server().url)
    (tmp_path / "a.json").write_text(json.dumps(hostile()), encoding="utf-8")
    page.set_input_files("#trace-file", tmp_path / "a.json")
    page.wait_for_selector("#view:not([hidden])")
    settle(page)
    second = page.locator(".lane").nth(1).locator(".round")
    assert HOSTILE in second.nth(5).inner_text()
    for i in (5, second.count() - 2, second.count() - 1):
        second.nth(i).locator(".t").last.click()
        settle(page)
        assert page.inner_text("#round-title").startswith(f"Round {i + 1} of")
    page.click("#saved summary")
    assert page.inner_text("#text") == HOSTILE
    assert page.evaluate("window.hit") is None
    assert page.locator("main img, main script, main iframe").count() == 0


def test_a_dropped_file_is_loaded(visit, server):
    page = visit(server().url)
    page.evaluate(DROP, json.dumps(recorded("novel")))
    page.wait_for_selector("#verdict.yes")
    settle(page)
    assert chips(page, 1) == expected_chips(recorded("novel"), 1)


def test_one_lane_alone(visit, server, tmp_path):
    trace = recorded()
    trace |= {"lanes": trace["lanes"][1:], "equal": None}
    page = visit(server(trace=trace).url)
    page.wait_for_selector("#method:enabled")
    page.click("#run")
    until(page, "document.getElementById('status').textContent === 'Done: 160 tokens.'")
    settle(page)
    assert chips(page, 0) == expected_chips(trace, 0)
    assert page.is_hidden("#verdict") and "speedup" not in figures(page, 0)


@pytest.mark.parametrize("make", [recorded, hostile])
def test_a_file_with_a_trace_replays_without_a_server(visit, tmp_path, make):
    file = tmp_path / "run.html"
    file.write_text(document(json.dumps(make(), ensure_ascii=False))[0], encoding="utf-8")
    page = visit(file.as_uri())
    page.wait_for_selector("#view:not([hidden])")
    settle(page)
    assert page.is_hidden("#form") and page.is_enabled("#play")
    assert page.evaluate("window.hit") is None
    if make is recorded:
        assert chips(page, 1) == expected_chips(recorded(), 1)
        page.click("#play")
        page.wait_for_timeout(300)
        assert len(chips(page, 1)) < 160
    assert "saved run" in page.inner_text("#status")


def test_a_file_without_a_trace_can_load_one(visit, tmp_path):
    file: Path = tmp_path / "page.html"
    file.write_text(document()[0], encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps(recorded()), encoding="utf-8")
    page = visit(file.as_uri())
    assert page.is_hidden("#form")
    page.set_input_files("#trace-file", tmp_path / "run.json")
    page.wait_for_selector("#verdict.yes")
    settle(page)
    assert chips(page, 1) == expected_chips(recorded(), 1)


def test_the_policy_stops_scripts_and_requests_to_others(browser, server):
    """The same policy with a script and a request that it must stop: a policy that stops nothing
    would pass above.
    """
    context = browser.new_context()
    page = context.new_page()
    stopped: list[str] = []
    page.on("console", lambda m: stopped.append(m.text))
    page.goto(server().url)
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.hit = 1'}))"
    )
    page.evaluate("fetch('http://127.0.0.2:9/').catch(() => 0)")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('img'), {src: "
        "'http://127.0.0.2:9/a.png'}))"
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit") is None
    assert sum("Content Security Policy" in x for x in stopped) >= 3
    context.close()
