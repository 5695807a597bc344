"""fill's drafts follow the text or recycle's table, whichever has been right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from longdraft_vllm import fill as module
from longdraft_vllm.fill import Fill

from longdraft.drafters.fill.continuations import Continuations

TEXT = [1, 2, 3, 4, 5, 9, 1, 2, 3]


def drafter(**options) -> Fill:
    return Fill(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=4),
            model_config=SimpleNamespace(max_model_len=50),
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            additional_config={"longdraft": options | {"pace": "off"}},
        )
    )


def drafts(d: Fill, request: str, text: list[int]) -> list[int]:
    return d.chains({request: np.array(text)})[request]


def test_a_long_match_is_copied():
    d = drafter()
    d.read("a", TEXT, [(3, 7)])
    assert drafts(d, "a", TEXT) == [4, 5, 9, 1]


def test_where_the_text_says_nothing_the_table_goes_on():
    d = drafter()
    d.read("a", [1, 2, 3], [(3, 6)])
    assert drafts(d, "a", [1, 2, 3]) == [6]
    d.read("a", [], [(6, 2)])
    assert drafts(d, "a", [1, 2, 3]) == [6, 2, 3, 6]  # after the 2 the text goes on, then the table


def check_the_wrong_source_is_left() -> None:
    """4 has followed the 3 in the text, and 7 always follows it now, as the table says."""
    d = drafter()
    d.read("a", TEXT, [(3, 7)])
    text = np.array(TEXT)
    copies = Continuations(d.texts.drafters({"a": text})["a"])
    assert d.drafted("a", text, copies).chain[0] == 4
    for _ in range(12):
        module.learn(d.drafted("a", text, copies), np.array([*TEXT, 7]))
    made = d.drafted("a", text, copies)
    assert [vote.token for vote in made.votes[0]] == [4, 7]
    assert made.chain[0] == 7


def test_the_wrong_source_is_left():
    check_the_wrong_source_is_left()


def test_votes_that_are_never_compared_are_noticed(monkeypatch):
    """The planted fault."""
    monkeypatch.setattr(module, "learn", lambda made, text: None)
    with pytest.raises(AssertionError):
        check_the_wrong_source_is_left()


def test_requests_do_not_share_what_was_learned():
    d = drafter()
    for request in "ab":
        d.read(request, TEXT, [(3, 7)])
    drafts(d, "a", TEXT)
    drafts(d, "a", [*TEXT, 7])
    assert d.copying["a"]._by_bucket and "b" not in d.copying
    d.keep(["b"])
    drafts(d, "b", TEXT)
    assert d.copying.keys() == d.recycling.keys() == d.made.keys() == {"b"}


def test_options_are_refused():
    with pytest.raises(ValueError, match="Fill has no option nodes"):
        drafter(nodes=3)
