"""benchmarks/README.md lists every script and record; scripts explain themselves and declare a
shared option once.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from test_commands import commands_of, lines_of, text_of

from longdraft.errors import InputError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
PYTHON = sorted(
    p.name for p in FOLDER.glob("*.py") if '__name__ == "__main__"' in p.read_text(encoding="utf-8")
)
SHELL = sorted(
    p.name for p in FOLDER.glob("*.sh") if p.read_text(encoding="utf-8").startswith("#!")
)


def listed(index: str, heading: str) -> list[str]:
    """The names in the first column of the table that begins with this heading, in order."""
    table = index.split(f"\n| {heading} |")[1].split("\n\n")[0]
    return [
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.M)
        for name in re.findall(r"`([^`]+)`", cell)
    ]


def index_faults(index: str) -> set[str]:
    """What the index lacks, lists twice or lists without reason."""
    files = {p.name for p in FOLDER.iterdir() if p.suffix in (".py", ".sh")}
    runnable = {*PYTHON, *SHELL}
    wanted = {
        "script": runnable,
        "read by the scripts": files - runnable,
        "record": {p.name.removesuffix(".jsonl.gz") for p in (FOLDER / "records").iterdir()},
    }
    faults = set()
    for heading, names in wanted.items():
        counts = Counter(listed(index, heading))
        faults |= names ^ counts.keys() | {name for name, count in counts.items() if count > 1}
    return faults


def test_the_index_lists_every_script_and_record_and_nothing_else():
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert index_faults(index) == set()
    row = next(line for line in index.splitlines() if line.startswith("| `busy.py`"))
    assert index_faults(index.replace(row + "\n", "")) == {"busy.py"}
    assert index_faults(index.replace(row, f"{row}\n{row}")) == {"busy.py"}
    assert index_faults(index.replace("`busy.py` |", "`bussy.py` |")) == {"busy.py", "bussy.py"}
    assert index_faults(index.replace("`2026-11-23-serve` |", "`2026-11-23-served` |"))


def declared(files: list[Path]) -> Counter[str]:
    """How many times each option is declared: in calls of add_argument, and as a key of
    arguments.py's table.
    """
    options: list[str] = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                words = [a.value for a in node.args if isinstance(a, ast.Constant)]
            elif isinstance(node, ast.Dict) and file.name == "arguments.py":
                words = [k.value for k in node.keys if isinstance(k, ast.Constant)]
            else:
                continue
            options += {word for word in words if str(word).startswith("--")}
    return Counter(options)


def test_an_option_is_declared_once(tmp_path):
    files = sorted(FOLDER.glob("*.py"))
    counts = declared(files)
    assert {
        "--model",
        "--seed",
        "--threads",
        "--repeat",
        "--out",
        "--soak",
        "--tiny",
    } <= counts.keys()
    assert not [name for name, count in counts.items() if count > 1]
    (tmp_path / "again.py").write_text('parser.add_argument("-s", "--seed", type=int, default=1)\n')
    assert declared([*files, tmp_path / "again.py"])["--seed"] == 2


def ran(file: Path, *words: str) -> int | str | None:
    """The status with which a Python script ends."""
    sys.argv = [str(file), *words]
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(file), run_name="__main__")
    return stopped.value.code


@pytest.fixture
def no_models(monkeypatch):
    """Nothing can be loaded, and the process's arguments are given back."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(
        "longdraft.models.loading.load", lambda *_, **__: pytest.fail("a model was loaded")
    )


@pytest.mark.parametrize("name", PYTHON)
def test_python_scripts_explain_themselves(no_models, capsys, name):
    file = FOLDER / name
    assert ran(file, "--help") == 0
    assert text_of(f"benchmarks/{name}").splitlines()[0] in capsys.readouterr().out
    assert refused(file, capsys)


def refused(file: Path, capsys) -> bool:
    """Whether a wrong option is one line that names the script, and status 2."""
    status, (out, err) = ran(file, "--no-such-option"), capsys.readouterr()
    return (
        status == 2 and not out and len(err.splitlines()) == 1 and err.startswith(f"{file.name}: ")
    )


