"""The audit can fail: it flags every planted fault that changes a text, and finds nothing where
nothing is wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support import broken, tiny
from support.broken import plant_verifier, reject_with
from support.checks import PENALTY
from support.listed import BUILD, THREE, case
from support.planted import APART, triforce
from support.planted import PLANTED as EVERY

from longdraft import InputError, Sampler, match
from longdraft.audit.audit_log import AuditLog, sentences
from longdraft.audit.audit_plan import AuditPrompt, DecodingWay, ways, windows
from longdraft.audit.lossless_audit import Audit
from longdraft.audit.ties import Replay
from longdraft.cli import main
from longdraft.core.verify import Verdict
from longdraft.drafters import Drafter, Hierarchical, PlainDecoding, SelfDrafter
from longdraft.models.lm import LM
from longdraft.ops import native
from longdraft.views import Full, Guided, SinkWindow

N = 24


def chain(t):
    return SelfDrafter(t, Full(), [1] * 3)


def tree(t):
    return SelfDrafter(t, Guided(0.07, 16), [3, 4, 4])


def levels(t):
    return Hierarchical(t, Guided(0.07, 24), SelfDrafter(t, SinkWindow(2, 0.07, 8), [1, 1]), 4)


def audit(
    make, model="llama", chosen=None, tolerance=1e-3, verify=None, lengths=(70, 31), new=N
) -> Audit:
    lm = tiny.target(model)
    prompts = [AuditPrompt(f"p{i}", p, new) for i, p in enumerate(tiny.prompts(*lengths))]
    return Audit(
        lm,
        lambda: make(lm),
        prompts,
        ways(None, 1, 3) if chosen is None else chosen,
        tolerance,
        verify,
    )


def run(job: Audit, known=lambda index, way: False) -> list[dict]:
    job.check()
    return list(job.run(lambda n, what: None, known))


COMPARED = (
    "full view",
    "vegas tree",
    "triforce by itself",
    "triforce",
    "vegas",
    "lookup",
    "sd",
    "longspec",
)
GOOD = {"plain": lambda t: PlainDecoding()} | {name: BUILD[name] for name in COMPARED}


@pytest.mark.full
@pytest.mark.parametrize(
    "name,model",
    [
        case(n, m, id=f"{n}-{m}", daily=m == "llama" or n in THREE)
        for m in ("llama", "gpt-oss")
        for n in GOOD
    ]
    + [
        case("vegas tree", m, id=f"vegas tree-{m}", daily=True) for m in ("deepseek", "qwen3.5")
    ],  # no values; states
)
def test_nothing_is_found_where_nothing_is_wrong(name, model):
    runs = run(
        audit(GOOD[name], model, [*ways(None, 1, 3), DecodingWay(PENALTY, 5)], lengths=(70,))
    )
    assert len(runs) == 3
    assert all((r["tokens"], r["differences"], r["failures"]) == (N, 0, 0) for r in runs)
    if name in ("full view", "vegas tree"):
        assert sum(r["accepted"] for r in runs) > 0


# fault: (plant, drafter, model)
PLANTED = {
    "one draw per path (TokenSwift)": (
        plant_verifier("match", broken.per_path_draws),
        tree,
        "gpt-oss",
    ),
    "penalty frozen at the root (TokenSwift)": (broken.frozen_penalty, chain, "llama"),
    "position off by one": (broken.wrong_position, chain, "llama"),
    "a node sees its sibling": (broken.sees_sibling, tree, "gpt-oss"),
    "kept slots shifted by one": (broken.keep_shifted, tree, "gpt-oss"),
    "kept slots not moved": (broken.keep_in_place, tree, "gpt-oss"),
    "length off by one after acceptance": (broken.length_off, chain, "llama"),
    "rollback leaves one slot": (broken.rollback_off, levels, "llama"),
    "draft overwrites committed slots": (broken.corrupting_draft, chain, "llama"),
    "the middle level counts as verified (TriForce)": (
        plant_verifier("match", broken.unverified),
        triforce,
        "llama",
    ),
    "the middle level's slots stay committed (TriForce)": (broken.middle_stays, triforce, "llama"),
    "the middle level's keys stay (TriForce)": (broken.middle_keys_stay, triforce, "llama"),
    "noise by place in the batch": (broken.noise_by_place, chain, "llama"),
    "drafts near the best are accepted": (plant_verifier("match", broken.lenient), tree, "llama"),
    "drafts are favored by a little": (broken.favored, tree, "llama"),
    "the drafter zeroes slots of the prompt": (broken.zeroed_prompt, chain, "llama"),
    "the drafter zeroes slots of the prompt once": (broken.zeroed_once, chain, "llama"),
    "the drafter turns the prompt's keys": (broken.turned_prompt, chain, "llama"),
    "the drafter changes the rows' seeds": (broken.other_seeds, chain, "llama"),
    "the drafter changes the sampler": (broken.other_sampler, chain, "llama"),
    "the drafter changes the end tokens": (broken.other_ends, chain, "llama"),
    "the drafter edits the rows' tokens": (broken.other_tokens, chain, "llama"),
}


@pytest.mark.parametrize(  # test_broken.py has all of them in `make test`
    "fault",
    [
        pytest.param(name, marks=[pytest.mark.full] if i % 3 else [])
        for i, name in enumerate(PLANTED)
    ],
)
@pytest.mark.whole
def test_a_planted_fault_is_flagged(fault, monkeypatch):
    plant, make, model = PLANTED[fault]
    plant(monkeypatch)
    assert (
        failures(
            audit(make, model, [*ways(None, 1, 3), DecodingWay(PENALTY, 5)], lengths=(70, 31, 90))
        )
        > 0
    )
    broken.caught(fault, "audit")


REJECTING = {
    "ratio by tree slot (LongSpec)": "ratio by tree slot",
    "redraws from p, not the residual (TriForce)": "redraws from p",
    "q forced to 1": "q forced to 1",
    "q keeps a refused token": "q keeps a refused token",
    "ratio test of a child that is no draw": "tests a child that is no draw",
    "a coin of 0 accepts the impossible": "coin 0 accepts anything",
}
# What no comparison with plain decoding can show: who else must.
UNSEEN = {
    "end token inside a branch missed": "an audit decodes all its tokens, past every end token",
    "view counts slots twice": "drafts are worse and the text is right",
    "one noise for every depth of a block": "drafts are worse and the text is right",
    "a block reads features of refused nodes": "drafts are worse and the text is right",
    "the prompt's states are one token late": "drafts are worse and the text is right",
    "an MTP ring keeps refused drafts": "drafts are worse and the text is right",
    "an accepted token's feature is lost": "drafts are worse and the text is right",
    "a copied node is attributed to the drafter": "drafts are worse and the text is right",
    "a source's chances are never corrected": "drafts are worse and the text is right",
    "a source that was right is taken for certain": "drafts are worse and the text is right",
    "an idle drafter is asked before it caught up": "drafts are worse and the text is right",
    "noise without position": "plain decoding has the same noise",
    "noise of seed + position": "plain decoding has the same noise",
    "top-k children tested as draws (LongSpec)": "drafts for reject, which an audit does not use",
    "draft noise used by two rounds": "drafts for reject, which an audit does not use",
}


def test_every_fault_is_flagged_or_cannot_be_seen():
    faults = {fault.split(" v ")[0] for fault in EVERY} | set(APART)
    assert faults == set(PLANTED) | set(REJECTING) | set(UNSEEN)


@pytest.mark.parametrize("fault", REJECTING)
def test_a_broken_rejection_is_flagged(fault, monkeypatch):
    """(Any rejection is when sampled: it keeps the law and not the tokens.)"""
    twin = reject_with(REJECTING[fault])
    monkeypatch.setattr("longdraft.drafters.step.reject", twin)  # so that drafts keep their law
    assert failures(audit(chain, verify=twin)) > 0
    broken.caught(fault, "audit")


def failures(job: Audit) -> int:
    return sum(r["failures"] for r in run(job))


def test_a_drafter_that_touches_the_prompts_keys_is_flagged_though_the_text_is_right():
    class Scribbler(Drafter):
        def grow(self, tree, seqs, limits):
            seqs.cache.read(1, 0)[0][0, 5, 3] += 1e-6
            return tree

    runs = run(audit(lambda t: Scribbler()))
    assert all((r["tokens"], r["differences"], r["failures"]) == (N, 1, 1) for r in runs)
    assert "changed" in runs[0]["found"][0]["why"]


@pytest.mark.full
def test_a_drafter_that_touches_the_prompts_states_is_flagged():
    class Scribbler(Drafter):
        def grow(self, tree, seqs, limits):
            if int(seqs.length[0]) == 71:  # the prompt's states are still the row's
                next(iter(seqs.cache.states(0).states.values()))[0] += 1e-3
            return tree

    runs = run(audit(lambda t: Scribbler(), "qwen3.5", lengths=(70,)))
    assert "changed" in runs[0]["found"][0]["why"]


@pytest.mark.parametrize(
    ("dtype", "by", "seen"),
    [("float32", 0.01, True), ("float32", 1e-6, False), ("bfloat16", 0.01, False)],
)
def test_a_drafter_that_touches_a_new_tokens_keys_is_flagged_though_the_text_is_right(
    dtype, by, seen
):
    lm = LM(tiny.stock("llama", dtype=getattr(torch, dtype)))

    class Scribbler(Drafter):
        def update(self, seqs, tree, verdict, captured):
            if bool(seqs.done.all()):  # nothing reads it any more
                seqs.cache.read(2, 0)[0][1, 72, 3] += by

    [found] = run(
        Audit(
            lm,
            Scribbler,
            [AuditPrompt("p", tiny.prompts(70)[0], N)],
            [DecodingWay(Sampler(1.0), 3)],
            1e-3,
        )
    )
    assert found["tokens"] == N and [d["position"] for d in found["found"]] == [None] * seen
    assert all("not plain decoding's" in d["why"] for d in found["found"])


def slips(places: set[int]):
    """A verifier that says the target's second choice at these lengths of a text."""

    def verifier(tree, logits, sampler, rows):
        verdict = match(tree, logits, sampler, rows)
        if int(rows.length[0]) not in places:
            return Verdict(
                verdict.path[:, :1], torch.ones_like(verdict.count), verdict.emitted[:, :1]
            )
        second = sampler.scores(logits, tree, rows)[:, 0].topk(2).indices[:, 1:]
        return Verdict(verdict.path[:, :1], torch.ones_like(verdict.count), second)

    return verifier


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "model"),
    [
        (DecodingWay(Sampler(), 0), "llama"),
        (DecodingWay(Sampler(1.0), 4), "llama"),
        (DecodingWay(Sampler(1.0), 4), "qwen3.5"),
    ],
)
def test_a_tie_is_passed_and_what_follows_is_audited(way, model):
    [found] = run(
        audit(chain, model, chosen=[way], tolerance=1e9, verify=slips({75, 80, 93}), lengths=(70,))
    )
    assert (found["tokens"], found["ties"], found["failures"]) == (N, 3, 0)
    assert [d["position"] for d in found["found"]] == [5, 10, 23]
    assert all(d["gap"] == d["top2_gap"] > 0 and d["plain"] != d["method"] for d in found["found"])
    gaps = [d["gap"] for d in found["found"]]
    [strict] = run(
        audit(chain, model, chosen=[way], tolerance=0.0, verify=slips({75, 80, 93}), lengths=(70,))
    )
    # a failure ends the run
    assert (strict["tokens"], strict["ties"], strict["failures"]) == (
        6,
        0,
        1,
    )
    [between] = run(
        audit(chain, model, chosen=[way], tolerance=gaps[0], verify=slips({75}), lengths=(70,))
    )
    assert (between["tokens"], between["ties"]) == (N, 1)


