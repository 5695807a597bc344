"""Rows that decode beside a long prompt keep a quarter of the time, by a scripted clock."""

from __future__ import annotations

import pytest
from support import tiny

from longdraft import Session, generate, match
from longdraft.drafters import PlainDecoding
from longdraft.engine.reading_pace import ReadingPace

CHUNK = 16
LONG = 97  # six chunks, and a last token for the first step
STEP_S = 1.0


class Scripted:
    """A session whose clock advances by what is done. events: "read" and "step", in order."""

    def __init__(self, chunk_s: float, monkeypatch: pytest.MonkeyPatch):
        self.time = 0.0
        self.events = list[str]()
        lm = tiny.target("llama")
        prefill = lm.prefill

        def read(tokens, *given, **options):
            self._take("read", chunk_s * len(tokens) / CHUNK)
            return prefill(tokens, *given, **options)

        def verify(*given):
            self._take("step", STEP_S)
            return match(*given)

        monkeypatch.setattr(lm, "prefill", read)
        self.session = Session(
            lm, PlainDecoding(), 2, 200, chunk=CHUNK, verify=verify, now=lambda: self.time
        )

    def _take(self, event: str, seconds: float) -> None:
        self.time += seconds
        self.events.append(event)

    def run(self, steps: int = 1000) -> dict[int, list[int]]:
        """New tokens by request, after at most this many steps."""
        tokens = dict[int, list[int]]()
        while steps and (self.session.running or self.session.waiting):
            steps -= 1
            for event in self.session.step():
                tokens.setdefault(event.id, []).extend(event.tokens)
        return tokens

    def beside(self, new: int) -> tuple[list[list[int]], list[int]]:
        """Texts of a short request with `new` tokens and of a long one, which comes after a step;
        and how many steps followed each chunk of the long one, without the last.
        """
        short, long = tiny.prompts(2, LONG)
        first = self.session.submit(short, new, eos=())
        texts = self.run(1)
        self.events.clear()
        second = self.session.submit(long, 4, eos=())
        for id, more in self.run().items():
            texts.setdefault(id, []).extend(more)
        steps = "".join(event[0] for event in self.events).split("r")[1:-1]
        return [texts[first], texts[second]], [len(between) for between in steps]


def alone(new: int) -> list[list[int]]:
    lm = tiny.target("llama")
    short, long = tiny.prompts(2, LONG)
    return [
        generate(lm, [prompt], max_new_tokens=count, eos=())[0]
        for prompt, count in ((short, new), (long, 4))
    ]


@pytest.mark.parametrize("chunk_s,steps", [(0.5, 1), (3.0, 1), (3.1, 2), (9.0, 3), (20.0, 7)])
def test_steps_have_a_quarter_of_the_time(chunk_s, steps, monkeypatch):
    texts = alone(60)
    scripted = Scripted(chunk_s, monkeypatch)
    found, counts = scripted.beside(60)
    assert counts == [steps] * 5
    assert steps * STEP_S >= (steps * STEP_S + chunk_s) / 4
    assert found == texts  # however it was read


def test_reading_without_an_account_is_noticed(monkeypatch):
    monkeypatch.setattr(ReadingPace, "may_read", lambda *_: True)
    assert Scripted(9.0, monkeypatch).beside(60)[1] == [1] * 5


def test_a_prompt_alone_is_read_at_once(monkeypatch):
    scripted = Scripted(9.0, monkeypatch)
    scripted.session.submit(tiny.prompts(LONG)[0], 4, eos=())
    scripted.run()
    assert scripted.events == ["read"] + 4 * ["step"]


def test_nothing_is_owed_to_rows_that_have_left(monkeypatch):
    """The short request ends three steps after the first chunk, which calls for seven."""
    texts = alone(4)
    scripted = Scripted(20.0, monkeypatch)
    found, counts = scripted.beside(4)
    assert counts == [3] and scripted.events[4:] == ["read"] + 4 * ["step"]
    assert found == texts


def test_nothing_is_owed_for_reading_alone():
    now = [0.0]
    pace = ReadingPace(lambda: now[0])
    with pace.reading(0):
        now[0] = 90.0
    assert pace.may_read(1)
    with pace.reading(1):
        now[0] = 99.0
    assert pace.owed == 3.0 and not pace.may_read(1)
    assert pace.may_read(0) and pace.may_read(1)


def test_long_steps_buy_no_chunks():
    now = [0.0]
    pace = ReadingPace(lambda: now[0])
    with pace.stepping():
        now[0] = 50.0
    with pace.reading(1):
        now[0] = 53.0
    assert pace.owed == 1.0 and not pace.may_read(1)
