"""OpenVINO GenAI decodes the same prompts in an interpreter of its own; a refusal is a line in the
records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import tiny
from support.stand_ins import program
from test_bench import bench, folder, run  # noqa: F401

from longdraft.bench import records as record
from longdraft.bench import report
from longdraft.bench.peers import openvino
from longdraft.bench.peers.base import CannotRun, Work
from longdraft.bench.peers.choice import ChosenPeers
from longdraft.bench.peers.openvino import OpenVINO
from longdraft.bench.peers.worker import Worker
from longdraft.core.sampling import Sampler
from longdraft.engine import generate as engine


@pytest.fixture
def python(tmp_path) -> Path:
    """An interpreter that has openvino-genai, by what it says."""
    return program(tmp_path / "bin" / "python", "openvino_stand_in.py")


def model(where: Path, **about) -> Path:
    """A file that the stand-in reads."""
    file = where / "model.gguf"
    file.write_bytes(b"GGUF" + json.dumps(about).encode())
    return file


def peer(python: Path, file: Path) -> list[str]:
    """The options that compare with OpenVINO GenAI on this file."""
    return ["--peers", "openvino", "--peer-openvino", str(python), "--peer-model", str(file)]


def work(target, temperature: float = 0.0, rows: int = 1) -> Work:
    return Work(
        target, tiny.prompts(*[40] * rows, vocab=target.vocab), 12, Sampler(temperature), seed=3
    )


@pytest.mark.full
def test_each_of_its_modes_is_a_row(folder, python, tmp_path):  # noqa: F811
    out = tmp_path / "records.jsonl"
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
    assert (
        bench(folder, *text, "--methods", "plain", "--out", str(tmp_path / "plain.jsonl")).status
        == 0
    )
    tokens = record.load([tmp_path / "plain.jsonl"])[0]["token_ids"]
    file = model(tmp_path, tokens=[*tokens[:9], 1, 2, 3])
    words = [*peer(python, file), "--peer-draft", str(file)]
    words = [*text, *words, "--methods", "plain", "--out", str(out)]
    result = bench(folder, *words, measurement="peers")
    assert result.status == 0 and result.err == ""
    found = record.load([out])
    modes = ["openvino", "openvino prompt lookup", "openvino draft model"]
    # one engine is in memory at a time, between the repeats of ours
    assert [(r["label"], r["repeat"]) for r in found] == [
        ("plain", 0),
        (modes[0], 0),
        (modes[0], 1),
        ("plain", 1),
        *((mode, repeat) for mode in modes[1:] for repeat in (0, 1)),
    ]
    theirs = [r for r in found if r["method"] == "openvino"]
    assert {r["peer_version"] for r in theirs} == {"2026.4.1.0"}
    built = {
        "from": "wheel",
        "openvino": "2026.4.1",
        "genai": "2026.4.1.0",
        "key_value_precision": "u8",
    }
    built |= {"inference_precision_hint": "bfloat16", "optimization_capabilities": "bfloat16"}
    for r in theirs:
        assert r["peer_build"] == built and r["tokens_per_s"] > 0 and r["prompt_tokens_per_s"] > 0
        assert r["token_ids"] == [*tokens[:9], 1, 2, 3] and r["equal"] is False
        assert (r["mean_acceptance_length"] > 1) is (r["label"] != "openvino")
        assert r["first_tokens"]["compared"] == 12 and r["first_tokens"]["equal"] == 9
    assert theirs[-1]["first_tokens"]["with"] == dict.fromkeys(modes[:2], 12)
    assert theirs[-1]["options"] == {
        "speculation": "draft model",
        "file": "model.gguf",
        "draft": "model.gguf",
    }
    assert "x as fast as openvino" in report.markdown(report.sections(found))


@pytest.mark.full
def test_an_engine_that_misreads_the_file_is_not_timed(folder, python, tmp_path):  # noqa: F811
    out = tmp_path / "records.jsonl"
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
    words = peer(python, model(tmp_path, tokens=[7] * 12))
    words = [*text, *words, "--methods", "plain", "--out", str(out)]
    result = bench(folder, *words, measurement="peers")
    assert result.status == 0
    lines = result.err.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "at 64 openvino is left out",
        "at 64 openvino prompt lookup is left out",
    ]
    assert all("does not compute this model: of its first 12 tokens " in line for line in lines)
    found = record.load([out])
    assert [r["task"] for r in found] == ["speed", "left out", "left out"]
    assert [r["reason"] for r in found[1:]] == [line.split(": ", 1)[1] for line in lines]
    assert run("report", str(out), "--out", str(tmp_path)).status == 0
    assert (
        "At 64 openvino is left out: it does not compute this model"
        in (tmp_path / "report.md").read_text()
    )


@pytest.mark.full
def test_what_it_cannot_read_is_one_line(python, tmp_path):
    target = tiny.target("llama")
    file = model(tmp_path, refuses="Unsupported tensor type Q5_0")
    with pytest.raises(CannotRun, match=r"^Unsupported tensor type Q5_0$"):
        OpenVINO("openvino", python, file).read(work(target))
    with pytest.raises(CannotRun, match=r"^its process has ended \(Segmentation fault\)$"):
        OpenVINO("openvino", python, model(tmp_path, dies="Segmentation fault")).read(work(target))
    with pytest.raises(CannotRun, match="ended after 3 of 12 tokens"):
        OpenVINO("openvino", python, model(tmp_path, tokens=[1, 2, 3])).read(work(target)).decode(
            12
        )
    peer = OpenVINO("openvino", python, model(tmp_path, tokens=[1] * 12))
    with pytest.raises(CannotRun, match="one row only"):
        peer.read(work(target, rows=2))
    with pytest.raises(CannotRun, match="--temperature 0"):
        peer.read(work(target, temperature=1.0))


def test_its_process_ends(python, tmp_path):
    target = tiny.target("llama")
    job = work(target)
    tokens = engine.generate(target, job.prompts, max_new_tokens=12, eos=())[0]
    reading = OpenVINO("openvino", python, model(tmp_path, tokens=tokens)).read(job)
    assert reading.decode(12).rows == [tokens]
    reading.close()
    with pytest.raises(CannotRun, match="its process has ended"):
        reading.decode(12)


def test_an_interpreter_without_it_is_one_line(tmp_path):
    target = tiny.target("llama")
    file = model(tmp_path)
    found, lines = ChosenPeers("openvino", file, python=Path(sys.executable)).find(target)
    assert lines == [f"openvino is left out: {sys.executable} has no package openvino-genai"]
    with pytest.raises(CannotRun, match="has no package"):
        found[0].read(work(target))
    _, lines = ChosenPeers("openvino", file).find(target)
    assert lines[0].endswith("name one that has it with --peer-openvino PYTHON")


def test_the_script_runs_without_longdraft_and_its_neighbors():
    """Its folder has a transformers.py, which must not stand in for the package of that name."""
    worker = Worker(Path(sys.executable), openvino.SCRIPT)
    with pytest.raises(CannotRun, match="No module named 'openvino'"):
        worker.ask(do="load", file="x", threads=1, kind="none", keys="u8")
    source = openvino.SCRIPT.read_text()
    assert "import longdraft" not in source and "from longdraft" not in source
