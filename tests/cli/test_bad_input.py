"""A user's mistake is one line and status 2; our own faults are not hidden."""

from __future__ import annotations

import pytest

from longdraft.cli import job

# Bad input: the words, and what the line must name.
BAD = [
    ("foo", "generate, chat, serve, methods"),
    ("--foo", "generate, chat, serve, methods"),
    ("generate", "--prompt-file"),
    ("generate hi --prompt-file a.txt", "one of them"),
    ("generate hi there", "there"),
    ("generate ''", "empty"),
    ("generate hi --prompt-tokens 3", "--prompt-file"),
    ("generate --prompt-file missing.txt", "missing.txt"),
    ("generate --prompt-file empty.txt", "empty"),
    ("generate --prompt-file latin1.txt", "UTF-8"),
    ("generate --prompt-file zero.bin", "binary"),
    ("generate --prompt-file tiny", "folder"),
    ("generate --prompt-file /dev/zero", "device"),
    ("generate --prompt-file a.txt --prompt-tokens 0", "1"),
    ("generate --prompt-file long.txt -m tiny", "512 positions"),
    ("generate hi -m tiny --max-new-tokens 100000000000", "at most 5"),
    ("generate hi -m tiny --max-new-tokens -3", "1"),
    ("generate hi -m tiny --max-new-tokens many", "integer"),
    ("generate hi -m tiny --method nope", "plain, lookup"),
    ("generate hi -m tiny --methd vegas", "--method"),
    ("generate hi -m tiny --method vegas -o gamma=0", "from 1 to 512"),
    ("generate hi -m tiny --method vegas -o gamma=x", "a whole number"),
    ("generate hi -m tiny --method vegas -o gamma=513", "from 1 to 512"),
    ("generate hi -m tiny --method sd", "--drafter FOLDER or --random-drafter"),
    ("generate hi -m tiny --method sd --drafter tiny --random-drafter", "one of them"),
    ("generate hi -m tiny --method sd --drafter nowhere", "no model folder"),
    ("generate hi -m tiny --method longspec --drafter tiny", "not in longdraft's layout"),
    ("generate hi -m org/none", "cannot reach the Hub"),
    ("generate hi -m tiny --method vegas -o gama=3", "gamma, keep_ratio"),
    ("generate hi -m tiny --method vegas -o keep_ratio=nan", "keep_ratio"),
    ("generate hi -m tiny --method vegas -o gamma", "KEY=VALUE"),
    ("generate hi -m tiny --method vegas -o score=best", "logits or weights"),
    (
        "generate hi -m tiny --temperature -1",
        "--temperature is -1.0: give a number from 0 to 10000",
    ),
    ("generate hi -m tiny --temperature hot", "--temperature"),
    ("generate hi -m tiny --temperature nan", "temperature"),
    ("generate hi -m tiny --top-p 1.5", "--top-p is 1.5: give a number above 0, 1 at most"),
    ("generate hi -m tiny --top-k -2", "--top-k is -2: give a whole number from -1"),
    ("generate hi -m tiny --min-p 2", "a number from 0 to 1"),
    ("generate hi -m tiny --eta 2", "a number from 0 to 1"),
    ("generate hi -m tiny --penalty 0", "a number from 0.001 to 1000"),
    ("generate hi -m tiny --penalty-window 0", "--penalty-window"),
    (
        "generate hi -m tiny --seed 18446744073709551616",
        "--seed is 18446744073709551616: give a whole number",
    ),
    ("generate hi -m tiny --threads 0", "--threads"),
    ("generate hi -m tiny --dtype int8", "float32 or bfloat16"),
    ("generate hi -m tiny --rope yarn:1", "a number above 1"),
    ("bench speed -m tiny --prompt-file a.txt --rope ntk:2", "yarn or linear"),
    ("audit -m tiny --prompt-file a.txt --rope yarn:two", "KIND:FACTOR"),
    ("demo -m tiny --rope yarn", "KIND:FACTOR"),
    ("generate hi -m tiny --method vegas --accept 8", "0 to 7"),
    ("generate hi -m tiny --method vegas --accept -1", "0 to 7"),
    ("generate hi -m tiny --method vegas --accept nan", "0 to 7"),
    ("generate hi -m tiny --accept 1 --method lookup", "fixed length"),
    ("generate hi -m tiny --accept 1 --method plain", "fixed length"),
    ("generate hi -m no-such-folder/at/all", "bundled"),
    ("generate hi -m nothing", "config.json"),
    ("generate hi -m bare", "no weights"),
    ("generate hi -m pickled", "safetensors"),
    ("generate hi -m broken", "safetensors"),
    ("generate hi -m a.txt", "no model folder"),
    ("demo -m tiny --context 600", "512 positions"),
    ("demo -m tiny --context 3", "--context"),
    ("serve -m tiny --port 70000", "--port"),
    ("serve -m tiny --host 203.0.113.7", "cannot listen"),
    ("serve -m tiny --method nope", "nope"),
    ("serve -m tiny --api-key-file nowhere", "cannot read the API keys"),
    ("serve -m tiny --context 3", "--context"),
    ("serve -m tiny --prefix-tokens 5", "no room for a block"),
    ("serve -m nothing", "config.json"),
    ("methods --jsn", "--json"),
    ("train target", "--out"),
    ("export-drafter", "DRAFTER"),
    ("export-drafter nowhere", "--out"),
    ("export-drafter nowhere --out there -m tiny", "no drafter at nowhere"),
    ("export-drafter tiny --out there -m tiny", "not in longdraft's layout"),
    ("export-drafter nowhere --out nowhere -m tiny", "give another folder"),
    ("bench speed --methods nope", "nope"),
    ("bench speed -m tiny --methods sd --prompt-file a.txt", "--random-drafter"),
]


@pytest.mark.parametrize(("line", "names"), BAD, ids=[line for line, _ in BAD])
def test_bad_input(cli, line, names):
    status, out, err = cli(*("" if w == "''" else w for w in line.split()))
    assert status == 2 and out == ""
    assert len(err.splitlines()) == 1 and err.startswith("longdraft: ")
    assert names in err


@pytest.mark.full
def test_memory_that_does_not_suffice_is_said(cli, monkeypatch):
    def full(*_, **__):
        raise RuntimeError(
            "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate "
            "9 bytes.\n" * 2
        )

    monkeypatch.setattr(job, "DecodeSession", full)
    status, _, err = cli("generate", "hi", "-m", "tiny")
    assert status == 2 and len(err.splitlines()) == 1 and "shorter prompt" in err


def test_our_own_faults_are_not_hidden(cli, monkeypatch):
    def fault(*_, **__):
        raise ValueError("a fault")

    monkeypatch.setattr(job, "DecodeSession", fault)
    with pytest.raises(ValueError, match="a fault"):
        cli("generate", "hi", "-m", "tiny")
