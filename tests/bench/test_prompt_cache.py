"""--prompt-cache: commands that read a prompt once, and measurements that do not change by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.place import SHORT

from longdraft.bench.speed import Cell
from longdraft.engine import decode_session
from longdraft.models.loading import load

KEPT = ("--prompt-cache", "kept")
NATIVE = load("bundled", "float32")[0].prompt_block == 1
needs_kernels = pytest.mark.skipif(not NATIVE, reason="torch reads prompts here, in blocks")


@pytest.fixture(autouse=True)
def nothing_kept(place):
    for path in (*Path("kept-files").glob("*"), Path("kept"), Path("bench.jsonl")):
        path.unlink(missing_ok=True)


def generated(cli, *more: str) -> dict:
    status, out, err = cli("generate", "-m", "tiny", *SHORT, "--json", *more)
    assert status == 0, err
    return json.loads(out)


@pytest.mark.full
@pytest.mark.parametrize("method", ["plain", "vegas", "suffix"])
def test_generate_reads_a_prompt_once(cli, method):
    words = ("--prompt-file", "b.txt", "--method", method, "--temperature", "1", "--seed", "4")
    alone, first, second = (
        generated(cli, *words),
        *(generated(cli, *words, *KEPT) for _ in range(2)),
    )
    assert alone["token_ids"] == first["token_ids"] == second["token_ids"]
    count = alone["prompt_tokens"] - 1
    assert (first["known_prompt_tokens"], second["known_prompt_tokens"]) == (0, count)
    assert "known_prompt_tokens" not in alone


@pytest.mark.full
@needs_kernels
def test_another_end_reads_only_the_rest(cli):
    text = Path("b.txt").read_text(encoding="utf-8")
    Path("c.txt").write_text(text + " cache leaf", encoding="utf-8")
    generated(cli, "--prompt-file", "b.txt", *KEPT)
    count = len(load_file("kept")["tokens"])
    found = generated(cli, "--prompt-file", "c.txt", *KEPT, "--compare")
    assert count - 3 <= found["known_prompt_tokens"] <= count and found["equal"]
    assert len(load_file("kept")["tokens"]) > count


@pytest.mark.full
def test_the_summary_says_what_was_kept(cli):
    for known in ("of which 0 were kept", "were kept"):
        status, _, err = cli("generate", "-m", "tiny", *SHORT, "--prompt-file", "a.txt", *KEPT)
        assert status == 0 and known in err
    assert "of which 0 were kept" not in err


BAD = [
    ("generate --prompt-file a.txt --prompt-file b.txt --prompt-cache kept", "one --prompt-file"),
    ("generate --prompt-file a.txt --prompt-cache tiny", "a folder"),
    ("generate --prompt-file a.txt --prompt-cache /dev/null", "a device"),
    (
        "generate --prompt-file a.txt --prompt-cache b.txt",
        "b.txt is not a prompt that longdraft has saved",
    ),
    ("generate --prompt-file a.txt --prompt-cache old --rope yarn:2", "made with rope 'none'"),
    (
        "generate --prompt-file a.txt --prompt-cache old --dtype bfloat16",
        "made with dtype 'float32'",
    ),
    ("generate --prompt-file a.txt --prompt-cache old --kv int8", "made with 8-bit keys 'none'"),
    (
        "generate --prompt-file a.txt --prompt-cache old --weights int8",
        "made with quantized weights 'none'",
    ),
    (
        "generate --prompt-file a.txt --prompt-cache old -m bundled",
        "made with model 'llama of 3 layers",
    ),
    ("generate --prompt-file a.txt --prompt-cache cut", "damaged"),
    ("bench speed --prompt-file long.txt --context 16 --prompt-cache a.txt", "is a file"),
    ("audit --prompt-file a.txt --prompt-cache a.txt", "is a file"),
    ("serve --cache-dir a.txt", "not a folder"),
    ("serve --cache-dir tiny", "chmod 700"),
]


@pytest.mark.full
@pytest.mark.parametrize(("line", "names"), BAD, ids=[line for line, _ in BAD])
def test_what_cannot_be_used_is_one_line_and_stays(cli, line, names):
    if not Path("old").exists():
        generated(cli, "--prompt-file", "a.txt", "--prompt-cache", "old")
        Path("cut").write_bytes(Path("old").read_bytes()[:-1])
    before = {name: Path(name).read_bytes() for name in ("old", "cut", "b.txt", "a.txt")}
    model = () if "-m" in line.split() else ("-m", "tiny")
    dtype = () if "--dtype" in line or line.startswith("serve") else ("--dtype", "float32")
    status, out, err = cli(*line.split(), *model, *dtype)
    assert status == 2 and out == "" and len(err.splitlines()) == 1, err
    assert err.startswith("longdraft: ") and names in err
    assert before == {name: Path(name).read_bytes() for name in before}


# bench and audit ----------------------------------------------------------------------------------

BENCH = (
    "bench",
    "speed",
    "-m",
    "tiny",
    "--dtype",
    "float32",
    "--prompt-file",
    "long.txt",
    "--context",
    "200",
)
# Where torch reads prompts, in blocks, eagle3's last states are read with their whole block.
NAMES = "vegas,suffix,eagle3" if NATIVE else "vegas,suffix"
METHODS = ("--methods", NAMES, "--random-drafter", "--max-new-tokens", "12", "--repeat", "2")
# Of a longer reach, the whole prompt's states are read again.
EAGLE = ("-o", "eagle3.reach=20", "-o", "eagle3.pace=off") if NATIVE else ()


def measured(cli, *more: str) -> list[dict]:
    Path("bench.jsonl").unlink(missing_ok=True)
    status, _, err = cli(*BENCH, *METHODS, "--out", "bench.jsonl", *more)
    assert status == 0, err
    return [json.loads(line) for line in Path("bench.jsonl").read_text().splitlines()]


def outputs(records: list[dict]) -> list:
    return sorted(
        (r["label"], r["repeat"], r["token_ids"], r["mean_acceptance_length"]) for r in records
    )


@pytest.mark.full
def test_bench_reads_a_prompt_once_and_states_its_own_time(cli):
    kept = ("--prompt-cache", "kept-files", "-o", "vegas.pace=off", "-o", "suffix.pace=off", *EAGLE)
    alone = measured(cli, *kept[2:])
    first = measured(cli, *kept)
    second = measured(cli, *kept)
    assert outputs(alone) == outputs(first) == outputs(second)
    assert [{r["prompt_reused"] for r in found} for found in (alone, first, second)] == [
        {False},
        {False},
        {True},
    ]
    times = [{r["prefill_s"] for r in found} for found in (alone, first, second)]
    assert all(len(t) == 1 for t in times) and times[1] == times[2]
    assert len(list(Path("kept-files").glob("*.safetensors"))) == 1


@pytest.mark.full
def test_a_prompt_that_is_kept_in_part_is_read_whole_by_bench(cli, monkeypatch):
    """Its time would not be that of a prompt of this length."""
    read = list[int]()
    right = decode_session.prefill

    def watched(*given, **more):
        seqs = right(*given, **more)
        read.append(given[-1][0].known)
        return seqs

    monkeypatch.setattr(decode_session, "prefill", watched)
    for context, known in (("200", 0), ("150", 0), ("250", 0), ("200", 1)):
        line = (
            *BENCH[:-1],
            context,
            "--methods",
            "plain",
            "--max-new-tokens",
            "2",
            "--repeat",
            "1",
        )
        assert cli(*line, "--prompt-cache", "kept-files")[0] == 0
        assert bool(read[-1]) == known
    assert len(list(Path("kept-files").glob("*"))) == 3


@pytest.mark.full
def test_a_time_of_loading_would_be_noticed(cli, monkeypatch):
    monkeypatch.setattr(Cell, "prefill_s", property(lambda self: self.ours.prefill_s))
    first, second = (
        measured(cli, *EAGLE, "--prompt-cache", "kept-files")[0]["prefill_s"] for _ in range(2)
    )
    assert first != second


@pytest.mark.full
@pytest.mark.parametrize(
    "measurement",
    [("acceptance", "--anchors", "2"), ("steps", "--repeat", "1")],
    ids=lambda m: m[0],
)
def test_other_measurements_reuse_prompts_too(cli, measurement):
    line = (
        "bench",
        *measurement,
        "-m",
        "tiny",
        "--dtype",
        "float32",
        "--prompt-file",
        "long.txt",
        "--context",
        "128",
        "--prompt-cache",
        "kept-files",
    )
    found = []
    for _ in range(2):
        Path("bench.jsonl").unlink(missing_ok=True)
        assert cli(*line, "--out", "bench.jsonl")[0] == 0
        found.append(
            [json.loads(x).get("accepted") for x in Path("bench.jsonl").read_text().splitlines()]
        )
    assert found[0] == found[1] and list(Path("kept-files").glob("*.safetensors"))


@pytest.mark.full
def test_audit_compares_on_prompts_that_were_kept(cli):
    line = (
        "audit",
        "-m",
        "tiny",
        "--prompt-file",
        "long.txt",
        "--prompt-tokens",
        "100",
        "--tokens",
        "20",
        "--json",
    )
    line += ("--prompt-cache", "kept-files", "--method", "vegas")
    first, second = (cli(*line) for _ in range(2))
    assert first[0] == second[0] == 0, second
    a, b = (json.loads(out)["runs"] for _, out, _ in (first, second))
    assert a == b and list(Path("kept-files").glob("*.safetensors"))