def test_a_token_far_from_the_best_is_no_tie_however_close_the_best_two_are():
    def third(tree, logits, sampler, rows):
        worst = logits[:, 0].argmin(-1, keepdim=True)
        return Verdict(torch.zeros_like(worst), torch.ones_like(worst[:, 0]), worst)

    [found] = run(
        audit(chain, chosen=[DecodingWay(Sampler(), 0)], tolerance=1.0, verify=third, lengths=(70,))
    )
    assert found["failures"] == 1 and found["found"][0]["gap"] is None


def test_ways():
    assert [str(w) for w in ways(None, 2, 7)] == ["greedy", "T=1 seed 7", "T=1 seed 8"]
    assert [str(w) for w in ways(0.0, 2, 7)] == ["greedy"]
    assert [str(w) for w in ways(0.5, 1, 7)] == ["T=0.5 seed 7"]


def test_windows_are_spread_over_a_text_and_give_all_tokens():
    text = list(range(9000))
    found = windows("f", text, 1000, 1100, 1 << 20)  # at most 512 new tokens each
    assert [len(p.tokens) for p in found] == [1000] * 3 and sum(p.new for p in found) == 1100
    assert found[0].tokens[0] == 0 and found[-1].tokens[-1] == 8999
    assert windows("f", text[:50], 1000, 5000, 1 << 20) == [AuditPrompt("f", text[:50], 5000)]
    assert windows("f", text, 1000, 100, 600) == [AuditPrompt("f", text[:500], 100)]


