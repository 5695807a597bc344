"""`longdraft bench --task ...` says its new spelling in one line and measures the same."""

from __future__ import annotations

import json
import shlex
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest

from longdraft.cli.bench import MEASUREMENTS, app, old_spelling
from longdraft.cli.option_groups import options_of

NOTE = "longdraft: note: this spelling of `longdraft bench` will end with the next version; write: "
# all options of the one command that there was
OLD = shlex.split("""
    --methods --task --model --text --prompt-file --ask --suite --instances --context
    --max-new-tokens --batch --repeat --anchors --warmup-rounds --shape --accept --temperature
    --top-p --penalty --recommended --dtype --rope --weights --kv --activations --drafter
    --random-drafter --any-target --seed --option --peers --peer-model --peer-draft
    --peer-llama-server --peer-openvino --peer-only --prompt-cache --out
""")
TARGET = "--dtype float32 --rope yarn:2 --weights int8 --kv int8 --activations full"
DRAFTER = "--drafter d --random-drafter --any-target"
SAMPLING = "--temperature 0.5 --top-p 0.9 --penalty 1.1"
PEERS = "--peers llama.cpp,openvino --peer-model m.gguf --peer-draft a --peer-draft b"
PEERS += " --peer-llama-server s --peer-openvino p --peer-only llama.cpp@fa=on"
LINES = {
    "": "speed",
    "--methods plain": "speed --methods plain",
    "--task speed -m tiny --text book": "speed --model tiny --text book",
    f"--methods=vegas -o vegas.gamma=3 -ovegas.reach=0 {DRAFTER}": (
        f"speed --methods vegas --option vegas.gamma=3 --option vegas.reach=0 {DRAFTER}"
    ),
    "--prompt-file a.txt --prompt-file b.txt --ask Why?": (
        "speed --prompt-file a.txt --prompt-file b.txt --ask Why?"
    ),
    f"{TARGET} {SAMPLING} --seed -3": f"speed {TARGET} {SAMPLING} --seed -3",
    "--recommended --max-new-tokens 8 --batch 2 --repeat 3 --out r.jsonl": (
        "speed --recommended --max-new-tokens 8 --batch 2 --repeat 3 --out r.jsonl"
    ),
    "--context 64,96 --prompt-cache kept": "speed --context 64,96 --prompt-cache kept",
    "--temperature 0 --anchors 7 --warmup-rounds 2": "speed --temperature 0.0",
    "--accept 2.5 --context 64": "cost --accept 2.5 --context 64",
    "--accept 0 --ask Why?": "cost --accept 0.0 --ask Why?",
    "--task anchored --anchors 7 --warmup-rounds 0": "acceptance --anchors 7 --warmup-rounds 0",
    "--task anchored --max-new-tokens 8 --repeat 2 --batch 1 --recommended": (
        "acceptance --recommended"
    ),
    "--task steps --repeat 2 --context 64": "steps --repeat 2 --context 64",
    f"--task steps --methods vegas {SAMPLING} --accept 3 --batch 2 --recommended": "steps",
    "--suite edit --instances 2 --max-new-tokens 8": "tasks edit --instances 2 --max-new-tokens 8",
    "--suite own.jsonl --text book --batch 1 --recommended --repeat 2": (
        "tasks own.jsonl --recommended --repeat 2"
    ),
    f"{PEERS} --temperature 1 --top-p 1": f"peers {PEERS} --temperature 1.0",
    f"--suite edit {PEERS} --instances 1": f"peers-tasks edit {PEERS} --instances 1",
    f"--shape 2x64 --accept 2 {SAMPLING} --dtype float32 --batch 2": (
        f"shape-cost 2x64 --accept 2.0 {SAMPLING} --dtype float32 --batch 2"
    ),
    "--shape 2x64 --methods plain --text code -m tiny --prompt-file a": (
        "shape-cost 2x64 --methods plain"
    ),
    "--shape hybrid:4x128 --task steps --repeat 2 --methods vegas": (
        "shape-steps hybrid:4x128 --repeat 2"
    ),
    "--peers '' --suite '' --shape '' --ask ''": "speed --ask ''",
}
# What was refused, and is refused: by the option's name.
REFUSED = {
    "--task fast": "unknown task 'fast'",
    "--task anchored --accept 3": "acceptance has no --accept",
    "--task anchored --shape 2x64": "acceptance has no --shape",
    "--task anchored --batch 2": "acceptance has no --batch",
    "--task anchored --ask Why?": "acceptance has no --ask",
    "--task anchored --peers transformers": "acceptance has no --peers",
    "--task steps --ask Why?": "steps has no --ask",
    "--task steps --suite edit": "steps has no --suite",
    "--task steps --shape 2x64 --recommended": "shape-steps has no --recommended",
    "--suite edit --batch 2": "tasks has no --batch",
    "--suite edit --accept 3": "tasks has no --accept",
    "--suite edit --shape 2x64": "tasks has no --shape",
    "--suite edit --ask Why?": "tasks has no --ask",
    "--instances 3": "speed has no --instances",
    "--peer-model x": "speed has no --peer-model",
    "--peers transformers --accept 3": "peers has no --accept",
    "--peers transformers --ask Why?": "peers has no --ask",
    "--peers transformers --top-p 0.5": "peers has no --top-p",
    "--peers transformers --penalty 2": "peers has no --penalty",
    "--peers transformers --recommended": "peers has no --recommended",
    "--suite edit --peers transformers --recommended": "peers-tasks has no --recommended",
    **{
        f"--shape 2x64 --accept 3 --{option}": f"shape-cost has no --{option.split()[0]}"
        for option in (
            "rope yarn:2",
            "weights int8",
            "kv int8",
            "activations full",
            "ask Why?",
            "recommended",
            "prompt-cache kept",
            "peers transformers",
        )
    },
    "--repeat 0": "--repeat",
    "--temperature -1": "--temperature",
    "speed --task speed": "No such option",
    "nothing": "No such command 'nothing'",
    "--methods plain nothing": "nothing",
}


