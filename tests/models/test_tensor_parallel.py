"""A model divided among two processes: the same tokens, half the bytes, and no process that waits
for ever.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support import divided, tiny
from support.listed import OPTIONS
from transformers import LlamaConfig

from longdraft.core.processes import Team
from longdraft.errors import InputError
from longdraft.models import tensor_parallel
from longdraft.models.identity import fingerprint
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm
from longdraft.models.tensor_parallel import options_for

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import scale  # noqa: E402

# grouped heads, biases, experts, windows, tied embeddings, a vocabulary that does not divide
MODELS = {
    "llama": {},
    "qwen2": {},
    "qwen3-moe": {},
    "gemma2-softcap": {},
    "llama-mha": {"vocab_size": 95},
}
TEXT = " ".join(f"It was the {n}th of the month, and nobody had seen the boat." for n in range(60))


def torchrun(*words: str, **options) -> subprocess.Popen:
    """Two processes, which meet at a port of their own: another test may do the same at this
    moment.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        port,
        *words,
    ]
    options.setdefault("env", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    return subprocess.Popen(
        start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def both(what: str, folder: Path, out: Path) -> list[dict]:
    """What the two processes of divided.py have written."""
    running = torchrun(str(ROOT / "tests" / "support" / "divided.py"), what, str(folder), str(out))
    _, err = running.communicate(timeout=120)
    assert running.returncode == 0, err[-3000:]
    return [json.loads((out / f"{what}{rank}.json").read_text()) for rank in (0, 1)]


def saved(name: str, folder: Path, **changes) -> Path:
    """A tiny model in a folder, some of its sizes changed."""
    config = tiny.CONFIGS[name]
    try:
        tiny.CONFIGS[name] = type(config)(**{**config.to_dict(), **changes})
        tiny.stock(name).save_pretrained(folder / name)
    finally:
        tiny.CONFIGS[name] = config
    return folder / name


def eager(folder: Path) -> LM:
    lm = load_lm(str(folder), "float32")
    lm.backend = lm.eager
    return lm


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """A folder of models, and what each of two processes found of them."""
    out = tmp_path_factory.mktemp("halves")
    for name, changes in MODELS.items():
        saved(name, out / "models", **changes)
    return out / "models", both("halves", out / "models", out)


@pytest.mark.full
@pytest.mark.weekly
def test_every_method_says_what_plain_decoding_says(halves):
    folder, found = halves
    first, second = (each["methods"] for each in found)
    assert first == second, "the processes have different outputs"
    assert not first["exact"], "sums of parts depend on what is computed beside them"
    whole = eager(folder / "llama")
    for sampler in divided.SAMPLERS:
        assert first[f"plain {sampler}"] == divided.decode(whole, sampler), (
            "one process says something else"
        )
    wrong = [name for name, found in first.items() if found is False and name != "exact"]
    assert not wrong and len(first) == 4 + len(OPTIONS) + len(divided.GREEDY)


@pytest.mark.full
@pytest.mark.weekly
def test_each_process_holds_its_share(halves):
    folder = halves[0]
    found = [each["models"] for each in halves[1]]
    for name in MODELS:
        lm = eager(folder / name)
        (logits, scores), cache = divided.logits(lm), lm.new_cache(1, 8)
        lm.prefill([5, 6, 7], cache)
        matrices = sum(
            p.nbytes for p in {id(p): p for p in lm.hf.parameters() if p.dim() > 1}.values()
        )
        routers = sum(
            p.nbytes for n, p in lm.hf.named_parameters() if n.endswith("mlp.gate.weight")
        )
        for one in (each[name] for each in found):
            assert torch.allclose(torch.tensor(one["logits"]), logits, atol=1e-3), name
            for mean in one["last"]:
                assert torch.allclose(torch.tensor(mean), scores[max(scores)], atol=1e-4), name
            small = 4 * 96 * 30  # norms and biases are whole in each
            assert one["slot"] * 2 == cache.nbytes(1), name
            assert (matrices + routers) / 2 <= one["weights"] <= (matrices + routers) / 2 + small, (
                name
            )
            assert one["digest"] == fingerprint(lm)["digest"], name
            assert torch.equal(
                torch.tensor(one["rows"]), lm.head_rows(torch.tensor([3, 60])).weight
            ), name
            assert one["tokens"] == divided.decode(lm, "T=1"), name
        own = [each[name].pop("scores") for each in found]
        assert found[0][name] == found[1][name], f"{name}: the processes differ"
        assert own[0] != own[1]
        for layer in scores:
            mean = (torch.tensor(own[0][str(layer)]) + torch.tensor(own[1][str(layer)])) / 2
            assert torch.allclose(mean, scores[layer], atol=1e-4), name


@pytest.mark.full
@pytest.mark.weekly
def test_an_audit_and_a_benchmark_are_of_all_processes(halves):
    out = halves[0].parent
    found = halves[1]
    assert [each["statuses"] for each in found] == [[0, 0], [0, 0]]
    audit = json.loads((out / "audit.json").read_text())
    assert audit["complete"] and audit["failures"] == 0 and audit["tensor_parallel"] == 2
    records = [json.loads(line) for line in (out / "bench.jsonl").read_text().splitlines()]
    assert [(r["method"], r["tensor_parallel"]) for r in records] == [("plain", 2), ("suffix", 2)]


@pytest.mark.timing
@pytest.mark.full
@pytest.mark.weekly
def test_processes_that_disagree_say_so_and_do_not_hang(tmp_path):
    begin = time.monotonic()
    found = both("faults", saved("llama", tmp_path), tmp_path)
    for said in found:
        assert "disagree" in said["another seed"] and "disagree" in said["another prompt"], said
        assert "has not answered" in said["late"], said
    assert time.monotonic() - begin < 60


def longdraft(tmp_path: Path, *words: str) -> subprocess.Popen:
    (tmp_path / "text.txt").write_text(TEXT)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return torchrun("-m", "longdraft", *words, env=environment, cwd=tmp_path)


GENERATE = [
    "generate",
    "--prompt-file",
    "text.txt",
    "--dtype",
    "float32",
    "--json",
    "--ignore-eos",
    "-m",
    "bundled",
]


@pytest.mark.full
@pytest.mark.weekly
def test_the_command_prints_one_record(tmp_path, capsys):
    from longdraft.cli import main

    # whether drafting pays here is another question
    drafts = [
        "-o",
        "min_budget=64",
        "-o",
        "pace=off",
    ]
    words = [*GENERATE, "--compare", "--max-new-tokens", "40", "--temperature", "1", *drafts]
    out, err = longdraft(tmp_path, *words).communicate(timeout=120)
    record = json.loads(out)
    assert record["tensor_parallel"] == 2 and record["equal"] and not record["exact"], err[-2000:]
    assert record["mean_acceptance_length"] > 1.2 and "longdraft:" not in err
    words[words.index("text.txt")] = str(tmp_path / "text.txt")
    assert main(words) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["token_ids"] == record["token_ids"] and alone["tensor_parallel"] == 1


@pytest.mark.full
@pytest.mark.weekly
def test_an_error_is_one_line(tmp_path):
    saved("llama-mqa", tmp_path)
    running = longdraft(
        tmp_path, "generate", "-m", str(tmp_path / "llama-mqa"), "--prompt-file", "text.txt"
    )
    out, err = running.communicate(timeout=120)
    lines = [line for line in err.splitlines() if line.startswith("longdraft:")]
    said = (
        "longdraft: 2 processes cannot share 1 key heads: start it without torchrun, or use "
        "another model"
    )
    assert lines == [said], err[-2000:]
    assert running.returncode and not out and "exitcode  : 2" in err


@pytest.mark.timing
@pytest.mark.full
@pytest.mark.weekly
def test_an_interrupt_ends_all_with_the_tokens_so_far(tmp_path):
    words = [*GENERATE, "--max-new-tokens", "3000", "--method", "plain"]
    words.remove("--json")
    running = longdraft(tmp_path, *words)
    assert running.stdout is not None and running.stdout.read(1)  # it decodes
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode and out and "disagree" not in err and "longdraft:" not in err, err[
        -2000:
    ]
    assert err.count("plain: ") == 1, err[-2000:]


@pytest.mark.parametrize("command", ["serve", "chat", "demo"])
def test_other_commands_are_refused(command, cli, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    status, _, err = cli(command)
    assert status == 2 and err.count("\n") == 1 and "runs in one process" in err


@pytest.mark.parametrize(
    ("config", "count", "reason"),
    [
        (LlamaConfig(**tiny.BASE), 4, "4 processes cannot share 2 key heads: start 2 processes"),
        (
            LlamaConfig(**{**tiny.BASE, "num_attention_heads": 32, "num_key_value_heads": 8}),
            3,
            "start 2 or 4 or 8 processes",
        ),
        (
            tiny.CONFIGS["llama-mqa"],
            2,
            "2 processes cannot share 1 key heads: start it without torchrun",
        ),
        (tiny.CONFIGS["llama-6of3"], 2, "2 processes cannot share 3 key heads: start 3 processes"),
        (LlamaConfig(**{**tiny.BASE, "intermediate_size": 97}), 2, "97 features"),
        (tiny.CONFIGS["gpt-oss"], 2, "no plan"),
        (LlamaConfig(**tiny.BASE), 2, None),
        (LlamaConfig(**tiny.BASE), 1, None),
    ],
)
def test_what_cannot_be_divided_is_refused(config, count, reason):
    if reason is None:
        assert ("distributed_config" in options_for(config, Team(0, count))) == (count > 1)
        return
    with pytest.raises(InputError, match=reason):
        options_for(config, Team(0, count))


def test_without_accelerate_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(tensor_parallel, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install accelerate"):
        options_for(LlamaConfig(**tiny.BASE), Team(0, 2))


def test_packed_weights_are_not_divided():
    with pytest.raises(InputError, match="cannot be divided"):
        load_lm("bundled", weights="int8", team=Team(0, 2))


@pytest.mark.full
def test_the_tables_of_scale_are_counted():
    assert scale.main(["--check"]) == 0, "run python docs/scale.py"
