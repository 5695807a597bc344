"""Measurements say what they measured: controls differ, the text is fed as it is, tables come from
records alone.
"""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from support import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from longdraft.bench import averages, inputs, report, report_files, shapes
from longdraft.bench import records as record
from longdraft.bench.selection import parse
from longdraft.bench.steps import operations
from longdraft.bench.teacher_forced import TeacherForced, accepted_at, walk
from longdraft.cli import main
from longdraft.core.sampling import Sampler
from longdraft.engine import generate as engine
from longdraft.engine.decode_session import DecodeSession
from longdraft.errors import InputError
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import relative

KEYS = {
    "text",
    "token_ids",
    "method",
    "prompt_tokens",
    "new_tokens",
    "prefill_s",
    "decode_s",
    "tokens_per_s",
}
KEYS |= {
    "mean_acceptance_length",
    "acceptance_per_position",
    "verify_steps",
    "draft_s",
    "verify_s",
    "seed",
    "device",
}
KEYS |= {
    "dtype",
    "versions",
    "task",
    "context",
    "batch",
    "repeat",
    "git_sha",
    "text_name",
    "text_sha256",
    "threads",
}
KEYS |= {"command", "equal", "first_difference", "speedup", "exact"}
ANCHORED = {
    "anchors",
    "stderr",
    "task",
    "context",
    "batch",
    "repeat",
    "git_sha",
    "mean_acceptance_length",
    "accepted",
}
ANCHORED |= {"exact"}
SMALL = {"min_budget": "8", "keep_ratio": "0.02"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A random Llama over bytes, as a model folder, with a text beside it."""
    where = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bytewise).save_pretrained(where)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(**{**tiny.BASE, "vocab_size": 256, "max_position_embeddings": 4096})
    )
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.25)
    model.save_pretrained(where)
    (where / "prompt.txt").write_text(
        inputs.BOOK.read_text(encoding="utf-8")[:6000], encoding="utf-8"
    )
    return where


def run(*words: str) -> SimpleNamespace:
    """status, and what was printed."""
    out = StringIO()
    err = StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return SimpleNamespace(status=status, out=out.getvalue(), err=err.getvalue())


def bench(folder: Path, *words: str, measurement: str = "speed") -> SimpleNamespace:
    return run("bench", measurement, "-m", str(folder), "--dtype", "float32", *words)


def measure(folder: Path, out: Path, *words: str, measurement: str = "speed") -> list[dict]:
    text = ("--prompt-file", str(folder / "prompt.txt"), "--out", str(out))
    result = bench(folder, *text, *words, measurement=measurement)
    assert result.status == 0, result.err
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.fixture(scope="session")
def speed(folder, tmp_path_factory) -> Path:
    """A run of every kind of method, two rows, two contexts, two turns."""
    out = tmp_path_factory.mktemp("speed") / "records.jsonl"
    stock = "vegas,lookup,hf-dynamic,hf-static"
    words = [
        "--methods",
        stock,
        "--context",
        "64,96",
        "--max-new-tokens",
        "20",
        "--batch",
        "2",
        "--repeat",
        "2",
    ]
    measure(folder, out, *words, "-o", "vegas.min_budget=8", "-o", "vegas.gamma=4")
    return out


@pytest.mark.full
def test_records_say_what_was_measured(speed):
    records = record.load([speed])
    assert len(records) == 2 * 2 * 5
    assert all(r.keys() >= KEYS for r in records)
    assert all(r["equal"] and r["first_difference"] is None for r in records)
    assert {r["method"] for r in records} == {"plain", "vegas", "lookup", "hf-dynamic", "hf-static"}
    vegas = [r for r in records if r["method"] == "vegas"]
    assert vegas[0]["options"] == {
        "gamma": 4,
        "keep_ratio": 0.07,
        "min_budget": 8,
        "score": "weights",
        "rows": "mean",
        "reach": 8,
        "draft_weights": "same",
        "draft_kv": "same",
    }
    assert vegas[0]["score"] == "weights"
    assert vegas[0]["new_tokens"] == [20, 20]
    assert len({json.dumps(r["token_ids"]) for r in records if r["context"] == 64}) == 1
    assert not any(word.startswith("/") for r in records for word in r["command"].split())
    assert all(r["bandwidth_share"] > 0 for r in records if r["method"] == "plain")


def test_the_report_says_where_equality_is_not_promised(speed):
    records = record.load([speed])
    note = "equality is not guaranteed"
    for exact in (True, False):
        shown = report.markdown(report.sections([r | {"exact": exact} for r in records]))
        assert (note in shown) is not exact
    older = [{k: v for k, v in r.items() if k != "exact"} | {"native": False} for r in records]
    assert note in report.markdown(report.sections(older))


@pytest.mark.full
def test_the_report_rebuilds_the_medians(speed, tmp_path):
    assert run("report", str(speed), "--out", str(tmp_path)).status == 0
    text = (tmp_path / "report.md").read_text()
    records = record.load([speed])
    for context in (64, 96):
        rates = {
            name: median(
                r["tokens_per_s"] for r in records if (r["context"], r["label"]) == (context, name)
            )
            for name in ("plain", "vegas", "lookup")
        }
        for name, rate in rates.items():
            row = next(
                line for line in text.splitlines() if line.startswith(f"| {context} | {name} |")
            )
            assert f" {rate:.1f} (" in row
            gains = [r["speedup"] for r in records if (r["context"], r["label"]) == (context, name)]
            assert f" {median(gains):.2f}x" in row
            for r in records:
                if r["context"] == context:
                    assert r["speedup"] == pytest.approx(r["tokens_per_s"] / rates["plain"])


@pytest.mark.full
def test_an_oracle_accepts_what_it_is_told(tmp_path):
    """On random weights of a shape, K drafts of gamma, up to what the last step cuts off."""
    out = tmp_path / "records.jsonl"
    words = [
        "bench",
        "shape-cost",
        "2x64",
        "--accept",
        "2.5",
        "--methods",
        "vegas",
        "--context",
        "300",
        "--repeat",
        "1",
    ]
    result = run(*words, "--max-new-tokens", "120", "--dtype", "float32", "--out", str(out))
    assert result.status == 0, result.err
    vegas = next(r for r in record.load([out]) if r["method"] == "vegas")
    assert vegas["oracle"] == 2.5
    assert vegas["equal"]
    assert vegas["mean_acceptance_length"] == pytest.approx(3.5, abs=0.1)


def test_only_chains_of_fixed_length_have_an_oracle():
    target = tiny.target("llama")
    weights = DrafterWeights(random=True)
    made = parse("vegas,vegas-reuse,longspec,suffix", [], weights)
    assert [e.chain_depth(target) for e in made] == [7, 0, 0, 0]
    made = parse(
        "longspec-guided,longspec", ["longspec-guided.widths=1,1,1", "longspec.gamma=4"], weights
    )
    assert [e.chain_depth(target) for e in made] == [3, 4]


def test_oracle_and_real_acceptance_stand_apart(speed, tmp_path):
    records = record.load([speed])
    oracle = [{**r, "oracle": 3.0} for r in records]
    found = report.sections(records + oracle)
    assert len(found) == 2
    assert "real acceptance" in found[0].title
    assert "oracle: 3 of 4" in found[1].title
    assert len(found[0].rows) == len(found[1].rows) == 10


def test_controls_differ_from_a_view_of_everything(folder, tmp_path):
    out = tmp_path / "records.jsonl"
    most = ["-o", "random-picks.keep_ratio=0.9", "-o", "random-picks.min_budget=8"]
    words = [
        "--methods",
        "vegas@keep_ratio=1,random-picks",
        "--context",
        "128",
        "--anchors",
        "30",
    ]
    full, random = measure(folder, out, *words, *most, measurement="acceptance")
    assert full.keys() >= ANCHORED
    assert "tokens_per_s" not in full
    assert full["mean_acceptance_length"] == 8
    assert full["acceptance_per_position"] == [1.0] * 7
    assert {n for w in full["accepted"] for n in w} == {7}
    assert (full["anchors"], full["windows"], full["score"]) == (30, 10, "weights")
    assert random["mean_acceptance_length"] < 7
    assert random["stderr"] > 0
    assert sum(random["acceptance_per_position"]) + 1 == pytest.approx(
        random["mean_acceptance_length"]
    )
    section = report.sections(record.load([out]))[0]
    assert section.rows[1][3].startswith(f"+{8 - random['mean_acceptance_length']:.3f} ± ")


def test_sampled_anchors_under_a_full_view_accept_everything(folder, tmp_path):
    words = [
        "--methods",
        "vegas@keep_ratio=1",
        "--context",
        "64",
        "--anchors",
        "10",
    ]
    words += ["--temperature", "1", "--warmup-rounds", "1"]
    found = measure(folder, tmp_path / "records.jsonl", *words, measurement="acceptance")
    assert found[0]["mean_acceptance_length"] == 8


@pytest.mark.parametrize("name", ["vegas", "lookup", "recents"])
def test_an_anchor_leaves_the_cache_as_plain_feeding_would(name):
    target = tiny.target("llama")
    tokens = tiny.prompts(200)[0]
    entry = MethodSpec(name, name, SMALL if name != "lookup" else {})
    job = TeacherForced(target, [entry], [], [64], every=8)
    want = target.new_cache(1, 256)
    for cache, seen in walk(target, tokens, 64, 5, job.every):
        first = accepted_at(job, entry.build(target), cache, seen, seed=0)
        again = accepted_at(job, entry.build(target), cache, seen, seed=0)
        assert first == again
        want.length.zero_()
        with torch.inference_mode():
            target.prefill(seen[:-1], want)
        n = len(seen) - 1
        assert cache.length.tolist() == want.length.tolist() == [n]
        for layer in want.layers:
            for mine, theirs in zip(cache.read(layer, 0), want.read(layer, 0), strict=True):
                torch.testing.assert_close(mine[:, :n], theirs[:, :n], rtol=1e-4, atol=1e-5)
    assert n == 64 + 4 * 8 - 1


def test_an_anchor_counts_what_the_engine_accepts():
    """One speculative step of the engine from the same prompt gives as many tokens as the anchor
    says, and one.
    """
    target = tiny.target("llama")
    prompt = tiny.prompts(90, seed=3)[0]
    entry = MethodSpec("recents", "recents", SMALL)
    job = TeacherForced(target, [entry], [], [90])
    steps = engine.stream(target, [prompt], entry.build(target), max_new_tokens=job.limit)
    next(steps)
    emitted = len(next(steps).tokens[0])
    cache, seen = next(walk(target, prompt, 90, 1, 16))
    assert accepted_at(job, entry.build(target), cache, seen, seed=0) == emitted - 1


def test_windows_share_no_anchor():
    text = inputs.Text("t", list(range(20_000)), "")
    job = TeacherForced(tiny.target("llama"), [], [text], [4096], anchors=205)
    windows = job.windows(text, 4096)
    assert sum(n for _, n in windows) == 205
    spans = [(start + 4096, start + 4096 + n * job.every) for start, n in windows]
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert spans[-1][1] <= 20_000
    with pytest.raises(InputError, match="fewer --anchors"):
        TeacherForced(tiny.target("llama"), [], [text], [19_000], anchors=205).windows(text, 19_000)


@pytest.mark.full
@pytest.mark.parametrize("measurement", ["speed", "acceptance"])
def test_an_interruption_keeps_what_was_measured(folder, tmp_path, monkeypatch, measurement):
    out = tmp_path / "records.jsonl"
    calls = []

    def stop(*a):
        calls.append(a)
        if len(calls) == 40:
            raise KeyboardInterrupt

    monkeypatch.setattr("longdraft.bench.teacher_forced.accepted_at", lambda *a: stop() or 3)
    monkeypatch.setattr("longdraft.bench.speed.first_difference", lambda *a: stop())
    words = ["--methods", "vegas,recents", "--context", "64", "--out", str(out)]
    words += ["--prompt-file", str(folder / "prompt.txt")]
    sizes = {
        "speed": ["--repeat", "99", "--max-new-tokens", "2"],
        "acceptance": ["--anchors", "30"],
    }
    result = bench(folder, *words, *sizes[measurement], measurement=measurement)
    assert result.status == 130
    assert "interrupted" in result.err
    assert "recents" in result.out  # the table of what there is
    records = record.load([out])
    assert len(records) == {"speed": 39, "acceptance": 2}[measurement]
    if measurement == "acceptance":
        assert [r["anchors"] for r in records] == [19, 19]
        assert all(r["interrupted"] for r in records)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--methods nothing", "unknown method 'nothing'"),
        ("--methods vegas,vegas", "vegas is named twice"),
        ("--methods ,", "no method"),
        ("--methods vegas --context 6500", "the text prompt.txt has"),
        ("--methods vegas --context 4090", "exceed the model's 4096 positions"),
        ("--methods vegas --context 4k", "context is '4k'"),
        ("--methods vegas --context ,", "context is ','"),
        ("--methods vegas -o gamma=5", "give METHOD.KEY=VALUE"),
        ("--methods vegas -o vegas.gamma --context 64", "give KEY=VALUE"),
        ("--methods vegas -o vegas.color=red --context 64", "no option 'color'"),
        ("--methods vegas --repeat 0", "--repeat"),
        ("--methods vegas --max-new-tokens 0", "--max-new-tokens"),
        ("--methods vegas --temperature -1", "temperature is -1"),
        ("--methods hf-static --temperature 1 --context 64", "--temperature 0"),
        ("--methods vegas --dtype int8", "dtype is 'int8'"),
    ],
)
def test_bad_input_is_one_clear_line(folder, words, says):
    result = bench(folder, "--prompt-file", str(folder / "prompt.txt"), *words.split())
    assert result.status == 2 and says in result.err and len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cost", "Missing option '--accept'"),
        ("cost --methods vegas --accept 7.5 --context 64", "give 0 to 7"),
        ("cost --methods vegas --accept -1 --context 64", "give 0 to 7"),
        ("cost --methods lookup --accept 1 --context 64", "leave lookup out"),
        ("acceptance --anchors 0", "--anchors"),
        ("acceptance --anchors 9999 --context 64", "fewer --anchors"),
        ("acceptance --context 4080 --anchors 10", "needs 4105 positions"),
        ("acceptance --context 4k", "context is '4k'"),
        ("acceptance --methods plain", "plain drafts nothing"),
        ("acceptance --accept 3", "No such option"),
        ("steps --context 9999", "4096"),
        ("steps --context 0", "context is '0'"),
        ("steps --methods vegas", "No such option"),
        ("speed --accept 3", "No such option"),
        ("speed --anchors 3", "No such option"),
    ],
)
def test_each_measurement_has_only_its_options(folder, line, says):
    measurement, *words = line.split()
    text = ("--prompt-file", str(folder / "prompt.txt"))
    result = bench(folder, *text, *words, measurement=measurement)
    assert result.status == 2 and says in result.err and len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("4by256 --accept 3", "shape is '4by256'"),
        ("4x100 --accept 3", "shape is '4x100'"),
        ("hybrid:2x128 --accept 3", "every fourth one of a hybrid"),
        ("4x256", "add --accept K"),
        ("4x256 --accept 3 --context x", "context is 'x'"),
        ("4x256 --accept 3 --dtype int8", "dtype is 'int8'"),
        ("4x256 --accept 3 --text code", "No such option"),
        ("4x256 --accept 3 --kv int8", "No such option"),
        ("4x256 --accept 3 --prompt-cache x", "No such option: --prompt-cache"),
    ],
)
def test_a_shape_has_only_its_options(words, says):
    result = run("bench", "shape-cost", "--methods", "vegas", *words.split())
    assert result.status == 2 and says in result.err and len(result.err.splitlines()) == 1
    if "--accept" in words:
        words = words.replace("--accept 3", "")
        result = run("bench", "shape-steps", *words.split())
        assert result.status == 2 and says in result.err and len(result.err.splitlines()) == 1


def test_bad_files_are_named(folder, tmp_path):
    empty = tmp_path / "empty.txt"
    pickled = tmp_path / "x.txt"
    empty.touch()
    pickled.write_bytes(b"\xff\xfe\x80")
    for path, says in (
        (empty, "is empty"),
        (pickled, "not UTF-8"),
        (tmp_path / "no.txt", "cannot read"),
    ):
        with pytest.raises(InputError, match=says):
            inputs.read(path)
    (tmp_path / "a.jsonl").write_text('{"task": "other", "method": "plain", "context": 1}\n{"half')
    with pytest.raises(InputError, match="line 2: not JSON"):
        record.load([tmp_path / "a.jsonl"])
    (tmp_path / "b.jsonl").write_text('{"task": "speed"}\n')
    with pytest.raises(InputError, match="line 1: not a bench record"):
        record.load([tmp_path / "b.jsonl"])
    with pytest.raises(InputError, match="no records"):
        report_files.write([], tmp_path)


def test_amended_records_replace_their_own_lines_alone(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    log = RecordFile(path)
    path.write_text('{"old": 1}\n')
    for i in range(3):
        log.append({"i": i})
    log.amend([{"i": 1, "more": "x" * 50}, {"i": 2, "more": "y"}])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"old": 1}, {"i": 0}, {"i": 1, "more": "x" * 50}, {"i": 2, "more": "y"}]
    with path.open("a") as f:
        f.write('{"another": 1}\n')
    log.amend([{"i": 9}])
    assert len(path.read_text().splitlines()) == 5
    assert '"i": 9' not in path.read_text()


def test_errors_of_means():
    mean, simple, clustered = averages.mean_and_errors(
        [[1, 1], [3, 3], [1, 1], [3, 3], [1, 1], [3, 3]]
    )
    assert mean == 2
    assert simple == pytest.approx((12 / 11 / 12) ** 0.5)
    assert clustered == pytest.approx((6 / 5 * 6 * 4) ** 0.5 / 12)
    assert averages.mean_and_errors([[5]]) == (5, None, None)
    assert averages.mean_and_errors([]) == (0.0, None, None)
    assert averages.paired([[3, 1], [2]], [[1, 1], [4]]) == [[2, 0], [-2]]


def test_a_shape_has_the_heads_and_width_it_says():
    lm = shapes.random_model("2x384", "float32", seed=1, vocab=128, positions=256)
    c = lm.config
    assert (c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.num_key_value_heads) == (
        2,
        384,
        6,
        6,
    )
    assert (c.head_dim, c.intermediate_size) == (64, 1024)
    plain = engine.generate(lm, [tiny.prompts(20)[0]], max_new_tokens=8, sampler=Sampler())[0]
    assert len(set(plain)) == 8  # no loop, and no tie: each token is the one after
    assert [b - a for a, b in pairwise(plain)] == [1] * 7


def test_a_hybrid_shape_has_the_proportions_of_qwen():
    lm = shapes.random_model("hybrid:4x128", "float32", seed=1, vocab=128, positions=256)
    attention = lm.hf.model.layers[3].self_attn
    nets = [layer.linear_attn for layer in lm.hf.model.layers[:3]]
    assert attention.head_dim == 256 and {(n.num_v_heads, n.head_v_dim) for n in nets} == {(2, 128)}
    plain = engine.generate(lm, [tiny.prompts(20)[0]], max_new_tokens=8, sampler=Sampler())[0]
    assert [b - a for a, b in pairwise(plain)] == [1] * 7


def test_paths_of_this_machine_stay_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relative(str(tmp_path / "a" / "b.txt")) == "a/b.txt"
    assert relative("/home/somebody/model") == "model"
    assert relative("--context") == "--context"


@torch.inference_mode()
def test_steps_of_layers_that_views_do_not_reach():
    """DeepSeek V4's keys are not selected, so neither selecting them nor drafting with a view is
    timed.
    """
    lm = LM(tiny_models.build(tiny_models.config("deepseek_v4")))
    timed = operations(lm, DecodeSession(lm, [tiny_models.prompt(160)], 8, eos=()))
    assert "plain" in timed and not {"choose and copy 7%", "draft at 7%"} & timed.keys()


@pytest.mark.full
def test_steps_are_timed_and_shown(folder, tmp_path):
    words = ("--context", "300,600", "--repeat", "2")
    found = measure(folder, tmp_path / "s.jsonl", *words, measurement="steps")
    names = [r["method"] for r in found if r["context"] == 300]
    assert names[0] == "plain" and {"verify 8 rows", "draft at 7%", "choose and copy 7%"} <= set(
        names
    )
    assert all(
        len(r["ms"]) == 2 and min(r["ms"]) > 0 and r["bytes_per_step"] > 0 and "exact" in r
        for r in found
    )
    path = report_files.write(record.load([tmp_path / "s.jsonl"]), tmp_path)[0]
    text = path.read_text()
    assert (
        "Cost of a step" in text
        and "of a decoding step of vegas" in text
        and "| 600 | plain |" in text.replace("  ", " ")
    )
