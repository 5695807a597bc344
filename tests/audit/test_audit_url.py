"""The audit of a server finds planted faults, calls a tie a tie, and passes what is lossless."""

from __future__ import annotations

import json
from math import log

import pytest
import torch
from support.audited_server import CLOSE, audited_server, greedy, scores

from longdraft.audit.remote.differences import FLOOR, first_difference, movement, tolerance_of
from longdraft.audit.remote.endpoint import Endpoint, EndpointReply, ScoredToken, reply_of
from longdraft.audit.remote.frequencies import by_rank, by_text, p_value
from longdraft.audit.remote.passages import passages
from longdraft.cli import main
from longdraft.cli.audit_url import BOOK, off_fields


def audit(capsys, url: str, *more: str, off: str = "speculative=false") -> tuple[int, dict]:
    """The exit status and the record of an audit with small texts."""
    words = ["audit", "--url", url, "--lengths", "100,200", "--tokens", "40", "--json"]
    words += ["--at-once", "1,4", *(["--off", off] if off else []), *more]
    status = main(words)
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.full
@pytest.mark.parametrize("form", ["legacy", "content"])
def test_a_lossless_server_passes(form, capsys):
    with audited_server(form=form) as url:
        status, found = audit(capsys, url, "--samples", "40")
    assert status == 0 and found["faults"] == found["unjudged"] == found["ties"] == 0
    assert found["model"] == "toy" and len(found["greedy"]) == 12
    assert len(found["sampled"]) == 2 * 4 + 2 and not found["notes"]


@pytest.mark.full
def test_chats_are_audited(capsys):
    with audited_server("near best") as url:
        status, found = audit(capsys, url, "--samples", "0", "--chat")
    assert status == 1 and found["faults"]


def test_a_tie_is_a_tie(capsys):
    with audited_server("tie") as url:
        status, found = audit(capsys, url, "--samples", "0")
    assert status == 0 and found["faults"] == 0
    ties = [r for r in found["greedy"] if r["verdict"] == "tie"]
    assert ties and all(0 < r["gap"] < 2 * CLOSE for r in ties)
    assert found["tolerance"] == FLOOR


def test_without_a_tolerance_the_tie_is_a_fault(capsys):
    with audited_server("tie") as url:
        status, found = audit(capsys, url, "--samples", "0", "--tolerance", "0")
    assert status == 1 and found["faults"]


def test_a_greedy_fault_is_found_and_located(capsys):
    with audited_server("near best") as url:
        status, found = audit(capsys, url, "--samples", "0")
    text = passages([("", BOOK.read_text(encoding="utf-8"))], [100, 200])[0].text
    assert status == 1
    row = found["greedy"][0]
    at = 0
    plain = scores(text)
    while (letter := greedy(plain, "near best")) == greedy(plain, ""):
        text += letter
        plain = scores(text)
        at += 1
    gap = plain[greedy(plain, "")] - plain[letter]
    assert (row["byte"], row["token"], row["answer"][0]) == (at, at, letter)
    assert row["gap"] == pytest.approx(gap)


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("fault", ["no correction", "eager"])
def test_a_sampling_fault_is_found(fault, capsys):
    with audited_server(fault) as url:
        status, found = audit(capsys, url, "--samples", "64", "--lengths", "100")
    assert status == 1
    wrong = {t["test"] for t in found["sampled"] if t["verdict"] == "fault"}
    assert "ranks: all texts" in wrong
    assert all(r["verdict"] == "equal" for r in found["greedy"])


def test_two_addresses(capsys):
    with audited_server("near best") as url, audited_server() as plain:
        status, found = audit(capsys, url, "--samples", "0", "--baseline", plain, off="")
    assert status == 1 and found["baseline"] == plain


def test_texts_that_do_not_fit_are_skipped(capsys):
    with audited_server() as url:
        status, found = audit(capsys, url, "--samples", "0", "--lengths", "100,1000")
    assert status == 0
    assert [s["text"] for s in found["skipped"]] == [
        "great-expectations.txt, 1000 tokens",
        "great-expectations.txt repeated, 1000 tokens",
    ]


def test_without_log_probabilities_nothing_is_judged(capsys):
    with audited_server("near best", "none") as url:
        status, found = audit(capsys, url)
    assert status == 2 and found["unjudged"] and not found["faults"]
    assert "no log-probabilities" in found["notes"][0] and not found["sampled"]


def test_the_table_names_the_fault(capsys):
    with audited_server("near best") as url:
        words = ["audit", "--url", url, "--off", "speculative=false", "--samples", "0"]
        assert main([*words, "--lengths", "100", "--tokens", "20", "--at-once", "1"]) == 1
    out = capsys.readouterr().out
    assert "greedy, 1 at once" in out and "goes on with" in out and "not judged" in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--url", "http://127.0.0.1:9"], "--baseline or --off"),
        (["--url", "http://127.0.0.1:9", "--off", "x=1"], "no answer from"),
        (["--url", "here", "--off", "x=1"], "is no address"),
        (["--url", "http://127.0.0.1:9", "--off", "x"], "is not FIELD=VALUE"),
        (["--url", "http://127.0.0.1:9", "--off", "x=1", "--lengths", "0"], "--lengths 0"),
        (["--url", "http://127.0.0.1:9", "--off", "x=1", "--error-rate", "1"], "--error-rate"),
        ([], "there is no prompt"),
    ],
)
def test_bad_input(words, reason, capsys):
    assert main(["audit", *words]) == 2
    assert reason in capsys.readouterr().err


