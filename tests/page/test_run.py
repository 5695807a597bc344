"""A run: chips and figures as they stream, trees under the pointer and by keyboard, the strip, and
broken streams.
"""

from __future__ import annotations

import json

import pytest
from fake import events_of, recorded
from seen import chips, expected_chips, expected_figures, figures, run, settle, until


def test_a_run_shows_every_token_and_the_figures_of_the_trace(visit, server):
    trace = recorded()
    page = visit(server().url)
    run(page)
    for lane in (0, 1):
        assert chips(page, lane) == expected_chips(trace, lane)
        assert figures(page, lane) == expected_figures(trace, lane)
    assert page.inner_text("#verdict") == "equal: yes. Both lanes wrote the same 160 tokens."
    assert page.inner_text("#status") == "Done: 160 tokens."
    assert page.locator("#legend .t").all_inner_texts() == [
        "model",
        "n-grams",
        "rejected",
        "target",
    ]
    lines = page.evaluate(
        "[...document.querySelectorAll('#legend .t')].map(x => "
        "getComputedStyle(x).borderBottomStyle)"
    )
    assert len(set(lines[:2])) == 2  # who drafted can be told without colors


def test_tokens_appear_while_the_run_goes_on(visit, server):
    fake = server(pause_after=40)
    page = visit(fake.url)
    page.click("#run")
    until(page, "document.querySelectorAll('.lane .round:not([hidden])').length === 40")
    assert chips(page, 1) == expected_chips(fake.trace, 1)[: len(chips(page, 1))]
    assert page.is_enabled("#stop") and page.is_disabled("#run") and page.is_disabled("#play")
    assert page.is_hidden("#verdict")
    page.evaluate("document.querySelector('.lane .round').kept = true")
    fake.go.set()
    page.wait_for_selector("#verdict.yes")
    settle(page)
    # appended to, not made anew
    assert page.evaluate("document.querySelector('.lane .round').kept") is True
    assert chips(page, 1) == expected_chips(fake.trace, 1)


def test_lanes_that_differ_are_announced_loudly(visit, server):
    trace = recorded()
    trace["lanes"][0]["rounds"][50]["tokens"] = [9]
    trace["equal"] = False
    page = visit(server(trace=trace).url)
    run(page)
    assert page.inner_text("#verdict") == "equal: NO. The lanes differ from token 51 on."
    assert (
        page.evaluate("parseFloat(getComputedStyle(document.getElementById('verdict')).fontSize)")
        >= 18
    )


def test_the_tree_of_the_round_under_the_pointer(visit, server):
    trace = recorded()
    page = visit(server().url)
    run(page)
    rounds = page.locator(".lane").nth(1).locator(".round")
    for i in (1, 12):
        own = trace["lanes"][1]["rounds"][i]
        rounds.nth(i).locator(".t").first.hover()
        until(
            page,
            f"document.getElementById('round-title').textContent.startsWith('Round {i + 1} of')",
        )
        settle(page)
        extra = len(own["tokens"]) - own["accepted"]
        assert page.locator("#tree .node").count() == 1 + len(own["nodes"]) + extra
        assert page.locator("#tree .node.kept").count() == own["accepted"]
        kept = page.evaluate(
            "[...document.querySelectorAll('#tree .node.kept rect')].map(x => x.getAttribute('y'))"
        )
        assert len(set(kept)) <= 1  # the accepted path is one straight line
    page.mouse.move(5, 5)
    until(page, "document.getElementById('round-title').textContent.startsWith('Round 40 of')")


def test_a_click_pins_a_round_and_escape_lets_it_go(visit, server):
    page = visit(server().url)
    run(page)
    rounds = page.locator(".lane").nth(1).locator(".round")
    rounds.nth(8).locator(".t").first.click()
    rounds.nth(30).locator(".t").first.hover()
    settle(page)
    assert page.inner_text("#round-title") == "Round 9 of vegas-reuse"
    assert rounds.nth(8).get_attribute("aria-selected") == "true"
    page.mouse.move(5, 5)
    page.click("#unpin")
    settle(page)
    assert page.inner_text("#round-title") != "Round 9 of vegas-reuse" or page.is_hidden("#unpin")
    assert page.locator('[aria-selected="true"]').count() == 0
    rounds.nth(3).locator(".t").first.click()
    page.keyboard.press("Escape")
    settle(page)
    assert page.locator('[aria-selected="true"]').count() == 0


