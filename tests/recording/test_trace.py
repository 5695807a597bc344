"""Traces say what was drafted, accepted and read; races of two methods have the outputs of
`generate`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from support import tiny
from support.listed import BUILD, each_method_on, exact, read_in_any_parts
from support.tiny import Words

from longdraft import Sampler, Session, generate
from longdraft.drafters import AdaptiveDraft, PlainDecoding
from longdraft.engine.decode_session import DecodeSession
from longdraft.engine.generate import Stats
from longdraft.engine.requests import make_request
from longdraft.prompts.prefix_cache import PrefixCache
from longdraft.proposers import PROPOSERS
from longdraft.recording.race import Race
from longdraft.recording.trace import Lane, Node, Recorder, Round, Trace, edges, new_trace, shown
from longdraft.views.base import View

NEW = 14


def rounds_of(
    model: str, method: str, sampler: Sampler | None = None
) -> tuple[list[Round], list[int], list[int]]:
    """What a recorder says of a decode of one row, its prompt, and its output."""
    lm, [prompt] = tiny.target(model), tiny.prompts(70)
    drafter = BUILD[method](lm)
    stats = Stats()
    session = DecodeSession(lm, [prompt], NEW, sampler or Sampler(), 3, ())
    recorder = Recorder(drafter, stats, Words(), len(prompt), len(prompt) + NEW)
    found = []
    output = []
    for step in session.decode(drafter, stats, watch=recorder):
        found += recorder.rounds()
        output += step.tokens[0]
    return found, prompt, output


@each_method_on("llama")
def test_rounds_say_what_happened(model, method):
    found, _, output = rounds_of(exact(model), method, Sampler(1.0))
    assert [t for r in found for t in r.tokens] == output
    clock = 0.0
    for r in found:
        assert r.accepted == len(r.path) <= len(r.tokens) and clock <= r.at_s - r.draft_s <= r.at_s
        clock = r.at_s
        assert all(-1 <= n.parent < i and n.by in PROPOSERS for i, n in enumerate(r.nodes))
        above = -1
        for node, token in zip(r.path, r.tokens, strict=False):
            assert r.nodes[node].parent == above and r.nodes[node].token == token
            assert r.nodes[node].text.lstrip() == str(token)
            above = node
        if len(r.tokens) > r.accepted:  # the bonus token was not drafted there
            below = [n.token for n in r.nodes if n.parent == above]
            assert r.tokens[-1] not in below
    assert any(r.nodes for r in found) == (method != "plain") and not found[0].nodes


@pytest.mark.parametrize(
    ("method", "names"),
    [
        *((method, {"block"}) for method in ("longspec", "eagle3", "mtp", "dflash")),
        ("sd", {"small model"}),
        ("medusa", {"heads"}),
        ("vegas-reuse", {"model", "n-grams"}),
    ],
)
def test_names_say_what_kind_of_drafter_proposed_a_node(method, names):
    found, *_ = rounds_of("llama", method)
    assert {n.by for r in found for n in r.nodes} == names


def test_names_say_which_drafter_proposed_a_node():
    found, *_ = rounds_of("llama", "vegas-reuse")
    for r in found:
        first = next((i for i, n in enumerate(r.nodes) if n.by == "n-grams"), len(r.nodes))
        assert all(n.by == "n-grams" for n in r.nodes[first:])


def test_a_view_is_shown_in_parts():
    indices = torch.tensor([[[0, 1, 2, 9]], [[0, 8, 9, -1]]])  # two layers
    view = View(indices, torch.tensor([12]), {0: 0, 1: 1})
    assert shown(view, 14, edges(16)) == [100, 50, 50, 0, 0, 0, 0, 0, 50, 100, 0, 0, 100, 100, 0, 0]
    halves = shown(view, 14, torch.tensor([0, 8, 16]))
    assert halves == [25, 58]  # 4 of 16, and 1 + 2 + 4 of 12
    assert len(edges(5000)) == 257 and edges(5000)[[0, -1]].tolist() == [0, 5000]


def test_a_guided_view_is_in_the_trace_and_a_full_one_is_not():
    for method, partial in (("vegas", True), ("lookup", False)):
        found, prompt, _ = rounds_of("llama", method)
        reads = [r.shown for r in found if r.nodes]
        assert reads and all((x is not None) == partial for x in reads)
        for r in found:
            if r.shown is not None:
                assert len(r.shown) == len(prompt) + NEW and r.shown[-1] == 0  # not committed yet
                assert 0 < sum(r.shown) < 100 * len(prompt)


def race(method: str, prefixes: PrefixCache | None = None, seed: int = 3) -> tuple[Race, list[int]]:
    lm, [prompt] = tiny.target("llama"), tiny.prompts(70)
    request = make_request(lm, 200, prompt, NEW, seed, (), Sampler(1.0), None, False)
    lanes = [Lane(method="plain", options={}), Lane(method=method, options={})]
    trace = new_trace(lm, Words(), prompt, NEW, request.sampler, seed, lanes)
    drafters = [PlainDecoding(), AdaptiveDraft(BUILD[method](lm))]
    return Race(lm, Words(), request, drafters, trace, prefixes, chunk=32), prompt


@pytest.mark.each_value
@read_in_any_parts
@pytest.mark.parametrize("method", ["vegas", "longspec", "sd", "vegas-reuse"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_race_has_the_outputs_of_generate(method, cached):
    run, prompt = race(method, PrefixCache(4000, block=16) if cached else None)
    lanes = []
    while not run.over:
        lanes.append((run.step(), [r.clock for r in run._runners]))
    [want] = generate(
        tiny.target("llama"), [prompt], max_new_tokens=NEW, sampler=Sampler(1.0), seed=3, eos=()
    )
    for lane in run.trace.lanes:
        assert [t for r in lane.rounds for t in r.tokens] == want and lane.ended == "length"
    assert run.trace.equal is True
    read = [(lane, done) for (lane, done), _ in lanes if not isinstance(done, Round)]
    assert read == [
        (0, 32),
        (0, 64),
        (0, 70),
        *([(1, 70)] if cached else [(1, 32), (1, 64), (1, 70)]),
    ]
    assert Trace.model_validate_json(run.trace.model_dump_json()) == run.trace


def test_the_lane_whose_clock_is_behind_takes_the_next_step():
    run, _ = race("vegas")
    while any(not r.ready for r in run._runners):
        run.step()
    while all(r.record.ended is None for r in run._runners):
        before = [r.clock for r in run._runners]
        lane, _ = run.step()
        assert before[lane] == min(before)


@read_in_any_parts
def test_a_race_whose_prompt_was_spoiled_is_not_equal(monkeypatch):
    """A prefix that is counted, but whose keys are not written."""
    load = PrefixCache.load

    def only_count(self, tokens, row, *more):
        known = load(self, tokens, row, *more)
        for layer in row.layers:
            for x in row.stored(layer, 0):
                x[:, :known] = 0
        return known

    monkeypatch.setattr(PrefixCache, "load", only_count)
    run, _ = race("vegas", PrefixCache(4000, block=16))
    while not run.over:
        run.step()
    assert run.trace.equal is False


@read_in_any_parts
@pytest.mark.parametrize("model", ["llama", "llama-kv8"])
def test_prefixes_are_loaded_into_a_cache_that_was_never_written(model):
    lm, [prompt], prefixes = tiny.target(model), tiny.prompts(70), PrefixCache(4000, block=16)
    found = []
    for _ in range(2):
        session = Session(lm, None, 1, 200, prefixes=prefixes)
        session.submit(prompt, NEW, eos=())
        events = []
        while session.running or session.waiting:
            events += session.step()
        found.append(([t for e in events for t in e.tokens], events[0].prompt.known))
    assert found[0][0] == found[1][0] == generate(lm, [prompt], max_new_tokens=NEW, eos=())[0]
    assert [known for _, known in found] == [0, 64]


@pytest.mark.full
def test_generate_writes_a_trace(cli, place, tmp_path):
    file = tmp_path / "a.json"
    line = [
        "generate",
        "def f(x):",
        "-m",
        "tiny",
        "--max-new-tokens",
        "12",
        "--compare",
        "--json",
        "--ignore-eos",
    ]
    status, out, _ = cli(*line, "--method", "vegas", "-o", "gamma=3", "--trace", str(file))
    assert status == 0
    trace = Trace.model_validate_json(file.read_text())
    record = json.loads(out)
    assert [lane.method for lane in trace.lanes] == ["plain", "vegas"] and trace.equal is True
    for lane in trace.lanes:
        assert [t for r in lane.rounds for t in r.tokens] == record[
            "token_ids"
        ] and lane.ended == "length"
    assert trace.lanes[1].options["gamma"] == 3 and trace.prompt_tokens == record["prompt_tokens"]
    assert trace.prompt == "def f(x):" and "".join(
        t for r in trace.lanes[0].rounds for t in r.texts
    )
    page = tmp_path / "a.html"
    assert cli(*line[:6], "--method", "lookup", "--trace", str(page))[0] == 0
    assert "longdraft-trace" in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trace", "x.txt"], "ends in .json or .html"),
        (["--trace", "nowhere/x.json"], "no folder nowhere"),
        (["--trace", "x.json", "--prompt-file", "a", "--prompt-file", "b"], "one prompt"),
    ],
)
def test_a_trace_that_cannot_be_written_is_refused_first(cli, words, said):
    status, out, err = cli(
        "generate", *(["text"] if len(words) == 2 else []), "-m", "nothing", *words
    )
    assert status == 2 and said in err and not out and err.count("\n") == 1


def test_a_trace_of_another_version_is_refused():
    lm, [prompt] = tiny.target("llama"), tiny.prompts(20)
    trace = new_trace(lm, Words(), prompt, NEW, Sampler(), 0, [Lane(method="plain", options={})])
    good = json.loads(trace.model_dump_json())
    assert Trace.model_validate(good) == trace
    for change in ({"version": 2}, {"format": "other"}, {"lanes": []}, {"more": 1}):
        with pytest.raises(ValueError):
            Trace.model_validate(good | change)


def test_the_documented_format_is_the_format():
    text = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
    for part in (Trace, Lane, Round, Node):
        table = text.partition(f"| {part.__name__.lower()} | |")[2].partition("\n\n")[0]
        rows = "".join(line.split("|")[1] for line in table.splitlines()[1:] if line.count("|") > 2)
        assert set(re.findall(r"`(\w+)`", rows)) == set(part.model_fields), part
