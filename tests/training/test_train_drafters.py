"""`longdraft train KIND`: a drafter of a folder of text, runs that resume to the same losses,
faults in one line.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.place import words

from longdraft import InputError
from longdraft.core.processes import Team
from longdraft.methods import METHODS
from longdraft.training.instructions import ABOUT_CODE, ABOUT_PROSE, ask
from longdraft.training.trainer import stale

QUICK = (
    "-m tiny --text corpus.txt --length 32 --step-tokens 64 --no-bf16 --threads 1 --log-every "
    "1 --probe-every 3"
)
USES = {
    "glide": ("longspec-chain", "--length 32"),
    "heads": ("tokenswift", "-o labels=text"),
    "medusa": ("medusa", ""),
    "eagle": ("eagle3", "-o depth=2"),
    "dflash": ("dflash", "-o slots=4 -o labels=law"),
    "budget": ("budgetdraft", "-o small=tiny -o tail=8"),
}


def losses(folder: str) -> dict[int, float]:
    events = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
    return {e["step"]: e["last_loss"] for e in events if e["event"] == "step"}


@pytest.fixture(autouse=True)
def text(place, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["longdraft", "train"])  # what a record of the run states
    if not Path("corpus.txt").is_file():
        Path("corpus.txt").write_text(words(5000, 1), encoding="utf-8")


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    [k if k in ("glide", "eagle") else pytest.param(k, marks=pytest.mark.weekly) for k in USES],
)
def test_a_drafter_is_trained_resumed_and_used(cli, record, tmp_path, kind):
    method, more = USES[kind]
    line = f"{kind} {QUICK} {more} --steps 6".split()
    status, out, err = cli("train", *line, "--out", str(tmp_path / "whole"))
    assert status == 0, err
    assert "step 6," in out
    options = ["--out", str(tmp_path / "parts")]
    status, out, _ = cli("train", *line, *options, "--stop-at", "3")
    assert status == 0 and "stopped at step 3 of 6" in out
    assert cli("train", *line, *options, "--resume")[0] == 0
    want = losses(f"{tmp_path}/whole.run")
    assert sorted(want) == [1, 2, 3, 4, 5, 6] and losses(f"{tmp_path}/parts.run") == want
    facts = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert facts["runs"][0]["command"].startswith("longdraft train")
    assert facts["probes"][-1]["book"]["by_depth"] and facts["runs"][0]["versions"]["torch"]
    found = record(
        "--prompt-file",
        "a.txt",
        "--method",
        method,
        "--drafter",
        str(tmp_path / "whole"),
        "--compare",
    )
    assert found["equal"] and found["drafter"] == "whole"
    assert METHODS[method].needs


@pytest.mark.full
def test_a_run_of_some_minutes_is_resumed_to_the_same_losses(cli, tmp_path, monkeypatch):
    line = f"glide {QUICK} --steps 6".split()
    assert cli("train", *line, "--out", str(tmp_path / "whole"))[0] == 0
    options = ["--out", str(tmp_path / "parts"), "--minutes", "0.000001"]
    status, out, _ = cli("train", *line, *options)
    assert status == 0 and "stopped at step 1 of 6" in out
    for step in range(2, 6):
        assert f"stopped at step {step} of 6" in cli("train", *line, *options, "--resume")[1]
    assert "step 6," in cli("train", *line, *options, "--resume")[1]
    assert losses(f"{tmp_path}/parts.run") == losses(f"{tmp_path}/whole.run")


BAD = {
    "glide --out o -m tiny --text corpus.txt --length 32 -o labels=nobody": "give target or text",
    "glide --out o -m tiny --text corpus.txt --length 32 -o gamma=3": "labels, lags",
    "glide --out o -m tiny --text nothing/* --length 32": "no readable text matches",
    "glide --out o -m tiny --text corpus.txt --length 4096": "512 positions",
    "glide --out o -m tiny --text empty.txt --length 32": "no readable text",
    "glide --out o -m tiny --text long.txt --length 16": "tokens to train on",
    "medusa --out o -m tiny --text corpus.txt --length 32 --resume": "no checkpoint there",
    "budget --out o -m tiny --text corpus.txt --length 32 -o width=20": "multiple of 16",
    "dflash --out o -m tiny --text corpus.txt --length 32 -o slots=1": "from 2 to 64",
    "eagle --out o -m nothing --text corpus.txt": "no config.json",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line(cli, tmp_path, line):
    found = line.replace("--out o", f"--out {tmp_path}/o").split()
    status, out, err = cli("train", *found)
    assert status == 2 and out == ""
    assert len(err.splitlines()) == 1 and BAD[line] in err


@pytest.mark.full
def test_json_lines_are_documents(cli, tmp_path):
    lines = "\n".join(json.dumps({"text": words(300, seed)}) for seed in range(8))
    (tmp_path / "t.jsonl").write_text(lines)
    line = ["medusa", "-m", "tiny", "--length", "32", "--steps", "2", "--no-bf16", "--threads", "1"]
    status, _, err = cli(
        "train", *line, "--text", str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "m")
    )
    assert status == 0, err
    names = json.loads((tmp_path / "m.run" / "data" / "train" / "corpus.json").read_text())["names"]
    assert len(names) == 8 and names[0].endswith("t.jsonl:1")
    (tmp_path / "t.jsonl").write_text(lines + '\n{"words": 3}')
    status, _, err = cli(
        "train", *line, "--text", str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "n")
    )
    assert status == 2 and "line 9" in err and len(err.splitlines()) == 1


def test_a_run_ends_when_acceptance_no_longer_rises():
    def looks(*found: float) -> list[dict]:
        return [{"acceptance": f} for f in found]

    assert not stale(looks(1.0, 1.0, 1.0), 0) and not stale(looks(1.0, 0.9), 2)
    assert stale(looks(1.0, 1.2, 1.1, 1.2), 2) and not stale(looks(1.0, 1.2, 1.1, 1.3), 2)


@pytest.mark.full
def test_a_small_model_of_its_own(cli, record, tmp_path):
    """Without -o small, BudgetDraft's model is new: as wide as asked for, and with the target's
    embeddings reduced.

    Its input and output matrices are one, in a checkpoint too.
    """
    line = f"budget {QUICK} -o tail=31 -o width=32 -o layers=1 -o labels=text -o share=0 --steps 4".split()  # noqa: E501
    assert cli("train", *line, "--out", str(tmp_path / "whole"))[0] == 0
    assert cli("train", *line, "--out", str(tmp_path / "parts"), "--stop-at", "2")[0] == 0
    # tied matrices are in a checkpoint
    assert cli("train", *line, "--out", str(tmp_path / "parts"), "--resume")[0] == 0
    assert losses(f"{tmp_path}/parts.run") == losses(f"{tmp_path}/whole.run")
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["tie_word_embeddings"]) == (
        32,
        1,
        True,
    )
    found = record(
        "--prompt-file",
        "a.txt",
        "--method",
        "sd",
        "--drafter",
        str(tmp_path / "whole"),
        "--compare",
    )
    assert found["equal"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "method"), [("glide", "longspec"), ("heads", "tokenswift"), ("medusa", "medusa")]
)
def test_a_drafter_with_some_of_the_tokens(cli, record, tmp_path, kind, method):
    """They are the text's most frequent ones, and are stored as their numbers."""
    line = f"{kind} {QUICK} -o vocab=20 --steps 3".split()
    assert cli("train", *line, "--out", str(tmp_path / "d"))[0] == 0
    weights = load_file(tmp_path / "d" / "model.safetensors")
    tokens = weights["vocabulary.tokens"]
    text = np.load(tmp_path / "d.run" / "data" / "train" / "tokens.npy")
    counts = np.bincount(text)
    assert len(tokens) == 20 and counts[tokens].min() >= np.delete(counts, tokens).max()
    found = record(
        "--prompt-file", "a.txt", "--method", method, "--drafter", str(tmp_path / "d"), "--compare"
    )
    assert found["equal"]