def test_an_interrupted_audit_is_resumed(tmp_path):
    out = tmp_path / "a.json"
    settings = {"method": "full view"}
    job = audit(chain)
    log = AuditLog(out, settings, 4, False)
    log.write()
    count = iter(range(1000))

    def tick(n, what):
        if next(count) == 70:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for r in job.run(tick, log.known):
            log.add(r)
    assert log.record()["complete"] is False and json.loads(out.read_text()) == log.record()
    with pytest.raises(InputError, match="--resume"):
        AuditLog(out, settings, 4, False)
    with pytest.raises(InputError, match="another method"):
        AuditLog(out, {"method": "tree"}, 4, True)
    again = AuditLog(out, settings, 4, True)
    before = len(again.runs)
    for r in run(job, again.known):
        again.add(r)
    assert 0 < before < len(again.runs) == 4
    record = json.loads(out.read_text())
    assert record["complete"] and record["tokens"] == 4 * N and record["failures"] == 0
    assert "no failure" in sentences(record, 1e-3)[-1]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"task": "bench"}', '{"task": "audit"}', '{"task": "audit", "runs": 3}'],
)
def test_a_file_that_is_no_audit_is_left_alone(tmp_path, text):
    out = tmp_path / "a.json"
    out.write_text(text)
    with pytest.raises(InputError, match="is no audit"):
        AuditLog(out, {}, 4, True)
    assert out.read_text() == text


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A tiny model with a tokenizer, and a text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from longdraft.training import tokenizer as bpe

    root = tmp_path_factory.mktemp("audit")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**tiny.BASE, "vocab_size": 320}))
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.25)
    model.save_pretrained(root / "m")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
    model.save_pretrained(root / "flat")  # its best tokens score much alike
    text = " ".join(f"word{i * i % 97} of {i % 13}" for i in range(900))
    for name in ("m", "flat"):
        bpe.save(bpe.train([text], 320), root / name, tiny.BASE["max_position_embeddings"])
    (root / "a.txt").write_text(text)
    (root / "b.txt").write_text(text[300:900])
    return root