def test_rounds_and_their_trees_by_keyboard(visit, server):
    page = visit(server().url)
    run(page)
    page.locator(".lane").nth(1).locator(".round[tabindex='0']").focus()
    title = lambda: (settle(page), page.inner_text("#round-title"))[1]  # noqa: E731
    assert title() == "Round 1 of vegas-reuse"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert title() == "Round 3 of vegas-reuse"
    page.keyboard.press("ArrowLeft")
    assert title() == "Round 2 of vegas-reuse"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(
        "Round 2: "
    )
    page.keyboard.press("End")
    assert title() == "Round 40 of vegas-reuse"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator(".round[aria-selected='true']").count() == 1
    assert page.locator(".lane").nth(1).locator(".round[tabindex='0']").count() == 1
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "tree":
            break
    assert page.evaluate("document.activeElement.id") == "tree"
    assert "Kept: " in page.get_attribute("#tree svg", "aria-label")


def test_rejected_drafts_can_be_hidden(visit, server):
    page = visit(server().url)
    run(page)
    assert page.locator(".lane .t.no").first.is_visible()
    assert "line-through" in page.evaluate(
        "getComputedStyle(document.querySelector('.lane .t.no')).textDecorationLine"
    )
    page.uncheck("#rejected")
    assert page.locator(".lane .t.no:visible").count() == 0
    assert chips(page, 1) == expected_chips(recorded(), 1)


def test_the_strip_says_what_a_draft_read_and_which_tokens(visit, server):
    trace = recorded("novel")
    page = visit(server(trace=trace).url)
    run(page)
    last = trace["lanes"][1]["rounds"][-1]
    length = trace["prompt_tokens"] + 200 - len(last["tokens"])
    read = 100 * sum(last["shown"]) / 100 * trace["slots"] / len(last["shown"]) / length
    assert page.inner_text("#reads") == f"reads {read:.1f}% of the context"
    assert 6 < read < 9
    assert page.inner_text("#place") == "15,800 tokens of prompt, then the answer"
    page.focus("#bins")
    page.keyboard.press("End")
    assert page.inner_text("#place").startswith("tokens 15,938 to 15,999 (answer); read to ")
    assert page.get_attribute("#bins", "aria-valuetext") == page.inner_text("#place")
    page.locator("#bins").hover(position={"x": 1, "y": 10})
    assert page.inner_text("#place") == f"tokens 0 to 62 (prompt); read to {last['shown'][0]}%"
    lit = (
        "[...$('bins').getContext('2d').getImageData(0, 0, $('bins').width, $('bins').height - "
        "8).data]"
    )
    lit = lit.replace("$", "document.getElementById.bind(document)")
    blue = page.evaluate(f"{lit}.filter((v, i, all) => i % 4 === 2 && v - all[i - 2] > 120).length")
    assert blue > 200