@pytest.fixture
def translated(capsys):
    """translated(old line) -> the words of the new one, which is said."""

    def call(line: str) -> list[str]:
        context = SimpleNamespace(info_name="bench", parent=None)
        words = old_spelling.translated(shlex.split(line), context, MEASUREMENTS)
        said = capsys.readouterr()
        assert said.out == "" and said.err == f"{NOTE}longdraft bench {shlex.join(words)}\n"
        return words

    return call


@pytest.mark.parametrize("old", LINES)
def test_every_old_line_has_a_new_one(translated, old):
    assert translated(old) == shlex.split(LINES[old])


LATER = {"by_step"}  # options that were never written in the old spelling


def test_every_old_option_is_translated():
    written = {w.split("=")[0] for line in LINES for w in shlex.split(line)}
    short = {"-m": "--model", "-o": "--option", "-ovegas.reach": "--option"}
    assert {short.get(w, w) for w in written if w.startswith("-")} - {"-3"} == set(OLD)
    new = {p.name for m in MEASUREMENTS.values() for p in options_of(m)} - LATER
    assert {name.removeprefix("--").replace("-", "_") for name in OLD} == new | {"task"}
    assert {LINES[line].split()[0] for line in LINES} == MEASUREMENTS.keys()
    assert old_spelling.IGNORED.keys() == MEASUREMENTS.keys()


@pytest.mark.full
@pytest.mark.parametrize("old", LINES)
def test_the_new_line_is_read_as_the_same_measurement(monkeypatch, translated, old):
    """Both make the same dataclass; nothing of the old line is lost on the way."""
    made = []
    for measurement in MEASUREMENTS.values():
        monkeypatch.setattr(measurement, "__post_init__", lambda self: None)
        monkeypatch.setattr(measurement, "run", lambda self: made.append(self))
    group = app_command()
    group.main([*shlex.split(old)], prog_name="bench", standalone_mode=False)
    group.main(shlex.split(LINES[old]), prog_name="bench", standalone_mode=False)
    assert made[0] == made[1] and type(made[0]) is MEASUREMENTS[LINES[old].split()[0]]


def app_command():
    import typer

    return typer.main.get_command(app)


@pytest.mark.full
@pytest.mark.parametrize("old", REFUSED)
def test_what_was_refused_is_refused_in_one_line(cli, old):
    status, out, err = cli("bench", *shlex.split(old))
    assert status == 2 and out == "" and len(err.splitlines()) == 1
    assert err.startswith("longdraft: ") and REFUSED[old] in err


PAIRS = [
    ("", "speed --methods plain,vegas"),
    ("--accept 1 --methods vegas", "cost --accept 1 --methods vegas"),
    ("--task anchored --anchors 2 --methods vegas", "acceptance --anchors 2"),
    ("--task steps --repeat 1", "steps --repeat 1"),
]
FACTS = ("task", "method", "label", "context", "text_sha256", "token_ids", "accepted", "oracle")


@pytest.mark.full
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_both_spellings_write_the_same_records(cli, place, old, new):
    text = "-m tiny --dtype float32 --prompt-file long.txt --context 96 --out old-or-new.jsonl"
    brief = "" if "anchor" in old or "steps" in old else " --max-new-tokens 8 --repeat 1"
    found = []
    for line in (f"{old} {text}{brief}", f"{new} {text}{brief}"):
        Path("old-or-new.jsonl").unlink(missing_ok=True)
        status, _, err = cli("bench", *line.split())
        assert status == 0, err
        records = [json.loads(r) for r in Path("old-or-new.jsonl").read_text().splitlines()]
        found.append([({k: r.get(k) for k in FACTS}, sorted(r)) for r in records])
        assert (NOTE in err) is (line.startswith(("-", " ")) or line == "")
    assert found[0] == found[1] and found[0]


def test_help_is_of_the_group(cli):
    for words in (["--help"], ["-h"], ["--task", "steps", "--help"]):
        status, out, err = cli("bench", *words)
        assert status == 0 and err == "" and all(name in out for name in MEASUREMENTS)


def test_an_option_that_is_lost_is_seen(monkeypatch, translated):
    """The check above fails for a translation that drops an option."""
    words = old_spelling._words
    monkeypatch.setattr(
        old_spelling, "_words", lambda name, value: [] if name == "rope" else words(name, value)
    )
    with pytest.raises(AssertionError):
        test_every_old_line_has_a_new_one(
            translated, next(old for old in LINES if old.startswith(TARGET))
        )


def test_the_old_command_is_gone():
    assert "task" not in signature(app.registered_commands[0].callback).parameters