def command(place: Path, *words: str, model: str = "m") -> int:
    files = ["--prompt-file", str(place / "a.txt"), "--prompt-file", str(place / "b.txt")]
    shape = ["--tokens", "20", "--prompt-tokens", "90", "--threads", "1"]
    return main(["audit", "-m", str(place / model), *files, *shape, *words])


def test_the_command(place, capsys, tmp_path):
    out = tmp_path / "x.json"
    words = [
        "--method",
        "sd",
        "--random-drafter",
        "-o",
        "gamma=3",
        "--seeds",
        "2",
        "--out",
        str(out),
        "--json",
    ]
    assert command(place, *words) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["tokens"], record["differences"], record["ties"], record["failures"]) == (
        120,
        0,
        0,
        0,
    )
    assert record == json.loads(out.read_text()) and record["drafter"] == "random, seed 0"
    assert record["exact"] is record["native"]
    assert all(
        r["mean_acceptance_length"] >= 1 and 0 < r["distinct_3"] <= 1 for r in record["runs"]
    )
    assert str(place) not in json.dumps(record)
    assert command(place, *words[:-1], "--resume") == 0
    shown = capsys.readouterr().out
    assert "120 tokens compared: no tie, no failure." in shown and "a.txt" in shown


@pytest.mark.full
def test_an_audit_says_where_a_backend_is_not_exact(place, capsys, monkeypatch):
    monkeypatch.setattr("longdraft.backends.native.fits", lambda hf, windows: False)
    assert command(place, "--method", "vegas", "--temperature", "0") == 0
    assert "This backend is not bit-exact" in capsys.readouterr().out


