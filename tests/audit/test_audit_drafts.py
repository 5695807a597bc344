"""The audit of a server reads which drafts the server reports, and says where it saw none."""

from __future__ import annotations

import json

import pytest
from support.audited_server import audited_server

from longdraft.audit.remote.endpoint import SAMPLING, Endpoint, EndpointReply, ScoredToken, reply_of
from longdraft.audit.remote.frequencies import by_rank
from longdraft.audit.remote.passages import passages
from longdraft.cli import main
from longdraft.cli.audit_url import BOOK
from longdraft.errors import InputError


def audit(capsys, url: str, samples: int = 0) -> tuple[int, dict]:
    """The exit status and the record of an audit with one length."""
    words = ["audit", "--url", url, "--off", "speculative=false", "--lengths", "100"]
    words += ["--tokens", "20", "--at-once", "1", "--samples", str(samples), "--json"]
    status = main(words)
    return status, json.loads(capsys.readouterr().out)


def test_reported_drafts_are_counted(capsys):
    with audited_server(form="content", drafts="told") as url:
        status, found = audit(capsys, url)
    assert status == 0 and not found["notes"]
    assert found["drafts"]["plain"] == {"answers": 8, "reporting": 8, "drafted": 0, "accepted": 0}
    assert found["drafts"]["greedy"] == {
        "answers": 4,
        "reporting": 4,
        "drafted": 80,
        "accepted": 40,
    }


@pytest.mark.parametrize(
    ("drafts", "reason"),
    [("always", "speculation was not off"), ("never", "no speculation was audited")],
)
def test_a_server_compared_with_itself_does_not_pass(drafts, reason, capsys):
    with audited_server(form="content", drafts=drafts) as url:
        status, found = audit(capsys, url)
    assert all(r["verdict"] == "equal" for r in found["greedy"])
    assert status == 2 and reason in found["notes"][0]


def test_a_server_that_reports_no_drafts_at_all_can_pass(capsys):
    with audited_server(form="content") as url:
        status, found = audit(capsys, url)
    assert status == 0 and found["drafts"]["greedy"]["reporting"] == 0


def test_faults_come_before_doubts(capsys):
    with audited_server("near best", "content", "never") as url:
        status, _ = audit(capsys, url)
    assert status == 1


def test_the_table_is_followed_by_the_drafts(capsys):
    with audited_server(form="content", drafts="told") as url:
        words = ["audit", "--url", url, "--off", "speculative=false", "--samples", "0"]
        assert main([*words, "--lengths", "100", "--tokens", "20", "--at-once", "1"]) == 0
    assert "80 (40) in 4 answers greedy" in capsys.readouterr().out


@pytest.mark.full
def test_requests_with_log_probabilities_may_go_without_drafts(capsys):
    with audited_server(form="content", drafts="only without log-probabilities") as url:
        status, found = audit(capsys, url, 30)
    assert status == 0
    assert any("tests by rank say nothing" in note for note in found["notes"])


@pytest.mark.full
def test_drafted_tokens_without_log_probabilities_are_left_out(capsys):
    with audited_server(form="content", drafts="bare") as url:
        status, found = audit(capsys, url, 30)
    assert status == 0
    assert "960 of 1920 sampled tokens have no probabilities" in found["notes"][0]
    ranks = {t["control"]: t["count"] for t in found["sampled"] if "all texts" in t["test"]}
    assert ranks == {True: 1920, False: 960}


def test_results_are_printed_when_a_server_dies(capsys, monkeypatch):
    asked = Endpoint.ask

    def ask(self, prompt, new, temperature=0.0, seed=None, top=None):
        if temperature and new > 2:
            raise InputError("no answer from it: it died")
        return asked(self, prompt, new, temperature, seed, top)

    monkeypatch.setattr(Endpoint, "ask", ask)
    with audited_server("near best") as url:
        status, found = audit(capsys, url, 5)
    assert status == 1 and found["faults"] and "it died" in found["ended_early"]
    with audited_server() as url:
        status, found = audit(capsys, url, 5)
    assert status == 2 and len(found["greedy"]) == 4


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("asked", [True, False])
def test_a_default_penalty_is_turned_off(asked, capsys, monkeypatch):
    """It changes what is sampled, and not the reported probabilities."""
    if not asked:
        sampling = tuple({"top_p": 1.0} for _ in SAMPLING)
        monkeypatch.setattr("longdraft.audit.remote.endpoint.SAMPLING", sampling)
    with audited_server(form="content", drafts="told", penalty=1.4) as url:
        status, found = audit(capsys, url, 30)
    verdicts = {t["verdict"] for t in found["sampled"] if t["control"]}
    assert (status, verdicts) == ((0, {"ok"}) if asked else (2, {"unjudged"}))


def test_drafts_as_servers_report_them():
    told = {"drafted_tokens": 7, "accepted_draft_tokens": 3}
    vllm = {"num_draft_tokens": 7, "num_accepted_draft_tokens": 3}
    answers = [
        ({"usage": {"completion_tokens_details": told}}, (7, 3)),
        ({"metrics": {"speculative_decoding": vllm}}, (7, 3)),
        ({"timings": {"draft_n": 7, "draft_n_accepted": 3}}, (7, 3)),
        ({"timings": {"predicted_n": 9}}, (0, 0)),
        ({"metrics": None, "usage": {"completion_tokens_details": None}}, None),
    ]
    for answer, drafts in answers:
        assert reply_of({"choices": [{"text": "a"}], **answer}).drafts == drafts


def test_a_whole_character_is_its_last_token():
    """llama-server shows the last token of a character as the character, with its own alternatives
    as they are.
    """
    top = [(b"\x9d", -0.1), (b"\x9c", -2.4)]
    token = ScoredToken("\u201d".encode(), -0.1, top)
    other = ScoredToken(b"\x9c", -2.4, top)
    replies = [EndpointReply(b"", None, [token] * 180 + [other] * 20, [], None)]
    found = by_rank(replies, 2)
    assert found and found.p > 0.1 and "best token 180 times" in found.detail


def test_samples_follow_phrases_that_drafts_can_copy():
    made = passages([("book", BOOK.read_text(encoding="utf-8"))], [100, 400])
    phrases = [p for p in made if p.sampled]
    assert len(made) == 6 and len(phrases) == 2
    for passage in phrases:
        assert passage.length == 100
        beginning = passage.text[:30]
        assert passage.text.count(beginning) >= 6
        assert passage.text[-12:] in passage.text[:60]


def test_samples_are_drawn_after_phrases_first(capsys):
    with audited_server(form="content") as url:
        words = ["audit", "--url", url, "--off", "speculative=false", "--lengths", "100,200"]
        main([*words, "--tokens", "4", "--at-once", "1", "--samples", "4", "--json"])
    tests = [t["test"] for t in json.loads(capsys.readouterr().out)["sampled"]]
    ranks = [test.partition(": ")[2] for test in tests if "all texts" not in test]
    name = BOOK.name
    assert ranks[:4] == [
        f"{name} phrase 1",
        f"{name} phrase 2",
        f"{name}, 100 tokens",
        f"{name} repeated, 100 tokens",
    ]
    assert not any("200 tokens" in test for test in tests)
