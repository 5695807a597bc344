"""No command line makes a traceback: every command, with each of its parameters wrong in each way
its type allows.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commands import commands

from longdraft import cli as command_line
from longdraft.cli import main
from longdraft.cli.train import KINDS
from longdraft.errors import InputError
from longdraft.models import fetch as models
from longdraft.training import data

# What a person may type for any value, then for a number. The largest fits no field of 64 bits.
TYPED = [
    "",
    ".",
    "/",
    "..",
    "~nobody-here/x",
    "x",
    "-",
    "\u20ac",
    "nan",
    "-1",
    "0",
    "1e999",
    f"{1 << 70}",
]
NUMBERS = [*TYPED, "inf", "-inf", "1.5", "true", "0x10", "\u0663", f"{1 << 40}", "9" * 5000]
# What may be at the place that is named: made in `place` by `things`.
PATHS = [
    *TYPED,
    "nowhere",
    "nowhere/x",
    "a.txt",
    "a.txt/x",
    "zero.bin",
    "tiny",
    "nothing",
    "bare",
    "pickled",
    "list.json",
]
PATHS += [
    "wrong.json",
    "deep.json",
    "/dev/null",
    "/dev/full",
    "/proc/x/y",
    "loop",
    "/dev/zero/x",
    "x" * 300,
    "out.json/",
]
# Words with a meaning of their own, which only some options know: what is next to right is the
# likeliest to be typed.
NEAR = [
    "yarn:nan",
    "yarn:1e99",
    "linear:",
    "int3",
    "int8",
    "float16",
    "gamma=1e99",
    "gamma=",
    "=",
    "plain,plain",
    "plain@x",
]
NEAR += [
    "vegas.gamma=0",
    "512:1e3",
    f"8:{1 << 70}",
    "1x64",
    "hf:",
    "hf:x/y",
    "**",
    "a**b",
    "[",
    "bundled",
    "org/none",
]
TEXTS = [*PATHS, *NEAR]

OUT = ("--out", "fresh")
TRAIN = (
    "--work",
    "work",
    "--text",
    "long.txt",
    "--stop-at",
    "1",
    "--stage",
    "16:1",
    "--step-tokens",
    "16",
)
TEXT = ("-m", "tiny", "--prompt-file", "long.txt", "--context", "96")
BRIEF = ("--max-new-tokens", "2", "--repeat", "1")
PEERS = ("--peers", "transformers", "--methods", "plain")
# A short valid line of each command: the parameter that is tested follows it, and replaces one that
# is there.
LINES: dict[str, tuple[str, ...]] = {
    "generate": ("-m", "tiny", "--max-new-tokens", "2", "hi"),
    "chat": ("-m", "tiny", "--max-new-tokens", "2"),
    "serve": ("-m", "tiny", "--port", "0"),
    "methods": ("-m", "tiny"),
    "demo": ("-m", "tiny", "--context", "16", "--max-new-tokens", "2"),
    "bench speed": (*TEXT, *BRIEF),
    "bench cost": (*TEXT, *BRIEF, "--accept", "1"),
    "bench acceptance": (*TEXT, "--anchors", "2"),
    "bench steps": (*TEXT, "--repeat", "1"),
    "bench tasks": ("-m", "tiny", *BRIEF, "own.jsonl"),
    "bench peers": (*TEXT, *BRIEF, *PEERS),
    "bench peers-tasks": ("-m", "tiny", *BRIEF, *PEERS, "own.jsonl"),
    "bench shape-cost": ("--context", "96", *BRIEF, "--accept", "1", "1x64"),
    "bench shape-steps": ("--context", "96", "--repeat", "1", "1x64"),
    "tune": ("-m", "tiny", "--context", "64", "--most-rows", "1", "--repeat", "1"),
    "plan": ("-m", "tiny", "--context", "16", "--methods", "vegas,suffix"),
    "audit": ("-m", "tiny", "--prompt-file", "a.txt", "--tokens", "2", "--prompt-tokens", "16"),
    "doctor": (),
    "report": (*OUT, "records.jsonl"),
    "fetch": ("smollm2",),
    "export": (*OUT, "-m", "tiny"),
    "import": (*OUT, "-m", "tiny", "drafter"),
    "export-drafter": (*OUT, "-m", "tiny", "drafter"),
    "pack-drafter": (*OUT, "drafter"),
    "train target": (
        *OUT,
        *TRAIN,
        "--no-environment",
        "--contexts",
        "",
        "--layers",
        "1",
        "--hidden",
        "16",
        "--heads",
        "1",
    ),
    "train text": (
        "--out",
        "text.jsonl",
        "-m",
        "tiny",
        "--text",
        "long.txt",
        "--count",
        "1",
        "--max-new-tokens",
        "2",
    ),
    "train plot": ("work",),
}
TRAINED = [f"train {kind.training.command}" for kind in KINDS.values() if kind.training]
LINES |= dict.fromkeys(TRAINED, (*OUT, "-m", "tiny", *TRAIN))
FEW = 6  # of the values of a parameter that another command has too, one in so many is tried
# Values that are valid, and would take long: they are tested nowhere.
LONG = {("text", "/"), ("text", ".."), ("option", "x")}


KNOWN = commands()


def wrong(name: str, parameter: Any) -> list[str]:
    """Values for a parameter of a command, by its type."""
    kind = str(signature(KNOWN[name].callback, eval_str=True).parameters[parameter.name].annotation)
    kind = kind.partition(", <typer")[0]
    if re.search(r"\b(int|float)\b", kind):
        return NUMBERS
    return PATHS if "Path" in kind else TEXTS


def lines(name: str, parameters: list[Any] | None = None) -> Iterator[tuple[str, ...]]:
    """Lines of a command in which one parameter has one of its wrong values."""
    base = LINES[name]
    yield tuple(name.split())
    for p in KNOWN[name].params if parameters is None else parameters:
        if getattr(p, "is_flag", False):
            for option in (*p.opts, *p.secondary_opts):
                yield (*name.split(), option, *base)
            continue
        for value in wrong(name, p):
            if (p.name, value) in LONG:
                continue
            if p.param_type_name == "argument":
                yield (*name.split(), *base[:-1], "--", value)
            else:
                yield (*name.split(), *base, f"{max(p.opts, key=len)}={value}")
                if value == "":
                    yield (*name.split(), *base, max(p.opts, key=len))


def thinned(name: str, i: int, parameter: Any) -> list[tuple[str, ...]]:
    """The lines of a parameter, all of them in the first command that has it, a few in the
    others.
    """
    found = list(lines(name, [parameter]))
    first = next(
        n for n in LINES if n in KNOWN and any(p.name == parameter.name for p in KNOWN[n].params)
    )
    return found if name == first or parameter.name == "out" else found[i % FEW :: FEW]


@pytest.fixture(scope="module")
def things(place, tmp_path_factory) -> SimpleNamespace:
    """What is at the PATHS, and a drafter, records and a run that the commands read."""
    (place / "wrong.json").write_text('{"task": "audit", "runs": [{}], "model_type": []}')
    (place / "list.json").write_text("[1, {}]")
    (place / "deep.json").write_text("[" * 100_000)
    (place / "own.jsonl").write_text('{"task": "mine", "turns": ["Why?"]}')
    (place / "records.jsonl").write_text(json.dumps({"task": "speed"}) + "\n")
    (place / "loop").symlink_to("loop")
    (place / "drafter").mkdir()
    (place / "drafter" / "config.json").write_text("{}")
    torch.save({"state_dict": torch.zeros(2)}, place / "drafter" / "x.bin")
    return SimpleNamespace(place=place, kept={p.name for p in place.iterdir()})


@pytest.fixture
def tried(things, capsys, monkeypatch):
    """tried(words) -> exit status; fails for anything but a good end, or one line and status 2."""
    from longdraft.server import uvicorn_server

    monkeypatch.setattr(
        uvicorn_server.Server, "run", lambda self, sockets=None: [s.close() for s in sockets] and 0
    )
    monkeypatch.setattr(
        "longdraft.models.templates.Templates.start", lambda self: None, raising=False
    )

    def unreachable(*_: Any) -> Path:
        raise InputError("the network is not tested here")

    monkeypatch.setattr(models, "_from_any", unreachable)
    monkeypatch.setattr(data, "environment_code", lambda cap: data.text_files("long.txt"))
    monkeypatch.setenv("LONGDRAFT_CACHE", str(things.place / "cache"))
    monkeypatch.setattr(sys, "argv", ["longdraft"])
    threads = torch.get_num_threads()

    def call(argv: tuple[str, ...]) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        capsys.readouterr()
        try:
            status = main(argv)
        except BaseException as error:
            raise AssertionError(f"a traceback from: longdraft {' '.join(argv)[:300]}") from error
        finally:
            torch.set_num_threads(threads)
            for path in things.place.iterdir():
                if path.name not in things.kept:
                    shutil.rmtree(
                        path
                    ) if path.is_dir() and not path.is_symlink() else path.unlink()
        said = [
            line for line in capsys.readouterr().err.splitlines() if line.startswith("longdraft: ")
        ]
        said = [line for line in said if not line.startswith("longdraft: note: ")]
        assert status in (0, 1, 2), (argv, status)
        assert len(said) == (status == 2), (argv, status, said)
        return status

    return call


def test_every_command_is_fuzzed():
    assert set(KNOWN) == set(LINES)
    kinds = {p.name: wrong(name, p) for name, command in KNOWN.items() for p in command.params}
    assert kinds["seed"] is kinds["threads"] is kinds["top_p"] is kinds["accept"] is NUMBERS
    assert (
        kinds["out"] is kinds["prompt_file"] is kinds["start"] is PATHS and kinds["model"] is TEXTS
    )


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in KNOWN if n not in TRAINED[1:]])
def test_a_wrong_value_of_each_parameter_is_one_line(name, tried):
    """One value of each parameter, chosen by its place, so that every value is met by some of
    them.
    """
    tested = 0
    for i, p in enumerate(KNOWN[name].params):
        found = list(lines(name, [p]))[1:]
        tested += len(found) > 0
        tried(found[(7 * i + 2) % len(found)])
    assert tested == len(KNOWN[name].params)


@pytest.mark.full
@pytest.mark.weekly  # up to a minute for each command; one value of each parameter is tried daily
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", KNOWN)
def test_no_value_of_any_parameter_makes_a_traceback(name, tried):
    """Every value, once for each parameter; a parameter that several commands share meets them all
    in one command.
    """
    faults = []
    for argv in (argv for i, p in enumerate(KNOWN[name].params) for argv in thinned(name, i, p)):
        try:
            tried(argv)
        except AssertionError as error:
            faults.append(f"{error}: {error.__cause__!r}"[:400])
    assert not faults, "\n".join(faults)


def test_a_traceback_is_noticed(tried, monkeypatch):
    """The check above fails where the boundary lets an error pass."""
    tried(("export", "--out", "/dev/null/x", "-m", "tiny"))
    monkeypatch.setattr(command_line, "explain", lambda error: None)
    with pytest.raises(AssertionError, match="a traceback from: longdraft export --out"):
        tried(("export", "--out", "/dev/null/x", "-m", "tiny"))
