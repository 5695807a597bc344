"""Plain decoding is a drafter that says that it never drafts; nothing asks for its type."""

from __future__ import annotations

import pytest
from support import tiny

from longdraft import generate
from longdraft.core import reject
from longdraft.drafters import Drafter, PlainDecoding
from longdraft.drafters.forced import Forced, with_forced
from longdraft.engine.session import Session
from longdraft.errors import InputError


class Named(PlainDecoding):
    """Plain decoding by another name."""


class Silent(PlainDecoding):
    """Says that it drafts, as every other drafter."""

    never_drafts = False


class Constrained:
    """As much of a sampler as `with_forced` reads."""

    constrained = True


def stays_plain(drafter: Drafter) -> bool:
    """Whether sessions, constraints and verifiers take it for plain decoding."""
    lm = tiny.target("llama")
    with Session(lm, drafter, 1, 32) as session:
        session.submit(tiny.prompts(9)[0], 2)
        session.step()
        kept = session._drafters.steps is drafter
    assert kept is (with_forced(drafter, Constrained()) is drafter)
    assert kept is not isinstance(with_forced(drafter, Constrained()), Forced)
    try:
        generate(lm, tiny.prompts(9), drafter, verify=reject, max_new_tokens=2)
    except InputError:
        assert not kept
    return kept


@pytest.mark.parametrize("plain", [PlainDecoding, Named])
def test_plain_decoding_stays_plain(plain):
    assert plain.never_drafts and stays_plain(plain())


@pytest.mark.parametrize("drafter", [Drafter, Silent])
def test_a_drafter_is_not_taken_for_plain_decoding(drafter):
    assert not drafter.never_drafts and not stays_plain(drafter())
