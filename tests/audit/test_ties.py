"""What an audit may excuse as rounding, and how it tells too many ties."""

from __future__ import annotations

from math import comb

import pytest
import torch
from support import broken, tiny
from support.broken import plant_verifier
from test_audit import GOOD, N, run

from longdraft import Sampler
from longdraft.audit.audit_log import AuditLog, sentences
from longdraft.audit.audit_plan import AuditPrompt, DecodingWay, ways
from longdraft.audit.lossless_audit import Audit
from longdraft.audit.ties import FALSE_ALARM, Replay, default_tolerance, most_ties, tail_probability
from longdraft.models.lm import LM
from longdraft.ops import native


def half(model: str, native: bool) -> LM:
    lm = LM(tiny.stock(model, dtype=torch.bfloat16), model)
    lm.backend = lm.backend if native else lm.eager
    return lm


@pytest.mark.each_value
@pytest.mark.skipif(native.library() is None, reason="the package was built without a C++ compiler")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", GOOD)
def test_where_passes_are_exact_nothing_is_tolerated_and_nothing_is_found(name, dtype):
    """New tokens' keys and values included: they too are plain decoding's bits."""
    lm = tiny.target("llama") if dtype == "float32" else half("llama", True)
    assert default_tolerance(lm) == 0
    prompts = [AuditPrompt("p", tiny.prompts(70)[0], N)]
    runs = run(Audit(lm, lambda: GOOD[name](lm), prompts, ways(None, 1, 3), default_tolerance(lm)))
    assert all((r["tokens"], r["differences"], r["control_tokens"]) == (N, 0, 0) for r in runs)


def test_what_ties_by_default():
    assert (
        default_tolerance(tiny.target("deepseek"))
        == default_tolerance(tiny.target("llama-torch"))
        == 1e-3
    )
    assert (
        default_tolerance(half("deepseek", True)) == default_tolerance(half("llama", False)) == 0.25
    )


def totals(lm: LM, make, tokens: int, verify=None) -> dict:
    """An audit's record, by default tolerance."""
    prompts = [AuditPrompt(f"p{i}", p, tokens) for i, p in enumerate(tiny.prompts(70, 31))]
    job = Audit(lm, lambda: make(lm), prompts, [DecodingWay(Sampler(), 0)], 0.25, verify)
    log = AuditLog(None, {}, 2, False)
    for r in run(job):
        log.add(r)
    return log.record()


@pytest.mark.full
def test_ties_by_rounding_are_as_many_as_the_controls():
    """In bfloat16 by torch a pass of one token rounds otherwise than wider ones; random weights
    make ties common.
    """
    found = totals(half("llama", False), GOOD["vegas"], 100)
    assert found["failures"] == 0 and not found["too_many_ties"]
    assert (
        found["ties"] > 0
        and found["control_ties"] > 0
        and found["control_tokens"] == found["tokens"] == 200
    )
    assert found["tie_rate"] == found["ties"] / 200 <= found["tie_bound"] < 0.25
    assert found["control_rate"] == found["control_ties"] / 200
    assert "would be too many" in sentences(found, 0.25)[-2]


@pytest.mark.full
@pytest.mark.parametrize(
    "fault", ["drafts are favored by a little", "drafts near the best are accepted"]
)
@pytest.mark.weekly
def test_what_hides_behind_ties_is_given_away_by_their_number(fault, monkeypatch):
    """All of it lies within the tolerance. (That a lenient verifier accepts what its own pass did
    not choose is not looked at where a verifier is given.)
    """
    lm = half("gpt-oss", False)
    verifier = broken.lenient
    honest = totals(lm, GOOD["vegas"], 40)
    assert (honest["failures"], honest["too_many_ties"]) == (0, False)
    if "favored" in fault:  # the control must not be favored too
        monkeypatch.setattr(Replay, "grow", lambda self, tree, seqs, limits: tree)
        broken.favored(monkeypatch)
        verifier = None
    found = totals(lm, GOOD["vegas"], 200, verifier)
    assert found["failures"] == 0 and found["ties"] >= 20 and found["too_many_ties"]
    assert "TOO MANY" in sentences(found, 0.25)[-2]
    broken.caught(fault, "the rate of ties")


@pytest.mark.full
def test_a_lenient_verifier_is_flagged_by_what_its_own_pass_says(monkeypatch):
    """Though the tolerance would excuse every token of it, and after the first of them."""
    plant_verifier("match", broken.lenient)(monkeypatch)
    found = totals(half("gpt-oss", False), GOOD["vegas"], 60)
    assert found["failures"] == 2 and all(
        "did not choose" in r["found"][-1]["why"] for r in found["runs"]
    )


def exactly(n: int, k: int, p: float) -> float:
    return comb(n, k) * p**k * (1 - p) ** (n - k)


@pytest.mark.parametrize(("tokens", "control"), [(200, 200), (300, 120), (60, 400)])
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.05, 0.2])
def test_the_false_alarm_rate_of_the_bound(tokens, control, rate):
    """Method and control tie with the same probability: an alarm is rarer than stated, by
    enumeration.
    """
    alarm = 0.0
    for c in range(control + 1):
        most = most_ties(tokens, c, control)
        alarm += exactly(control, c, rate) * sum(
            exactly(tokens, k, rate) for k in range(most + 1, tokens + 1)
        )
    assert alarm < FALSE_ALARM


def test_the_bound_on_ties():
    # 20 of 720 where the control has none
    assert most_ties(720, 0, 720) == 19 and most_ties(10, 0, 10) == 10
    # what a verifier that accepts within 0.25 was once passed with
    assert most_ties(720, 5, 720) < 37
    # significance alone would forbid a little more than 1200
    assert most_ties(100_000, 1000, 100_000) == 2000
    found = [most_ties(720, c, 720) for c in range(100)]
    assert found == sorted(found) and most_ties(720, 720, 720) == 720
    assert tail_probability(20, 0, 0.5) == pytest.approx(0.5**20) and tail_probability(
        0, 3, 0.5
    ) == pytest.approx(1)