def test_stop_keeps_what_came(visit, server):
    fake = server(pause_after=40)
    page = visit(fake.url)
    page.click("#run")
    until(page, "document.querySelectorAll('.lane .round:not([hidden])').length === 40")
    page.click("#stop")
    page.wait_for_selector("#again:visible")
    settle(page)
    n = len(chips(page, 1))
    assert (
        page.inner_text("#status") == f"Stopped. What came is kept: {n} tokens, which you can save."
    )
    assert page.is_enabled("#save") and page.is_enabled("#play") and page.is_enabled("#run")
    assert chips(page, 1) == expected_chips(fake.trace, 1)[:n]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"stop_after": 30}, "The connection to the server broke. What came is kept: "),
        ({"error_after": 30}, "The server reports an error: decoding failed. What came is kept: "),
    ],
)
def test_a_server_that_stops_in_mid_stream(visit, server, how, says):
    fake = server(**how)
    page = visit(fake.url)
    page.click("#run")
    page.wait_for_selector("#notice:not([hidden])")
    settle(page)
    assert page.inner_text("#notice").startswith(says)
    assert page.inner_text("#verdict").startswith("equal: not known")
    n = len(chips(page, 1))
    assert n > 15 and chips(page, 1) == expected_chips(fake.trace, 1)[:n]
    with page.expect_download() as saved:
        page.click("#save")
    kept = json.loads(saved.value.path().read_text(encoding="utf-8"))
    assert [len(x["rounds"]) for x in kept["lanes"]] == [15, 15] and kept["equal"] is None
    fake.stop_after = None
    fake.error_after = None
    page.click("#again")
    page.wait_for_selector("#verdict.yes")
    settle(page)
    assert chips(page, 1) == expected_chips(fake.trace, 1) and page.is_hidden("#notice")


@pytest.mark.parametrize("wrong", [{"path": [99]}, {"at_s": -1}, {"texts": []}, {"tokens": "abc"}])
def test_a_round_that_makes_no_sense_ends_the_run_and_keeps_the_others(visit, server, wrong):
    fake = server()
    fake.events = list(events_of(fake))
    at = next(i for i, e in enumerate(fake.events) if e["event"] == "round") + 10
    fake.events[at] = fake.events[at] | {"round": fake.events[at]["round"] | wrong}
    page = visit(fake.url)
    page.click("#run")
    page.wait_for_selector("#notice:not([hidden])")
    settle(page)
    assert "cannot be shown" in page.inner_text("#notice")
    assert page.locator(".lane .round:not([hidden])").count() == 10


def test_two_thousand_tokens_with_large_trees_stay_smooth(visit, server):
    trace = large(500, 64)
    page = visit(server(trace=trace).url)
    page.evaluate(
        "window.slow = []; new PerformanceObserver(list => "
        "slow.push(...list.getEntries().map(e => e.duration)))"
        ".observe({entryTypes: ['longtask']})"
    )
    page.click("#run")
    page.wait_for_selector("#verdict.yes", timeout=60_000)
    settle(page)
    assert len(chips(page, 1)) == 2000
    slow = page.evaluate("slow")
    print("long tasks (ms):", [round(x) for x in slow])
    assert max(slow, default=0) < 600  # on a busy machine; most runs have none above 150
    page.click("#play")
    page.wait_for_timeout(500)
    page.click("#play")
    assert 0 < len(chips(page, 1)) < 2000


def large(rounds: int, size: int) -> dict:
    """A run with 4 tokens in each round of its second lane, of which 3 were drafted in a tree of
    `size` nodes.
    """
    trace = recorded() | {"slots": 4096 + 2000, "prompt_tokens": 4096}
    node = lambda i: {  # noqa: E731
        "parent": i - 1 if i < 3 else i // 4 - 1,
        "token": i,
        "text": f" n{i}",
        "by": "heads",
    }
    tree = [node(i) for i in range(size)]
    base = {
        "tokens": [0, 1, 2, 3],
        "texts": [" a", " b", " c", " d"],
        "accepted": 3,
        "path": [0, 1, 2],
        "nodes": tree,
    }
    shown = [i * 7 % 101 for i in range(256)]
    second = [base | {"at_s": i / 100, "draft_s": 0.004, "shown": shown} for i in range(rounds)]
    plain = {"draft_s": 0, "accepted": 0, "path": [], "nodes": [], "shown": None}
    ids = base["tokens"]
    texts = base["texts"]
    first = [
        plain | {"at_s": i / 200, "tokens": [ids[i % 4]], "texts": [texts[i % 4]]}
        for i in range(rounds * 4)
    ]
    for lane, made in zip(trace["lanes"], (first, second), strict=True):
        lane["rounds"] = made
    return trace
