"""Text of a request as a server gives it out: stop strings, held-back text, log-probabilities,
however tokens come.
"""

from __future__ import annotations

from functools import cache

from hypothesis import example, given
from hypothesis import strategies as st

from longdraft.engine.session import Event
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.models.loading import load
from longdraft.models.text import offsets_of, text_of
from longdraft.server.decode.reply import Reply


@cache
def tokenizer():
    return load("bundled")[1]


def told(
    tokens: list[int], cuts: list[int], stops: list[str], ended: str = "length"
) -> tuple[Reply, list]:
    """A reply to which these tokens came in events cut at these places; its deltas."""
    reply = Reply(tokenizer(), stops)
    deltas = []
    bounds = sorted({min(c, len(tokens)) for c in cuts} | {len(tokens)})
    low = 0
    for high in bounds:
        part = tokens[low:high]
        if part:
            logprobs = [TokenLogprobs(t, -1.0, []) for t in part]
            deltas.append(
                reply.take(
                    Event(1, part, ended if high == len(tokens) else None, logprobs=logprobs)
                )
            )
        low = high
    return reply, deltas


TEXTS = st.text(st.sampled_from("ab \nné漢🙂"), min_size=1, max_size=24)


@given(
    TEXTS,
    st.lists(st.integers(0, 40), max_size=6),
    st.lists(st.text(st.sampled_from("ab né漢"), min_size=1, max_size=4), max_size=4),
)
@example("ana", [], ["n", "ana"])
def test_the_text_ends_before_the_first_stop_string(text, cuts, stops):
    tokens = tokenizer()(text, add_special_tokens=False)["input_ids"]
    whole = text_of(tokenizer(), tokens)
    # the first to be complete ends the text
    ends = ((i + len(s), i) for s in stops if (i := whole.find(s)) >= 0)
    at = min(ends, default=(None, None))[1]
    reply, deltas = told(tokens, cuts, stops)
    assert "".join(d.text for d in deltas) == (whole if at is None else whole[:at])
    assert [d.finish for d in deltas if d.finish] == ["length" if at is None else "stop"]
    entries = [x.token for d in deltas for x in d.logprobs]
    assert entries == tokens[: len(entries)]  # in order, none twice
    assert [o for d in deltas for o in d.offsets] == offsets_of(tokenizer(), tokens)[: len(entries)]
    if at is None:
        assert len(entries) == len(tokens) == reply.tokens
    else:
        assert len(text_of(tokenizer(), entries)) >= at and reply.tokens <= len(tokens)
        assert any(s in text_of(tokenizer(), tokens[: reply.tokens]) for s in stops)


@given(
    TEXTS,
    st.lists(st.text(st.sampled_from("ab né漢"), min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_nothing_is_given_out_that_a_stop_string_would_take_back(text, stops):
    """One token at a time gives the same as all at once."""
    tokens = tokenizer()(text, add_special_tokens=False)["input_ids"]
    _, single = told(tokens, list(range(len(tokens))), stops)
    _, at_once = told(tokens, [], stops)
    assert "".join(d.text for d in single) == at_once[-1].text


def test_an_end_token_has_no_text_and_counts():
    tokens = tokenizer()("ab", add_special_tokens=False)["input_ids"]
    reply, deltas = told([*tokens, tokens[0]], [1], [], "eos")
    assert (
        "".join(d.text for d in deltas) == "ab"
        and deltas[-1].finish == "stop"
        and reply.tokens == len(tokens) + 1
    )


def test_after_the_end_nothing_comes():
    reply, _ = told(tokenizer()("a b a", add_special_tokens=False)["input_ids"], [], ["b"])
    assert reply.take(Event(1, [70, 71])).text == "" and reply.finish == "stop"
