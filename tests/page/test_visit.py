"""The first visit, the form, its errors, narrow and dark screens, and a server that needs a key."""

from __future__ import annotations

import pytest
from seen import run, scrolls_sideways, settle, until

UNNAMED = """() => [...document.querySelectorAll('input, select, textarea, button, canvas, [tabindex="0"]')].filter(x =>
  !x.hidden && !(x.labels?.length || x.getAttribute('aria-label') || x.textContent.trim())).map(x => x.outerHTML)"""
CLICKABLE = (
    "[...document.querySelectorAll('[onclick], a:not([href]), div[role=button], "
    "span[role=button]')].length"
)
# Contrast (WCAG 2) of every element's own text with the nearest background that is not transparent.
CONTRAST = """() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => parse(c).slice(0, 3).map(v => linear(v / 255))
    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = x => { for (; x; x = x.parentElement) { const c = getComputedStyle(x).backgroundColor;
    if ((parse(c)[3] ?? 1) > 0) return c; } return 'rgb(255, 255, 255)'; };
  const found = [];
  for (const x of document.querySelectorAll('body *')) {
    const own = [...x.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || x.disabled || !x.checkVisibility() || x.closest('svg, option, script, style, .skip')) continue;
    const [a, b] = [light(getComputedStyle(x).color), light(behind(x))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push([x.className, x.textContent.slice(0, 30), ratio]);
  }
  return found;
}"""


def test_the_first_visit_explains_itself_and_is_ready_to_run(visit, server):
    fake = server()
    page = visit(fake.url)
    page.wait_for_selector("#method:enabled")
    assert page.inner_text(".intro").count(".") == 2
    assert page.inner_text("#server") == "smollm2, 8,192 tokens of context"
    assert page.input_value("#method") == "vegas-reuse" and "n-grams" in page.inner_text("#about")
    groups = page.eval_on_selector_all(
        "#method optgroup", "all => all.map(g => [g.label, g.children.length])"
    )
    assert groups == [["other methods", 2], ["the target under a guided view", 2]]
    assert "fog signal" in page.input_value("#document") and page.input_value("#prompt")
    assert page.is_enabled("#run") and page.is_disabled("#stop") and page.is_disabled("#save")
    assert page.locator("#sample svg .node").count() == 11
    assert [path for path, _ in fake.asked] == ["/", "/v1/longdraft/methods"]


def test_everything_has_a_name_and_buttons_are_buttons(visit, server):
    page = visit(server().url)
    run(page)
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(CLICKABLE) == 0
    assert page.get_attribute("#status", "aria-live") == "polite"


def test_the_form_is_sent_as_it_is_filled_in(visit, server):
    fake = server()
    page = visit(fake.url)
    page.select_option("#method", "vegas")
    page.click("#more summary")
    page.fill("#option-gamma", "5")
    for name, value in {
        "document": "",
        "prompt": "Hi",
        "temperature": "0.5",
        "top_p": "0.9",
        "top_k": "40",
    }.items():
        page.fill(f"#{name}", value)
    page.fill("#seed", "7")
    page.fill("#max_tokens", "32")
    run(page)
    numbers = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7, "max_tokens": 32}
    expected = {
        "document": "",
        "prompt": "Hi",
        "method": "vegas",
        "options": {"gamma": "5"},
        **numbers,
    }
    assert fake.asked[-1] == ("/v1/longdraft/trace", expected)


def test_the_keyboard_alone_can_run_it(visit, server):
    page = visit(server().url)
    page.wait_for_selector("#method:enabled")
    page.focus("#max_tokens")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "run"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("#verdict.yes")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", "10001", "Temperature must be a number from 0 to 10000."),
        ("temperature", "warm", "Temperature must be"),
        ("top_p", "0", "Top-p must be a number above 0, 1 at most."),
        ("top_k", "-2", "Top-k must be a whole number from -1 to"),
        ("seed", "1.5", "Seed must be a whole number"),
        ("seed", "99999999999999999999", "Seed must be"),
        ("max_tokens", "0", "New tokens must be a whole number from 1 to 2147483647."),
        ("max_tokens", "", "New tokens must be"),
    ],
)
def test_a_wrong_value_is_named_before_anything_is_sent(visit, server, field, value, says):
    fake = server()
    page = visit(fake.url)
    page.wait_for_selector("#method:enabled")
    page.fill(f"#{field}", value)
    page.click("#run")
    assert page.inner_text("#problem").startswith(says)
    assert page.evaluate("document.activeElement.id") == field
    assert page.get_attribute(f"#{field}", "aria-invalid") == "true"
    assert len(fake.asked) == 2


