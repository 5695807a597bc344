"""The trainer keeps its promises: held-out text stays out, a killed run repeats itself, faults are
said in one line.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import longdraft
from longdraft.cli import main
from longdraft.errors import InputError
from longdraft.models import eight_bits
from longdraft.training import checkpoint, data, target, tokenizer, trainer
from longdraft.training.schedule import Plan

RUN = (
    "--no-environment --text books/*.txt --vocab 300 --layers 2 --hidden 32 --heads 2 --mlp 32 "
    "--positions 256 "
)
RUN += (
    "--stage 32:40 --stage 64:20 --step-tokens 64 --guide-to 20 --log-every 1 --probe-every "
    "1000 --threads 1"
)
BUNDLED = Path(longdraft.__path__[0]) / "assets" / "models" / "target"


def write_books(folder: Path) -> None:
    """Three books to learn from and a held-out one whose name is on the list."""
    (folder / "books").mkdir()
    words = [
        "the",
        "a",
        "draft",
        "model",
        "tree",
        "cache",
        "token",
        "verify",
        "accept",
        "reject",
        "root",
        "leaf",
    ]
    for name in ("one", "two", "three", "dracula"):
        rng = random.Random(name)
        text = " ".join(rng.choice(words) for _ in range(1500))
        (folder / "books" / f"{name}.txt").write_text(
            text if name != "dracula" else "vampire " * 400
        )


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with books to be in; the number of threads is put back."""
    write_books(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(before)


def command(extra: str) -> list[str]:
    return ["target", *f"{RUN} {extra}".split()]


def losses(log: Path) -> dict[int, float]:
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return {e["step"]: e["last_loss"] for e in events if e["event"] == "step"}


@pytest.fixture
def run(workplace, capsys, monkeypatch):
    """run(options) -> (status, standard output, standard error)."""
    monkeypatch.setattr(sys, "argv", ["longdraft", "train"])  # what a record of the run states

    def call(extra: str, books: str = "books") -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(("train", *(word.replace("books", books) for word in command(extra))))
        return status, *capsys.readouterr()

    return call


def kill_in_the_middle(extra: str, log: Path) -> None:
    """Start a run and kill it once its log has twelve steps."""
    source = Path(longdraft.__path__[0]).parent
    words = [sys.executable, "-m", "longdraft", "train", *command(extra)]
    child = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(source)}, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while (
        time.monotonic() < deadline
        and child.poll() is None
        and (not log.exists() or len(losses(log)) < 12)
    ):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the run ended before it could be killed"


