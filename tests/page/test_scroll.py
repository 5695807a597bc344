"""Two lanes of one text scroll together, say that there is more, and mark their first
difference.
"""

from __future__ import annotations

from fake import recorded
from seen import run, settle, until

TOPS = """[...document.querySelectorAll('.lane')].map(lane => {
  const box = lane.querySelector('.box'), top = box.getBoundingClientRect().top + 6
  const chips = [...lane.querySelectorAll('.round:not([hidden]) .t:not(.no)')]
  return chips.findIndex(x => x.getBoundingClientRect().bottom > top)
})"""
AT_END = """[...document.querySelectorAll('.box')].every(x => x.scrollHeight - x.scrollTop - x.clientHeight < 4)"""
MORE = "[...document.querySelectorAll('.lane .more.hint')].map(x => x.textContent)"


def scroll(page, lane: int, top: str) -> None:
    page.evaluate(f"(x => {{ x.scrollTop = {top} }})(document.querySelectorAll('.box')[{lane}])")
    settle(page)


def test_both_lanes_end_at_their_last_tokens(visit, server):
    page = visit(server().url, viewport={"width": 1100, "height": 700})
    run(page)
    assert page.evaluate(AT_END) and page.evaluate(MORE) == ["↑ more", "↑ more"]


def test_a_lane_takes_the_other_with_it(visit, server):
    page = visit(server().url, viewport={"width": 1100, "height": 700})
    run(page)
    for lane in (0, 1):
        for top in ("0", "x.scrollHeight / 3", "x.scrollHeight / 2"):
            scroll(page, lane, top)
            tops = page.evaluate(TOPS)
            # a line has about so many tokens
            assert abs(tops[0] - tops[1]) <= 12, (
                lane,
                top,
                tops,
            )
        assert tops[0] > 20 and page.evaluate(MORE)[lane] == "↑ more ↓"
        scroll(page, lane, "0")
        assert page.evaluate(TOPS) == [0, 0] and page.evaluate(MORE) == ["more ↓", "more ↓"]
        scroll(page, lane, "x.scrollHeight")
        assert page.evaluate(AT_END)


def test_a_reader_stays_where_he_is_while_tokens_come(visit, server):
    fake = server(pause_after=100)
    page = visit(fake.url, viewport={"width": 1100, "height": 600})
    page.click("#run")
    until(page, "document.querySelectorAll('.lane .round:not([hidden])').length === 100")
    settle(page)
    assert page.evaluate(AT_END)
    scroll(page, 1, "0")
    fake.go.set()
    page.wait_for_selector("#verdict.yes")
    settle(page)
    assert page.evaluate(TOPS) == [0, 0]


def test_the_first_difference_is_marked_and_in_view(visit, server):
    trace = recorded()
    trace["lanes"][0]["rounds"][50]["tokens"] = [9]
    trace["equal"] = False
    page = visit(server(trace=trace).url, viewport={"width": 1100, "height": 600})
    run(page)
    found = page.evaluate(
        """[...document.querySelectorAll('.lane')].map(lane => {
          const chips = [...lane.querySelectorAll('.t:not(.no)')], box = lane.querySelector('.box')
          const [a, b] = [lane.querySelector('.differs').getBoundingClientRect(), box.getBoundingClientRect()]
          return [chips.findIndex(x => x.classList.contains('differs')), a.top >= b.top && a.bottom <= b.bottom]
        })"""
    )
    assert found == [[50, True], [50, True]] and page.locator(".differs").count() == 2


def test_equal_lanes_have_no_mark(visit, server):
    page = visit(server().url)
    run(page)
    assert page.locator(".differs").count() == 0