def test_another_parser_would_be_noticed(no_models, capsys, tmp_path):
    """argparse's own prints its usage first."""
    file = tmp_path / "other.py"
    file.write_text(
        'import argparse\nif __name__ == "__main__":\n    argparse.ArgumentParser().parse_args()\n'
    )
    assert not refused(file, capsys)


@pytest.mark.parametrize("name", PYTHON)
def test_the_command_that_a_docstring_shows_is_parsed_by_its_script(
    no_models, capsys, monkeypatch, name
):
    monkeypatch.chdir(ROOT)
    first, empty, command = text_of(f"benchmarks/{name}").splitlines()[:3]
    assert first.endswith(".") and not empty and f" benchmarks/{name}" in command
    shown = [words for line, _ in lines_of(f"benchmarks/{name}") for words in commands_of(line)]
    options = runpy.run_path(str(FOLDER / name))["options"]
    own = [
        words[words.index(f"benchmarks/{name}") + 1 :]
        for words in shown
        if f"benchmarks/{name}" in words
    ]
    assert own
    for words in own:
        options().parse(words)
    with pytest.raises(SystemExit):
        options().parse([*own[0], "--no-such-option"])


@pytest.mark.parametrize("name", SHELL)
def test_shell_scripts_explain_themselves(tmp_path, name):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(FOLDER / name), *words], cwd=tmp_path, capture_output=True, text=True
        )

    shown = run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f": benchmarks/{name}" in shown.stdout.splitlines()[0] and "set -eu" not in shown.stdout
    for words in (["--no-such-option"], ["folder", "another"]):
        done = run(*words)
        assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--repeat", "0"], "'0' is no integer of 1 or more"),
        (["--seconds", "nan"], "'nan' is no number of 0 or more"),
        (["--context", "many"], "'many' is no integer"),
        (["--dtype", "float8"], "float32"),
        (["--rep", "1"], "--rep"),  # an abbreviation
    ],
)
def test_a_bad_value_is_refused(no_models, capsys, words, says):
    assert ran(FOLDER / "busy.py", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_records_state_the_command_and_help_states_the_reason():
    from arguments import Arguments

    parser = Arguments("benchmarks/some.py", "About.")
    parser.share("seed", "out")
    parser.change("repeat", 7, "it varies")
    given = parser.parse(["--seed", "3", "--out", "/elsewhere/f.jsonl"])
    assert given.command == "python benchmarks/some.py --seed 3 --out f.jsonl"
    assert parser.parse([]).out == Path("runs/some.jsonl") and parser.parse([]).repeat == 7
    assert "(default: 7, because it varies)" in " ".join(parser.format_help().split())


def test_the_simulation_runs():
    from adaptive_simulation import CASES, speedup

    assert speedup(CASES["acceptance 0.95"], 0) > 1 > speedup(CASES["acceptance 0"], 0)


def test_the_simulation_of_copies_runs(tmp_path, capsys):
    import copying_simulation

    repeated = copying_simulation.Answer("a", "copy", 0.0, 40, [*range(40), *range(40)])
    new = copying_simulation.Answer("b", "qa", 0.0, 40, list(range(80)))
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(asdict(answer)) + "\n" for answer in (repeated, new)))
    copying_simulation.main([str(file)])
    table = capsys.readouterr().out.splitlines()
    cells = [row.strip("| ").split(" | ") for row in table[-3:]]
    rows = {name: list(map(float, figures)) for name, _, *figures in cells}
    assert list(rows) == ["a, T=0", "b, T=0", "all"]
    fill, suffix, oracle = rows["a, T=0"][:3]
    assert oracle > fill > 2 and oracle > suffix
    assert rows["b, T=0"][:3] == [1, 1, 1]
    file.write_text("{}")
    with pytest.raises(InputError, match="not a file that --write has made"):
        copying_simulation.main([str(file)])
    with pytest.raises(InputError, match="give files"):
        copying_simulation.main([])