@pytest.mark.full
def test_a_run_begins_with_a_drafters_weights(cli, tmp_path):
    line = f"glide {QUICK} --steps 3".split()
    assert cli("train", *line, "--out", str(tmp_path / "first"))[0] == 0
    more = [*line, "--start", str(tmp_path / "first")]
    assert cli("train", *more, "--out", str(tmp_path / "next"))[0] == 0
    first = losses(f"{tmp_path}/first.run")
    following = losses(f"{tmp_path}/next.run")
    assert following[1] < first[1] - 0.05
    status, _, err = cli("train", *line, "--start", "nowhere", "--out", str(tmp_path / "other"))
    assert status == 2 and "nowhere" in err and len(err.splitlines()) == 1


def test_patience_exports_the_best_weights(cli, tmp_path, monkeypatch):
    found = iter((1.0, 1.5, 1.2, 1.4))
    monkeypatch.setattr("longdraft.training.run.acceptance", lambda *_: {"acceptance": next(found)})
    line = f"medusa {QUICK} --steps 9 --probe-every 1 --patience 2 --out {tmp_path}/m".split()
    status, out, _ = cli("train", *line)
    assert status == 0 and "step 2," in out  # ended after step 4
    assert json.loads((tmp_path / "m" / "training.json").read_text())["step"] == 2
    assert sorted(losses(f"{tmp_path}/m.run")) == [1, 2, 3, 4]