def test_an_interrupted_audit_prints_what_is_known(capsys, monkeypatch):
    asked = Endpoint.ask

    def ask(self, prompt, new, temperature=0.0, seed=None, top=None):
        if temperature and new > 2:
            raise KeyboardInterrupt
        return asked(self, prompt, new, temperature, seed, top)

    monkeypatch.setattr(Endpoint, "ask", ask)
    with audited_server() as url:
        status, found = audit(capsys, url, "--samples", "5")
    assert status == 130 and found["interrupted"] and len(found["greedy"]) == 12


def scored(text: str, *tops: dict[str, float], finish: str = "length") -> EndpointReply:
    """A reply whose tokens are the first of each list."""
    tokens = []
    starts = []
    at = 0
    for top in tops:
        found = sorted(((t.encode(), lp) for t, lp in top.items()), key=lambda e: -e[1])
        tokens.append(ScoredToken(*found[0], found))
        starts.append(at)
        at += len(found[0][0])
    return EndpointReply(text.encode(), finish, tokens, starts, None)


def silent(text: str) -> EndpointReply:
    return EndpointReply(text.encode(), "length", None, [], None)


def test_differences_are_located_in_tokens():
    plain = scored("the cat", {"the": -0.1, "th": -2.5}, {" cat": -0.5, " car": -0.75, " c": -3.0})
    found = first_difference(plain, silent("the car"))
    assert found and (found.offset, found.token, found.gap) == (6, 1, 0.25)
    assert found.verdict(0.3) == "tie" and found.verdict(0.2) == "fault"
    unlisted = first_difference(plain, silent("the dog"))
    assert unlisted and unlisted.bound and unlisted.gap == pytest.approx(2.4)
    assert unlisted.verdict(1.0) == "fault" and unlisted.verdict(3.0) == "unjudged"
    assert first_difference(plain, silent("the cat")) is None


def test_another_spelling_before_the_difference_is_considered():
    plain = scored("ab!", {"a": -0.5, "ab": -0.505}, {"b": -0.1}, {"!": -0.1, "?": -5.0})
    found = first_difference(plain, silent("ab?"))
    assert found and found.gap == pytest.approx(0.005)


def test_an_early_end_is_located():
    plain = scored("ab", {"a": -0.1}, {"b": -0.5, "</s>": -0.7})
    found = first_difference(plain, silent("a"))
    assert found and found.gap == pytest.approx(0.2)


def test_the_tolerance_follows_plain_decoding():
    one = scored("a", {"a": -0.5, "b": -0.6})
    two = scored("a", {"a": -0.5, "b": -0.65})
    assert movement(one, two) == pytest.approx(0.05)
    assert tolerance_of([0.05], [0.03]) == pytest.approx(0.1)
    assert tolerance_of([0.0], [0.2]) == pytest.approx(0.2)
    assert tolerance_of([], []) == FLOOR


def test_tokens_that_are_parts_of_characters():
    entries = [
        {"token": "�", "bytes": [0xC3], "logprob": -0.1, "top_logprobs": []},
        {"token": "�", "bytes": [0xA9], "logprob": -0.1, "top_logprobs": []},
    ]
    reply = reply_of({"choices": [{"text": "é", "logprobs": {"content": entries}}]})
    assert reply.starts == [0, 1] and reply.tokens and reply.tokens[1].text == b"\xa9"


def test_the_probability_of_a_statistic():
    assert p_value(3.841459, 1) == pytest.approx(0.05, abs=1e-6)
    assert p_value(18.307038, 10) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.full
def test_few_lossless_servers_fail():
    """At an error rate of 5% for a test, 200 lossless servers fail about 10 times."""
    noise = torch.Generator().manual_seed(3)
    failed = {"ranks": 0, "texts": 0}
    p = torch.tensor([0.5, 0.25, 0.15, 0.1])
    tops = [(b"%d" % i, log(x)) for i, x in enumerate(p.tolist())]
    for _ in range(200):
        draws = torch.multinomial(p, 400, replacement=True, generator=noise).tolist()
        tokens = [ScoredToken(*tops[i], tops[:3]) for i in draws]
        ranks = by_rank([EndpointReply(b"", None, tokens, [], None)], 3)
        texts = by_text([b"%d" % i for i in draws[:200]], [b"%d" % i for i in draws[200:]])
        assert ranks and texts
        failed["ranks"] += ranks.p < 0.05
        failed["texts"] += texts.p < 0.05
    assert all(2 <= count <= 20 for count in failed.values()), failed


def test_fields_that_turn_speculation_off():
    assert off_fields("speculative=false") == {"speculative": False}
    assert off_fields("speculative.n_max=0") == {"speculative.n_max": 0}
    assert off_fields("extra.draft=0") == {"extra": {"draft": 0}}
    assert off_fields("method=plain") == {"method": "plain"}
