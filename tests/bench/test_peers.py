"""Other engines decode the same prompts in the same run; one that cannot is left out with a line
that says why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import build_llama_cpp
import pytest
import torch
from support import llama_stand_in, tiny
from support.stand_ins import program
from test_bench import bench, folder, run  # noqa: F401

from longdraft.bench import records as record
from longdraft.bench import report
from longdraft.bench.peers.base import Absent, CannotRun, Work
from longdraft.bench.peers.choice import NOT_ITS_BEST, ChosenPeers
from longdraft.bench.peers.llama_binary import BUILD_FILE, Binary
from longdraft.bench.peers.llama_cpp import LlamaCpp
from longdraft.bench.peers.llama_wheel import WHEEL, Wheel
from longdraft.bench.peers.transformers import Transformers, stock
from longdraft.core.sampling import Sampler
from longdraft.engine import generate as engine
from longdraft.errors import InputError
from longdraft.models.loading import load

KINDS = [
    "none",
    "ngram-cache",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-simple",
    "draft-simple",
]
NGRAMS = KINDS[1:6]


class Server:
    """Stands in for xllamacpp.Server: answers over HTTP with what `tokens` returns for a prompt and
    a limit.
    """

    made: list[Server]
    tokens: Callable[[list[int], int], list[int]]
    vocab = 256

    def __init__(self, parameters):
        if not Path(parameters.model.path).is_file():
            raise RuntimeError("Failed to init server")
        self.parameters = parameters
        self.asked = []
        self.made.append(self)
        handler = type("Handler", (Handler,), {"owner": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.listening_address = f"http://127.0.0.1:{self.http.server_port}"
        Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, path: str, body) -> tuple[int, dict]:
        self.asked.append((path, body))
        saved = Path(self.parameters.slot_save_path + "prompt")
        if path == "/v1/models":
            return 200, {"data": [{"meta": {"n_vocab": self.vocab}}]}
        if path == "/slots/0?action=save":
            saved.write_text("keys and values")
            return 200, {}
        if path == "/slots/0?action=restore":
            return (200, {}) if saved.exists() else (404, {})
        found = type(self).tokens(body["prompt"], body["n_predict"])
        drafted = {"draft_n": 8, "draft_n_accepted": 5} if body["n_predict"] > 8 else {}
        return 200, {
            "tokens": found,
            "timings": {"prompt_per_second": 100.0, "predicted_per_second": 50.0, **drafted},
        }


class Handler(BaseHTTPRequestHandler):
    owner: Server

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, found = self.owner.answer(self.path, json.loads(text or "null"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *a):
        pass


def parameters() -> SimpleNamespace:
    def threads() -> dict:
        return {"cpuparams": SimpleNamespace(), "cpuparams_batch": SimpleNamespace()}

    draft = SimpleNamespace(mparams=SimpleNamespace(path=""), **threads())
    return SimpleNamespace(
        model=SimpleNamespace(path=""), speculative=SimpleNamespace(draft=draft), **threads()
    )


@pytest.fixture
def fake(monkeypatch):
    """A package xllamacpp whose engine decodes as the tiny model does."""
    Server.made = []
    Server.vocab = 256
    Server.tokens = staticmethod(lambda prompt, limit: [7] * limit)
    types = {f"COMMON_SPECULATIVE_TYPE_{k.upper().replace('-', '_')}": k for k in KINDS}
    module = SimpleNamespace(__version__="2026.1", Server=Server, CommonParams=parameters)
    module.common_speculative_type = SimpleNamespace(**types)
    module.llama_rope_scaling_type = SimpleNamespace(LLAMA_ROPE_SCALING_TYPE_YARN="yarn")
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    yield module
    for server in Server.made:
        server.http.shutdown()


@pytest.fixture
def gguf(tmp_path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    return file


def nearly_plain(where: Path) -> Callable[[list[int], int], list[int]]:
    """Decodes 8 tokens as the model of a folder does, then 7s."""
    target, _ = load(str(where), dtype="float32")
    return lambda prompt, limit: (
        engine.generate(target, [prompt], max_new_tokens=8, eos=())[0] + [7] * limit
    )[:limit]


def work(target, temperature: float = 0.0, rows: int = 1) -> Work:
    prompts = tiny.prompts(*[40] * rows, vocab=target.vocab)
    return Work(target, prompts, 12, Sampler(temperature), seed=3)


@pytest.mark.full
def test_both_engines_are_measured_beside_ours(folder, fake, gguf, tmp_path):  # noqa: F811
    out = tmp_path / "records.jsonl"
    Server.tokens = staticmethod(nearly_plain(folder))
    text = [
        "--prompt-file",
        str(folder / "prompt.txt"),
        "--context",
        "64",
        "--max-new-tokens",
        "12",
        "--repeat",
        "2",
    ]
    peers = ["--peers", "llama.cpp,transformers", "--peer-model", str(gguf)]
    drafts = ["--peer-draft", str(gguf), "--peer-draft", str(folder)]
    words = [*text, *peers, *drafts, "--methods", "plain,lookup", "--out", str(out)]
    result = bench(folder, *words, measurement="peers")
    assert result.status == 0, result.err
    assert "left out" not in result.err
    found = record.load([out])
    labels = list(dict.fromkeys(r["label"] for r in found))
    ngrams = [f"{WHEEL} {k}" for k in NGRAMS]
    assert labels[:2] == ["plain", "lookup"]
    assert labels[2:] == [
        WHEEL,
        *ngrams,
        f"{WHEEL} draft model",
        "transformers",
        "transformers static cache",
        "transformers prompt lookup",
        "transformers assisted",
    ]
    assert len(found) == 2 * len(labels)
    assert {r["label"] for r in found if r["repeat"] == 0} == set(labels)
    theirs = [r for r in found if r["method"] == WHEEL]
    assert {r["peer_version"] for r in theirs} == {"xllamacpp 2026.1"}
    assert all(r["peer_timings"]["prefill_tokens_per_s"] == 100 for r in theirs)
    assert all(
        r["token_ids"][8:] == [7] * 4 and r["equal"] is False and r["tokens_per_s"] > 0
        for r in theirs
    )
    assert all(
        8 <= r["first_tokens"]["equal"] < r["first_tokens"]["compared"] == 12 for r in theirs
    )
    assert all(
        r["mean_acceptance_length"] == 12 / 7 and r["peer_timings"]["accepted"] == 5 for r in theirs
    )
    hf = [r for r in found if r["method"] == "transformers"]
    assert all(r["equal"] and r["peer"] == "transformers" and r["speedup"] > 0 for r in hf)
    assert all(r["first_tokens"]["equal"] == 12 for r in hf)
    assert hf[-1]["first_tokens"]["with"][WHEEL] == theirs[0]["first_tokens"]["equal"]
    shown = report.markdown(report.sections(found))
    assert f"| 64 | {WHEEL} ngram-cache |" in shown
    assert (
        f"x as fast as {WHEEL}" in shown
        and "(xllamacpp 2026.1)" in shown
        and "x as fast as transformers" in shown
    )
    assert result.status == 0 and run("report", str(out), "--out", str(tmp_path)).status == 0


@pytest.mark.parametrize("label", ["transformers", "static", "lookup", "assisted"])
def test_transformers_gives_plain_decodings_tokens(label):
    target = tiny.target("llama")
    options = {
        "static": {"cache": "static"},
        "lookup": {"lookup": 10},
        "assisted": {"draft": target},
    }
    job = work(target)
    reading = Transformers(label, **options.get(label, {})).read(job)
    want = engine.generate(target, job.prompts, max_new_tokens=12, eos=())
    for _ in range(2):  # the prompt's cache stays as it was
        found = reading.decode(12)
        assert found.rows == want
    assert found.stats.emitted in (11, 12) and found.stats.decode_s > 0
    assert (found.own.get("mean_acceptance_length", 1) > 1) is (label == "assisted")
    reading.close()


@pytest.mark.parametrize("options", [{}, {"lookup": 10}])
def test_sampling_by_transformers_follows_its_seed_and_leaves_ours(options):
    target = tiny.target("llama")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    reading = Transformers("transformers", **options).read(work(target, temperature=1.0))
    assert reading.decode(12).rows == reading.decode(12).rows
    assert (
        reading.decode(12).rows != Transformers("transformers").read(work(target)).decode(12).rows
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_the_copy_has_the_weights_and_rotations_of_the_model():
    target = tiny.target("gpt-oss")  # yarn
    ids = torch.tensor(tiny.prompts(30))
    with torch.inference_mode():
        mine = tiny.eager("gpt-oss")(input_ids=ids).logits
        theirs = stock(target).hf(input_ids=ids).logits
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_llama_cpp_gets_the_same_work(fake, gguf):
    target = tiny.target("llama")
    Server.vocab = target.vocab
    job = work(target, temperature=0.7)
    reading = LlamaCpp(WHEEL, Wheel(), gguf).read(job)
    reading.decode(12)
    (server,) = Server.made
    p = server.parameters
    assert p.cpuparams.n_threads == p.cpuparams_batch.n_threads == torch.get_num_threads()
    assert p.n_ctx >= 40 + 12 and p.speculative.types == ["none"]
    asked = [body for path, body in server.asked if path == "/completion"]
    assert [body["n_predict"] for body in asked] == [1, 12]
    assert all(
        b["prompt"] == job.prompts[0] and b["temperature"] == 0.7 and b["seed"] == 3 for b in asked
    )
    assert all(b["samplers"] == ["temperature"] and b["ignore_eos"] for b in asked)


def test_a_speculation_that_remembers_outputs_starts_anew_each_time(fake, gguf):
    target = tiny.target("llama")
    Server.vocab, job = target.vocab, work(tiny.target("llama"))
    LlamaCpp(WHEEL, Wheel(), gguf).read(job)
    for kind, servers in (("ngram-simple", 1), ("ngram-cache", 3), ("ngram-mod", 3)):
        Server.made.clear()
        reading = LlamaCpp(kind, Wheel(), gguf, kind).read(job)
        for _ in range(3):
            reading.decode(12)
        assert len(Server.made) == servers
        prompts = [body for s in Server.made for path, body in s.asked if path == "/completion"]
        # the prompt is restored, not read again
        assert [body["n_predict"] for body in prompts] == [12] * 3
        assert all(s.asked[0][0] == "/slots/0?action=restore" for s in Server.made)


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}


def test_yarn_is_passed_on(fake, gguf):
    target = tiny.target("llama")
    rope = YARN
    job = Work(
        SimpleNamespace(config=SimpleNamespace(rope_parameters=rope)),
        work(target).prompts,
        4,
        Sampler(),
        0,
    )
    LlamaCpp(WHEEL, Wheel(), gguf).start(job, "/tmp")
    p = Server.made[0].parameters
    assert (p.rope_scaling_type, p.rope_freq_scale, p.yarn_orig_ctx) == ("yarn", 0.5, 512)


def test_what_cannot_run_is_one_line_and_the_run_goes_on(folder, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    out = tmp_path / "records.jsonl"
    text = [
        "--prompt-file",
        str(folder / "prompt.txt"),
        "--context",
        "64",
        "--max-new-tokens",
        "8",
        "--repeat",
        "1",
    ]
    words = [
        *text,
        "--peers",
        "llama.cpp,transformers",
        "--batch",
        "2",
        "--methods",
        "plain",
        "--out",
        str(out),
    ]
    result = bench(folder, *words, measurement="peers")
    assert result.status == 0
    lines = result.err.splitlines()
    assert lines[0] == NOT_ITS_BEST
    assert (
        lines[1].startswith("llama.cpp is left out: the package xllamacpp ")
        and "longdraft[peers]" in lines[1]
    )
    assert lines[2:] == [
        "at 64 transformers prompt lookup is left out: its speculation decodes one row "
        "only, without --batch"
    ]
    found = record.load([out])
    measured = {r["label"] for r in found if r["task"] == "speed"}
    assert measured == {"plain", "transformers", "transformers static cache"}
    reasons = {r["label"]: r["reason"] for r in found if r["task"] == "left out"}
    assert (
        reasons["llama.cpp"] in lines[1]
        and reasons["transformers prompt lookup"] in lines[2]
        and len(reasons) == 2
    )


def test_reasons_why_llama_cpp_is_left_out(fake, gguf, tmp_path):
    target = tiny.target("llama")
    _, lines = ChosenPeers("llama.cpp").find(target)
    assert lines == [
        NOT_ITS_BEST,
        "llama.cpp is left out: the model is not a GGUF file: name the same model's with "
        "--peer-model FILE.gguf",
    ]
    del fake.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_MOD
    found, lines = ChosenPeers("llama.cpp", gguf, [gguf.parent / "model.gguf"]).find(target)
    labels = [p.label for p in found]
    assert (
        lines[1:] == []
        and f"{WHEEL} ngram-mod" not in labels
        and labels[-1] == f"{WHEEL} draft model"
    )
    with pytest.raises(CannotRun, match=r"xllamacpp 2026\.1 does not offer ngram-mod"):
        LlamaCpp("ngram-mod", Wheel(), gguf, "ngram-mod")
    with pytest.raises(CannotRun, match="256 tokens, the model 96"):
        found[0].read(work(target))
    Server.vocab = 96
    with pytest.raises(CannotRun, match="one row only"):
        found[0].read(work(target, rows=2))
    Server.tokens = staticmethod(lambda prompt, limit: [7])
    with pytest.raises(CannotRun, match="ended after 1 of 12"):
        found[0].read(work(target)).decode(12)
    gguf.unlink()
    with pytest.raises(CannotRun, match=r"cannot load model\.gguf"):
        found[0].read(work(target))


def test_only_the_named_rows_are_measured(fake, gguf):
    target = tiny.target("llama")
    rows = f"{WHEEL} ngram-mod,transformers"
    found, _ = ChosenPeers("llama.cpp,transformers", gguf, only=rows).find(target)
    assert [p.label for p in found] == [f"{WHEEL} ngram-mod", "transformers"]
    with pytest.raises(
        InputError,
        match=r"--peer-only has no 'vegas' to choose from: transformers, transformers st",
    ):
        ChosenPeers("transformers", only="transformers,vegas").find(target)
    found, _ = ChosenPeers("llama.cpp", only=WHEEL).find(
        target
    )  # which rows it would have is not known
    assert [type(p) for p in found] == [Absent]


def test_a_draft_model_in_the_other_engines_form_is_named(fake, gguf, folder):  # noqa: F811
    _, lines = ChosenPeers("llama.cpp,transformers", gguf, [folder]).find(tiny.target("llama"))
    assert lines[1:] == [
        f"{WHEEL} draft model is left out: its draft model must be a GGUF file: name it "
        "with --peer-draft"
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--peers vllm", "unknown peer 'vllm'"),
        (
            "--peers llama.cpp --peer-model nowhere.gguf",
            "cannot read nowhere.gguf (No such file",
        ),
        (
            "--peers transformers --peer-draft nowhere",
            "cannot read nowhere (No such file",
        ),
        ("--peers llama.cpp --peer-model pyproject.toml", "pyproject.toml is not a GGUF file"),
        ("--peer-model x.gguf", "Missing option '--peers'"),
        ("--peers ,", "no engine is given"),
        ("--peers transformers --peer-llama-server x", "add it to --peers"),
        ("--peers llama.cpp --peer-llama-server nowhere", "nowhere is not a program"),
        (
            "--peers transformers --peer-only x",
            "--peer-only has no 'x' to choose from: transformers,",
        ),
        ("--peers transformers --peer-openvino x", "add openvino to --peers"),
        ("--peers openvino --peer-openvino pyproject.toml", "pyproject.toml is not a program"),
        ("--peers llama.cpp --peer-llama-server pyproject.toml", "pyproject.toml is not a program"),
        ("--peers transformers --accept 3", "No such option: --accept"),
        ("--peers transformers --ask why", "No such option: --ask"),
        ("--peers transformers --top-p 0.5", "No such option: --top-p"),
        ("--peers transformers --context 0", "context is '0'"),
        ("--peers transformers --max-new-tokens 1 --context 64", "--max-new-tokens 2 or more"),
    ],
)
def test_bad_input_is_one_clear_line(folder, monkeypatch, words, says):  # noqa: F811
    monkeypatch.chdir(Path(__file__).parents[2])
    text = ("--prompt-file", str(folder / "prompt.txt"))
    result = bench(folder, *text, *words.split(), measurement="peers")
    assert result.status == 2 and says in result.err and len(result.err.splitlines()) == 1


@pytest.fixture
def binary(tmp_path) -> Path:
    """A llama-server that answers [7, 7, ...], built from source by what lies beside it."""
    file = program(tmp_path / "bin" / "llama-server", "llama_stand_in.py")
    (file.parent / "build.json").write_text('{"package": "llama_cpp_python-0.3.36"}')
    return file


@pytest.mark.full
def test_a_build_from_source_is_measured_with_both_kinds_of_attention(
    folder,  # noqa: F811
    fake,
    gguf,
    binary,
    tmp_path,
):
    out = tmp_path / "records.jsonl"
    Server.tokens = staticmethod(nearly_plain(folder))
    _, tokenizer = load(str(folder), dtype="float32")
    tokens = Server.tokens(tokenizer((folder / "prompt.txt").read_text())["input_ids"][:64], 32)
    gguf.write_bytes(b"GGUF" + json.dumps({"tokens": tokens}).encode())
    text = [
        "--prompt-file",
        str(folder / "prompt.txt"),
        "--context",
        "64",
        "--max-new-tokens",
        "12",
        "--repeat",
        "1",
    ]
    peers = ["--peers", "llama.cpp", "--peer-model", str(gguf), "--peer-llama-server", str(binary)]
    words = (*text, *peers, "--methods", "plain", "--out", str(out))
    result = bench(folder, *words, measurement="peers")
    assert result.status == 0 and result.err == ""
    found = record.load([out])
    kinds = [
        "llama.cpp",
        *(f"llama.cpp {k}" for k in llama_stand_in.KINDS.split(",") if k.startswith("ngram")),
    ]
    assert [r["label"] for r in found] == [
        "plain",
        *(f"{k}@fa={fa}" for fa in ("on", "off") for k in kinds),
        WHEEL,
    ]
    theirs = [r for r in found if r["method"] == "llama.cpp"]
    assert {r["peer_version"] for r in theirs} == {"0 (0c1e57098)"}
    for r in theirs:
        built = {
            "from": "source",
            "package": "llama_cpp_python-0.3.36",
            "compiler": "GNU 12.2.0 for Linux x86_64",
        }
        built |= {"system_info": "CPU : AVX2 = 1 | FMA = 1 | OPENMP = 1 |"}
        assert r["peer_build"] == built | {"flash_attention": r["label"].split("=")[1]}
        assert r["token_ids"] == tokens[:12] and r["tokens_per_s"] > 0
    assert found[-1]["peer_build"] == {"from": "wheel", "flash_attention": "auto"}
    shown = report.markdown(report.sections(found))
    assert (
        "x as fast as llama.cpp" in shown
        and "(0 (0c1e57098))" in shown
        and "(xllamacpp 2026.1)" in shown
    )


def test_the_binary_gets_the_same_work_and_ends(gguf, binary):
    target = tiny.target("llama")
    job = Work(
        SimpleNamespace(config=SimpleNamespace(rope_parameters=YARN), vocab=256),
        work(target).prompts,
        4,
        Sampler(),
        0,
    )
    peer = LlamaCpp("llama.cpp", Binary(binary, "off"), gguf, "ngram-mod", gguf)
    words = " ".join(peer.build.words(peer.settings(job, "folder")))
    assert (
        "--flash-attn off" in words
        and "--spec-type ngram-mod" in words
        and f"--model-draft {gguf}" in words
    )
    assert f"--threads {torch.get_num_threads()} " in words and "--ctx-size 108 " in words
    assert "--rope-scaling yarn --rope-freq-scale 0.5 --yarn-orig-ctx 512" in words
    server = peer.start(job, str(gguf.parent))
    assert server.vocab() == 256
    server.close()
    with pytest.raises(CannotRun, match="does not answer"):
        server.vocab()


def test_reasons_why_a_binary_is_left_out(gguf, binary, tmp_path):
    target = tiny.target("llama")
    with pytest.raises(
        CannotRun, match=r"llama-server \(0 \(0c1e57098\)\) does not offer draft-new"
    ):
        LlamaCpp("llama.cpp", Binary(binary, "on"), gguf, "draft-new")
    missing = LlamaCpp("llama.cpp", Binary(binary, "on"), tmp_path / "no.gguf")
    with pytest.raises(
        CannotRun, match=r"cannot load no\.gguf \(0.01 E error: failed to open the model"
    ):
        missing.start(work(target), str(tmp_path))
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    _, lines = ChosenPeers("llama.cpp", gguf, server=other).find(target)
    assert lines == [
        "llama.cpp is left out: other --version does not answer as llama-server does: 'hello'"
    ]


@pytest.mark.skipif(
    find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: pip install 'longdraft[peers]'",
)
def test_the_installed_package_offers_what_is_used(tmp_path):
    import xllamacpp

    p = xllamacpp.CommonParams()
    made = [LlamaCpp(k, Wheel(), tmp_path / "no.gguf", k) for k in KINDS]
    assert (
        "AVX2" in made[0].build.facts["system_info"] or "NEON" in made[0].build.facts["system_info"]
    )
    assert all(peer.options["speculation"] == k for peer, k in zip(made, KINDS, strict=True))
    names = (
        "n_ctx n_parallel cache_ram_mib fit_params verbosity slot_save_path rope_scaling_type "
        "rope_freq_scale"
    )
    for name in [
        *names.split(),
        "yarn_orig_ctx",
        "yarn_beta_fast",
        "yarn_beta_slow",
        "cpuparams",
        "cpuparams_batch",
    ]:
        assert hasattr(p, name), name
    with pytest.raises(CannotRun, match=r"cannot load no\.gguf"):
        made[0].read(work(tiny.target("llama")))


def test_a_source_that_is_not_the_pinned_one_is_not_built(tmp_path, monkeypatch):
    other = tmp_path / "other.tar.gz"
    other.write_bytes(b"other")
    monkeypatch.setattr(build_llama_cpp, "URL", other.as_uri())
    monkeypatch.setattr(build_llama_cpp, "_run", lambda *words: pytest.fail(f"ran {words}"))
    with pytest.raises(ValueError, match="not the file that was pinned"):
        build_llama_cpp.build(tmp_path / "built", 1)
    assert list((tmp_path / "built").iterdir()) == []


def test_what_is_built_already_is_not_built_again(tmp_path, monkeypatch):
    monkeypatch.setattr(build_llama_cpp, "_run", lambda *words: pytest.fail(f"ran {words}"))
    done = tmp_path / build_llama_cpp.COMMIT
    done.mkdir()
    (done / build_llama_cpp.BUILD_FILE).write_text("{}")
    assert build_llama_cpp.build(tmp_path, 1) == done
    assert build_llama_cpp.BUILD_FILE == BUILD_FILE