@pytest.mark.full
@pytest.mark.weekly
def test_killed_run_resumes_to_the_same_losses(run):
    status, _, err = run("--work whole --out whole-out --contexts=")
    assert status == 0, err
    expected = losses(Path("whole/log.jsonl"))
    assert sorted(expected) == list(range(1, 61)) and expected[60] < expected[1] - 0.5

    kill_in_the_middle(
        "--work cut --out cut-out --save-seconds 0 --contexts=", Path("cut/log.jsonl")
    )
    log = Path("cut/log.jsonl")
    killed_at = int(checkpoint.latest(Path("cut/checkpoints")).name[5:])
    assert 5 < killed_at < 60

    status, _, err = run("--work cut --out cut-out --resume --contexts=")
    assert status == 0, err
    assert losses(log) == expected
    weights = [
        checkpoint.latest(Path(f"{name}/checkpoints")) / "model.safetensors"
        for name in ("whole", "cut")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert [
        r["from_step"] for r in json.loads(Path("cut-out/training.json").read_text())["runs"]
    ] == [0, killed_at]

    # the same in parts of some minutes, of which the second is killed
    parts = "--work parts --out parts-out --save-seconds 0 --contexts="
    assert "stopped at step 1 of 60" in run(f"{parts} --minutes 0.000001")[1]
    kill_in_the_middle(f"{parts} --minutes 50 --resume", Path("parts/log.jsonl"))
    status, _, err = run(f"{parts} --minutes 50 --resume")
    assert status == 0, err
    assert losses(Path("parts/log.jsonl")) == expected


@pytest.mark.full
def test_exported_model_loads_offline_and_is_described(run):
    assert run("--work run --out out --contexts 16,64")[0] == 0
    model = AutoModelForCausalLM.from_pretrained("out", local_files_only=True)
    known = AutoTokenizer.from_pretrained("out", local_files_only=True)
    assert model.dtype == torch.bfloat16 and model.config.model_type == "qwen3"
    text = "def näive(x):\n\treturn x  # 語\n"
    ids = known(text, return_tensors="pt").input_ids
    assert (
        known.decode(ids[0]) == text
        and ids.max() < 300
        and known.eos_token_id == model.config.eos_token_id == 0
    )
    assert torch.isfinite(model(ids).logits).all()
    record = json.loads(Path("out/training.json").read_text())
    assert (
        record["step"] == 60
        and record["tokens"] == 60 * 64
        and record["runs"][0]["stages"] == [[32, 40], [64, 20]]
    )
    assert record["runs"][0]["command"].startswith("longdraft train")
    assert json.loads(Path("out/holdout.json").read_text())["files"] == ["books/dracula.txt"]
    assert set(record["full_probes"]["book"]["by_context"]) == {"16", "64"}
    assert not list(Path("out").glob("*.bin")) and not list(Path().glob(".out*"))


@pytest.mark.full
def test_a_hybrid_is_exported_stored_in_8_bits_and_reads_back(run):
    hybrid = "--architecture qwen3_5_text --layers 4 --work run --out out --contexts="
    assert run(f"{hybrid} --stop-at 3")[0] == 0
    status, _, err = run(f"{hybrid} --resume --export-only")
    assert status == 0, err
    model = AutoModelForCausalLM.from_pretrained(
        "out", local_files_only=True, dtype=torch.float32
    ).eval()
    assert model.config.model_type == "qwen3_5_text" and model.config.architectures == [
        "Qwen3_5ForCausalLM"
    ]
    assert "lm_head.weight" not in load_file("out/model.safetensors"), (
        "tied embeddings are stored once"
    )
    before, after = eight_bits.store(Path("out"), Path("packed"))
    packed, info = eight_bits.load_model(
        type(model), "packed", config=model.config, output_loading_info=True
    )
    assert after < 0.8 * before and not info["missing_keys"]
    ids = torch.arange(1, 100)[None]
    assert (
        packed.eval()(ids).logits.softmax(-1) - model(ids).logits.softmax(-1)
    ).abs().max() < 1e-3


def test_held_out_text_is_in_neither_corpus_nor_tokenizer(workplace):
    Path("books/copy.txt").write_text(Path("books/one.txt").read_text())
    corpus, heldout = target.prepare(
        Path("run"), data.Sources(["books/*.txt"], environment=False), 300, 256
    )
    assert (
        sorted(corpus.names) in (["books/copy.txt", "books/three.txt", "books/two.txt"],)
        and len(heldout.names) == 1
    )
    known = tokenizer.load(Path("run/data/tokenizer"))
    assert "vampire" not in known.decode(corpus.tokens.tolist()) and "vampire" in known.decode(
        heldout.tokens.tolist()
    )
    assert len(known.encode("vampire").ids) > len(known.encode(" verify").ids)
    assert [int(corpus.tokens[e - 1]) for e in corpus.starts[1:]] == [0, 0, 0] and (
        corpus.tokens == 0
    ).sum() == 3


def test_the_bundled_list_names_what_must_stay_out():
    names = [
        "stdlib/argparse.py",
        "stdlib/turtle.py",
        "books/moby-dick.txt",
        "typer/main.py",
        "accelerate/utils/a.py",
    ]
    assert all(data.held_out(name, target.HELD_OUT) for name in names)
    assert not any(
        data.held_out(n, target.HELD_OUT)
        for n in ("stdlib/ast.py", "books/ulysses.txt", "torch/typing.py")
    )


def tiny_run(folder: Path, loss_of, steps: int = 6, **more):
    model = target.build(vocab=64, layers=1, hidden=16, heads=2, mlp=16, positions=64, seed=0)
    more = {"command": "test", "rates": (0.02, 0.003), "save_seconds": 0, **more}
    return model, lambda: trainer.train(
        model, loss_of(model), trainer.TrainingSettings(Plan(((8, steps),), 8), folder, **more)
    )


def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_good_weights(tmp_path):
    def loss_of(model):
        tokens = torch.arange(9)[None]
        return lambda step: (
            target.loss(model, tokens, tokens, False) * (math.nan if step == 4 else 1)
        )

    model, go = tiny_run(tmp_path, loss_of)
    with pytest.raises(InputError, match=r"not a number at step 4 .*step-00000004.*lower"):
        go()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert checkpoint.load(checkpoint.latest(tmp_path / "checkpoints"), model, [])["step"] == 4


def test_asked_to_stop_keeps_the_step_in_hand_and_resumes_with_the_rates_now_given(tmp_path):
    def loss_of(model):
        def one(step):
            if step == 2 and not more["resume"]:
                signal.raise_signal(signal.SIGTERM)
            return target.loss(model, torch.arange(9)[None], torch.arange(9)[None], False)

        return one

    more = {"resume": False, "save_seconds": 1000}
    handler = signal.getsignal(signal.SIGTERM)
    _, go = tiny_run(tmp_path, loss_of, **more)
    assert go()["step"] == 3 and signal.getsignal(signal.SIGTERM) is handler
    before = checkpoint.latest(tmp_path / "checkpoints") / "model.safetensors"
    stopped = before.read_bytes()
    more = {"resume": True, "rates": (0.0, 0.0)}
    _, go = tiny_run(tmp_path, loss_of, **more)
    assert go()["step"] == 6
    assert (
        checkpoint.latest(tmp_path / "checkpoints") / "model.safetensors"
    ).read_bytes() == stopped


def test_a_full_disk_is_said_and_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    def loss_of(model):
        def one(step):
            if step == 3:
                monkeypatch.setattr(checkpoint, "save_file", full)
            return target.loss(model, torch.arange(9)[None], torch.arange(9)[None], False)

        return one

    _, go = tiny_run(tmp_path, loss_of)
    with pytest.raises(InputError, match="No space left"):
        go()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000002",
        "step-00000003",
    ]
    if Path("/dev/full").exists():
        with pytest.raises(InputError, match="No space left"):
            trainer.EventLog(Path("/dev/full")).write("step")