def test_the_command_fails_on_a_fault(place, capsys, monkeypatch):
    broken.wrong_position(monkeypatch)
    assert command(place, "--method", "vegas", "--temperature", "1") == 1
    assert "FAILURES" in capsys.readouterr().out


PLACES = {
    "float32": ["--dtype", "float32"],
    "bfloat16": ["--dtype", "bfloat16"],
    "bfloat16 by torch": ["--dtype", "bfloat16"],
}


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize(
    "where",
    [pytest.param(name, marks=[pytest.mark.full] if "torch" in name else []) for name in PLACES],
)
def test_the_command_fails_on_a_verifier_that_accepts_what_is_near_the_best(
    place, capsys, monkeypatch, where
):
    """At default settings, in float32 and in bfloat16, by the native step and by torch."""
    if "torch" in where:
        monkeypatch.setattr("longdraft.backends.native.fits", lambda hf, windows: False)
    words = [
        "--method",
        "vegas",
        "-o",
        "min_budget=8",
        "--temperature",
        "0",
        "--tokens",
        "60",
        *PLACES[where],
        "--json",
    ]
    assert command(place, *words, model="flat") == 0
    before = json.loads(capsys.readouterr().out)
    assert (before["tolerance"] > 0) == ("torch" in where or native.library() is None)
    assert (before["control_rate"] is None) == (before["tolerance"] == 0)
    plant_verifier("match", broken.lenient)(monkeypatch)
    assert command(place, *words, model="flat") == 1
    assert json.loads(capsys.readouterr().out)["failures"] > 0


@pytest.mark.full
def test_the_command_fails_on_too_many_ties(place, capsys, monkeypatch):
    """The tolerance excuses each; 0.3 is more than is added to what is drafted."""
    broken.favored(monkeypatch)
    monkeypatch.setattr(Replay, "grow", lambda self, tree, seqs, limits: tree)
    # more than sixteen tokens score as close as that
    monkeypatch.setattr("longdraft.audit.passage.KEPT", 320)
    words = [
        "--method",
        "vegas",
        "-o",
        "min_budget=8",
        "--temperature",
        "0",
        "--tokens",
        "300",
        "--tolerance",
        "0.3",
    ]
    assert command(place, *words, "--json", model="flat") == 1
    record = json.loads(capsys.readouterr().out)
    assert (
        record["failures"] == 0
        and record["too_many_ties"]
        and record["tie_rate"] > record["tie_bound"] > 0
    )
    assert record["control_rate"] == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--method sd", "--random-drafter"),
        ("--method sd --random-drafter --drafter m", "one of them"),
        ("--method nope", "plain, lookup"),
        ("--method vegas -o gamma=513", "from 1 to 512"),
        ("--tolerance -1", "0 or more"),
        ("--tolerance nan", "0 or more"),
        ("--tokens 9999999", "positions"),
        ("--resume", "--out"),
        ("--dtype int8", "float32 or bfloat16"),
    ],
)
def test_bad_input(place, capsys, words, names):
    assert command(place, *words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and names in err