def test_nothing_to_read_is_an_error(visit, server):
    page = visit(server().url)
    page.wait_for_selector("#method:enabled")
    page.fill("#document", " ")
    page.fill("#prompt", "")
    page.click("#run")
    assert page.inner_text("#problem") == "Give a prompt, a document or both."


@pytest.mark.parametrize(
    ("param", "focused"), [("options.gamma", "option-gamma"), ("top_p", "top_p")]
)
def test_what_the_server_refuses_is_shown_beside_the_form(visit, server, param, focused):
    fake = server(refusal=(400, {"error": {"message": f"{param}: too much", "param": param}}))
    page = visit(fake.url, status=(400,))
    page.wait_for_selector("#method:enabled")
    page.click("#run")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem") == f"{param}: too much"
    assert page.evaluate("document.activeElement.id") == focused
    fake.refusal = None
    run(page)
    assert page.is_hidden("#problem")


def test_a_text_file_becomes_the_document(visit, server, tmp_path):
    page = visit(server().url)
    (tmp_path / "a.txt").write_text("<b>one</b>\ntwo", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"\x00\x01")
    page.set_input_files("#file", tmp_path / "a.txt")
    until(page, "document.getElementById('document').value.startsWith('<b>one</b>')")
    assert page.inner_text("#size") == "14 characters"
    page.set_input_files("#file", tmp_path / "b.txt")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.input_value("#document").startswith("<b>one</b>")


def test_a_narrow_screen_has_no_sideways_scrolling(visit, server):
    page = visit(server().url, viewport={"width": 360, "height": 740}, has_touch=True)
    page.wait_for_selector("#method:enabled")
    assert not scrolls_sideways(page)
    page.click("#more summary")
    run(page)
    assert not scrolls_sideways(page)
    first, second = (page.locator(".lane").nth(i).bounding_box() for i in (0, 1))
    assert first["y"] + first["height"] <= second["y"]
    page.locator(".lane").nth(1).locator(".round").last.locator(".t").last.tap()
    page.wait_for_selector("#unpin:visible")
    assert not scrolls_sideways(page)


def test_lanes_are_side_by_side_on_a_wide_screen(visit, server):
    page = visit(server().url)
    run(page)
    first, second = (page.locator(".lane").nth(i).bounding_box() for i in (0, 1))
    assert first["y"] == second["y"] and first["x"] + first["width"] < second["x"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(visit, server, scheme):
    page = visit(server().url, color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []
    page.fill("#seed", "x")
    page.click("#run")
    assert page.evaluate(CONTRAST) == []
    page.fill("#seed", "1")
    run(page)
    assert page.evaluate(CONTRAST) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 20, 22)"
    assert dark == (scheme == "dark")


def test_a_key_is_asked_for_and_sent_with_every_request(visit, server):
    fake = server(key="secret-1")
    page = visit(fake.url, status=(401,))
    page.wait_for_selector("#key:visible")
    assert page.inner_text("#problem") == "This server needs an API key."
    page.fill("#key", "wrong")
    page.click("#connect")
    until(page, "document.getElementById('problem').textContent.includes('does not accept')")
    page.fill("#key", "secret-1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#method:enabled")
    assert page.is_hidden("#problem")
    run(page)
    stored = page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length")
    assert stored == 0 and "secret-1" not in page.url
    page.reload()
    page.wait_for_selector("#key:visible")
    assert page.input_value("#key") == ""


def test_a_server_that_answers_later_can_be_used_without_loading_the_page_again(visit, server):
    page = visit(server().url)
    page.route("**/v1/longdraft/methods", lambda route: route.abort())
    page.reload()
    page.wait_for_selector("#problem:not([hidden])")
    assert (
        page.inner_text("#problem")
        == "The server does not answer. A saved run can still be loaded."
    )
    page.unroute("**/v1/longdraft/methods")
    run(page)
    assert page.is_hidden("#problem")


def test_a_server_that_has_gone_is_named_and_can_be_tried_again(visit, server):
    fake = server()
    page = visit(fake.url)
    page.wait_for_selector("#method:enabled")
    page.route("**/v1/longdraft/trace", lambda route: route.abort())
    page.click("#run")
    page.wait_for_selector("#again:visible")
    assert page.inner_text("#problem") == "The server does not answer."
    page.unroute("**/v1/longdraft/trace")
    page.click("#again")
    page.wait_for_selector("#verdict.yes")
    settle(page)
    assert page.is_hidden("#again") and page.is_hidden("#problem")
