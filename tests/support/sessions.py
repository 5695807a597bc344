"""Requests that sessions run, what each gives alone, and how a session ended them."""

from __future__ import annotations

from functools import cache

from support import tiny
from support.checks import SAMPLERS, SEED

from longdraft import Event, Session, generate
from longdraft.drafters import Drafter

SLOTS = 160


# prompt tokens, new tokens, the place of a token in the text that is made an end token (None: the
# text has no end)
REQUESTS = [
    (70, 14, None),
    (31, 3, None),
    (9, 20, 7),
    (50, 1, None),
    (1, 9, None),
    (44, 17, 4),
    (12, 6, None),
]


@cache
def request(model: str, i: int, sampler: str = "T=1") -> tuple[dict, list[int]]:
    """What is submitted, and what it gives alone."""
    _, new, end = REQUESTS[i]
    prompt = tiny.prompts(*(n for n, _, _ in REQUESTS))[i]
    options = {"max_new_tokens": new, "seed": SEED + 1000 * i, "eos": ()}
    [text] = generate(tiny.target(model), [prompt], sampler=SAMPLERS[sampler], **options)
    if end is not None:
        text = text[: text.index(text[end]) + 1]
        options["eos"] = (text[-1],)
    return {"prompt": prompt, **options}, text


def session(
    model: str, drafter: Drafter | None = None, batch: int = 3, sampler: str = "T=1", **more
) -> Session:
    """A session for them, which always reads a chunk of a prompt between two steps."""
    options = {"now": stopped} | more
    return Session(tiny.target(model), drafter, batch, SLOTS, SAMPLERS[sampler], **options)


def stopped() -> float:
    """The time of a stopped clock, by which reading a prompt never owes the rows more steps."""
    return 0.0


class Ends:
    """All events of a session: texts so far, how each request ended, and that none ends twice or
    goes on afterward.
    """

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.how: dict[int, str] = {}
        self.errors: dict[int, BaseException] = {}

    def take(self, events: list[Event]) -> None:
        for e in events:
            assert e.id not in self.how and (e.tokens or e.ended)
            self.texts.setdefault(e.id, []).extend(e.tokens)
            if e.ended:
                self.how[e.id] = e.ended
            if e.error is not None:
                self.errors[e.id] = e.error
            assert (e.error is not None) == (e.ended == "failed")


def finish(s: Session, ends: Ends) -> Ends:
    while s.running or s.waiting:
        ends.take(s.step())
    return ends


def others(ends: Ends, failed: dict[int, str], model: str = "llama") -> None:
    """Requests 0.. have ids 1..; all but the failed ones have their texts."""
    for i in range(len(REQUESTS)):
        if i + 1 in failed:
            assert failed[i + 1] in str(ends.errors[i + 1])
        else:
            assert ends.texts[i + 1] == request(model, i)[1] and ends.how[i + 1] != "failed", i
    assert set(ends.errors) == set(failed)