@pytest.mark.full
def test_a_small_model_with_the_targets_tokenizer(cli, tmp_path):
    line = (
        "target --no-environment --text corpus.txt --layers 1 --hidden 32 --heads 2 --mlp 32 "
        "--positions 256"
    )
    line = f"{line} --stage 32:3 --step-tokens 64 --threads 1 --contexts= --tokenizer tiny".split()
    options = ["--out", str(tmp_path / "small"), "--work", str(tmp_path / "run")]
    status, _, err = cli("train", *line, *options, "--vocab", "300")
    assert status == 2 and "315 entries" in err
    assert cli("train", *line, *options, "--vocab", "320")[0] == 0
    known = json.loads((tmp_path / "small" / "tokenizer.json").read_text())["model"]["vocab"]
    assert known == json.loads(Path("tiny/tokenizer.json").read_text())["model"]["vocab"]
    status, out, err = cli("train", "plot", str(tmp_path / "run"))
    if find_spec("matplotlib") is None:
        assert status == 2 and "longdraft[plots]" in err
        return
    assert status == 0 and Path(out.strip()).read_bytes()[:4] == b"\x89PNG"
    status, _, err = cli("train", "plot", str(tmp_path))
    assert status == 2 and "holds no run" in err


@pytest.mark.full
def test_the_targets_own_words_are_written_and_gone_on_with(cli, tmp_path):
    out = tmp_path / "own.jsonl"
    line = [
        "text",
        "-m",
        "tiny",
        "--text",
        "corpus.txt",
        "--prompt-tokens",
        "9",
        "--max-new-tokens",
        "20",
        "--dtype",
        "float32",
        "--threads",
        "1",
    ]
    assert cli("train", *line, "--out", str(out), "--count", "3")[0] == 0
    whole = out.read_text()
    texts = [json.loads(x)["text"] for x in whole.splitlines()]
    assert len(set(texts)) == 3 and all(texts)
    out.write_text(whole[: len(whole) // 2])  # a run that was killed as it wrote
    status, said, _ = cli("train", *line, "--out", str(out), "--count", "3")
    assert status == 0 and out.read_text() == whole and "3 in" in said
    Path("notes.txt").write_text("mine\n")
    status, _, err = cli("train", *line, "--out", "notes.txt", "--count", "3")
    assert (
        status == 2
        and "was not written by this command" in err
        and Path("notes.txt").read_text() == "mine\n"
    )


@pytest.mark.full
def test_conversations_of_the_target(cli, tmp_path, monkeypatch):
    """With --chat every text holds whole conversations, also those that a second run adds."""
    monkeypatch.setattr(
        "longdraft.cli.train_text.chat_tokens",
        lambda tokenizer, said: tokenizer(said[0]["content"])["input_ids"],
    )
    line = [
        "text",
        "-m",
        "tiny",
        "--text",
        "corpus.txt",
        "--chat",
        "--turns",
        "2",
        "--max-new-tokens",
        "5",
    ]
    line += [
        "--prompt-tokens",
        "24",
        "--dtype",
        "float32",
        "--threads",
        "1",
        "--work",
        str(tmp_path / "run"),
    ]
    assert cli("train", *line, "--out", str(tmp_path / "whole.jsonl"), "--count", "3")[0] == 0
    for count in ("1", "3"):
        assert cli("train", *line, "--out", str(tmp_path / "parts.jsonl"), "--count", count)[0] == 0
    whole = Path(str(tmp_path / "whole.jsonl")).read_text()
    assert (tmp_path / "parts.jsonl").read_text() == whole and len(whole.splitlines()) == 3


def test_questions_contain_the_piece():
    rng = np.random.default_rng(0)
    for code in (True, False):
        asked = {ask("a {} b", code, rng) for _ in range(300)}
        assert len(asked) == len(ABOUT_CODE if code else ABOUT_PROSE) and all(
            "a {} b" in a for a in asked
        )


ALONE = [sys.executable, "-m"]


def in_two() -> list[str]:
    """How two processes are started, which meet at a port of their own: another test may do the
    same at this moment.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    return [*ALONE, "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "how"),
    [pytest.param("medusa", [], marks=pytest.mark.weekly), ("glide", ["--spread"])],
)
def test_two_processes_learn_what_one_does(place, tmp_path, kind, how):
    line = f"{kind} {QUICK} --steps 4 --accumulate 2 --probe-every 2".split()
    for name, start in (("alone", ALONE), ("both", [*in_two(), "-m"])):
        line += how if name == "both" else []
        said = subprocess.run(
            [*start, "longdraft", "train", *line, "--out", str(tmp_path / name)],
            capture_output=True,
            timeout=120,
        )
        assert said.returncode == 0, said.stderr.decode()[-2000:]
    one = losses(f"{tmp_path}/alone.run")
    two = losses(f"{tmp_path}/both.run")
    assert sorted(one) == [1, 2, 3, 4] and two == pytest.approx(one, rel=1e-5)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("alone", "both")]
    assert all(
        torch.allclose(weights[0][k].float(), weights[1][k].float(), atol=1e-2) for k in weights[0]
    )
    facts, configs = (
        [json.loads((tmp_path / name / f"{what}.json").read_text()) for name in ("alone", "both")]
        for what in ("training", "config")
    )
    assert facts[1]["tokens"] == 4 * 2 * 64 and facts[0]["probes"] == facts[1]["probes"]
    assert configs[0]["longdraft"] == configs[1]["longdraft"]


HALVES = """
import sys

import torch
from longdraft.cli.processes import leave
from longdraft.models.loading import load_lm
from longdraft.core.processes import joined
from longdraft.training.processes import spread
from longdraft.core.tree import Tree

torch.set_grad_enabled(False)
team, lm = joined(), load_lm("tiny", "float32")
tree = Tree.chain(torch.tensor([[5, 6, 7]]))
whole, lm.backend = sum(p.numel() for p in lm.hf.get_decoder().layers.parameters()), lm.eager
want = lm(tree, lm.new_cache(1, 3))
lm = spread(lm, team)
mine = sum(p.to_local().numel() for p in lm.hf.get_decoder().layers.parameters())
same = torch.equal(lm(tree, lm.new_cache(1, 3)), want) and mine * 2 == whole
with open(sys.argv[1] + str(team.rank), "w") as said:
    said.write(str(same))
leave(0)
"""


@pytest.mark.full
def test_a_spread_target_is_held_once_and_says_the_same(cli, place, tmp_path):
    (tmp_path / "halves.py").write_text(HALVES)
    line = [*in_two(), str(tmp_path / "halves.py"), str(tmp_path / "said")]
    found = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[:2000]
    assert [(tmp_path / f"said{rank}").read_text() for rank in (0, 1)] == ["True", "True"]
    status, _, err = cli("train", *f"medusa {QUICK} --spread --out {tmp_path}/o".split())
    assert status == 2 and "torchrun" in err


ENDS = """
import atexit, sys
from pathlib import Path

from longdraft.cli import main

said = sys.argv.pop(1)
atexit.register(Path(said + "-exit").touch)
main()
Path(said + "-after").touch()
"""


@pytest.mark.full
@pytest.mark.weekly
def test_a_process_of_several_ends_without_finalization(place, tmp_path):
    """A thread of torch that drops a tensor while the interpreter is finalized aborts one run in
    five of --spread.
    """
    (tmp_path / "ends.py").write_text(ENDS)
    line = ["generate", "-m", "tiny", "a b c", "--max-new-tokens", "2", "--dtype", "float32"]
    for start, after in ((ALONE[:1], True), (in_two(), False)):
        left = tmp_path / ("several" if len(start) > 1 else "alone")
        said = subprocess.run(
            [*start, str(tmp_path / "ends.py"), str(left), *line], capture_output=True, timeout=120
        )
        assert said.returncode == 0, said.stderr.decode()[-2000:]
        assert left.with_name(left.name + "-exit").exists()
        assert left.with_name(left.name + "-after").exists() == after


def test_parts_that_cannot_be_shared_out_are_refused():
    assert [list(Team(rank, 2).share(4)) for rank in (0, 1)] == [[0, 2], [1, 3]]
    with pytest.raises(InputError, match="--accumulate 2"):
        Team(0, 2).share(3)


@pytest.mark.full
def test_text_of_another_tokenizer_is_not_taken(cli, tmp_path):
    line = f"medusa {QUICK} --steps 2 --out {tmp_path}/m".split()
    assert cli("train", *line)[0] == 0
    (tmp_path / "m.run" / "data" / "done").write_text("another's")
    status, _, err = cli("train", *line, "--resume")
    assert status == 2 and "another tokenizer" in err