@pytest.mark.full
def test_a_checkpoint_of_version_0_1_0_is_continued(run):
    assert run("--work run --out out --stop-at 2 --contexts=")[0] == 0
    path = checkpoint.latest(Path("run/checkpoints"))
    (path / "optimizers.pt").rename(path / "optimisers.pt")
    assert run("--work run --out out --resume --contexts=")[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("damaged", ["model.safetensors", "optimizers.pt", "state.json"])
def test_an_unreadable_checkpoint_is_named(run, damaged):
    assert run("--work run --out out --stop-at 2 --contexts=")[0] == 0
    path = checkpoint.latest(Path("run/checkpoints"))
    (path / damaged).write_bytes(b"not what was written")
    status, _, err = run("--work run --out out --resume --contexts=")
    assert status == 2 and "unreadable checkpoint" in err and str(path) in err


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("--work run --resume", "no checkpoint"),
        ("--stage 512:3", "256 positions"),
        ("--text nothing/*.txt", "nothing/*.txt"),
        ("--vocab 100", "258"),
        ("--hidden 33", "--hidden is 33: give a multiple"),
        ("--architecture qwen4", "choose qwen3 or qwen3_5_text"),
        ("--architecture qwen3_5_text", "--layers is 2: give 4 or more"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(run, extra, said):
    status, out, err = run(f"--out out {extra}")
    assert status == 2 and out == "" and said in err and err.count("\n") == 1, err


@pytest.mark.full
def test_a_tiny_corpus_is_refused_and_a_run_is_never_overwritten(run):
    Path("tiny").mkdir()
    Path("tiny/a.txt").write_text("one two three " * 40)
    status, _, err = run("--out out --work few", books="tiny")
    assert status == 2 and "tokens to train on" in err
    assert run("--work run --out out --stop-at 1 --contexts=")[0] == 0
    status, _, err = run("--work run --out out")
    assert status == 2 and "--resume" in err


@pytest.mark.skipif(
    not (BUNDLED / "model.safetensors").exists(), reason="no bundled target in this checkout"
)
def test_the_bundled_target_is_real_small_and_knows_its_origin():
    record = json.loads((BUNDLED / "training.json").read_text())
    assert record["runs"] and all(
        "/" not in run["command"].split("--work")[1].split()[0] for run in record["runs"]
    )
    assert (BUNDLED / "model.safetensors").stat().st_size < 16e6
    patterns = json.loads((BUNDLED / "holdout.json").read_text())["patterns"]
    assert patterns == target.HELD_OUT
    model = AutoModelForCausalLM.from_pretrained(
        BUNDLED, local_files_only=True, dtype=torch.float32
    )
    known = AutoTokenizer.from_pretrained(BUNDLED, local_files_only=True)
    text = (
        "import os\n\n\ndef main():\n    for name in os.listdir('.'):\n        "
        "print(name)\n\n\nif __name__ == '__main"
    )
    ids = known(text, return_tensors="pt").input_ids
    with torch.no_grad():
        assert model(ids, labels=ids).loss < 0.7 * math.log(4096)
