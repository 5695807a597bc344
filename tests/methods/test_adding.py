"""docs/adding-a-method.md is true: a method that is made by its steps is listed, documented and
lossless.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import test_declared
import test_lossless
from support import broken, listed
from support.added import FILES, PACKAGE, PROJECT, forget
from support.checks import SAMPLERS, check_lossless
from support.place import SHORT
from support.tiny import target

from longdraft import InputError
from longdraft.bench.plots import style
from longdraft.bench.selection import parse
from longdraft.cli import main
from longdraft.methods import METHODS, family, table
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.spec import MethodSpec


def test_the_page_has_every_file_of_its_steps():
    assert [*FILES] == [*PACKAGE, "src/longdraft/methods/table.py", "tests/support/listed.py"]


@pytest.mark.full
def test_the_package_of_the_page_adds_its_method(install, place, capsys):
    install()
    assert main(["methods", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [entry] = found["elsewhere"]
    assert (
        entry["name"] == "bigram"
        and entry["package"] == PROJECT["name"]
        and found["problems"] == []
    )
    assert entry["options"]["count"]["default"] == 5 and entry["label"] == family.NGRAMS.label
    assert main(["methods"]) == 0
    shown = capsys.readouterr()
    assert f"bigram           ours\n{'':<17}{entry['does']}" in shown.out and shown.err == ""
    assert f"From the package {PROJECT['name']}." in shown.out
    words = [
        "generate",
        "-m",
        "tiny",
        "--method",
        "bigram",
        "-o",
        "count=3",
        "--prompt-file",
        "a.txt",
        "--compare",
    ]
    assert main([*words, *SHORT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    assert style.color("bigram@count=3") == family.NGRAMS.color != style.OTHER
    assert [entry.name for entry in parse("plain,bigram@count=3", [])] == ["plain", "bigram"]
    with pytest.raises(InputError, match="option count is 0"):
        MethodSpec("bigram", "bigram", {"count": "0"})


def test_the_server_offers_the_method(install, monkeypatch):
    traces = pytest.importorskip(
        "longdraft.server.traces", reason="the server's packages are not installed"
    )
    monkeypatch.setattr(traces, "has_template", lambda tokenizer: False)
    service: Any = SimpleNamespace(target=target("llama"), tokenizer=None, model="tiny", room=128)
    tracer = traces.Tracer(service, DrafterWeights(), "bigram")
    assert tracer.methods["default"] == "vegas"
    install()
    forget()
    assert tracer.methods["default"] == "bigram"
    [entry] = [entry for entry in tracer.methods["methods"] if entry["name"] == "bigram"]
    assert entry["label"] == family.NGRAMS.label and entry["options"]["count"]["default"] == "5"


@pytest.mark.full
def test_the_test_of_the_page_passes_and_can_fail(install, monkeypatch):
    install()
    names: dict = {}
    exec(compile(FILES["test_bigram.py"], "test_bigram.py", "exec"), names)
    names["test_bigram_writes_what_plain_decoding_writes"]()
    corrupt(import_module("longdraft_bigram"), monkeypatch)
    with pytest.raises(AssertionError):
        names["test_bigram_writes_what_plain_decoding_writes"]()


def corrupt(package: ModuleType, monkeypatch) -> None:
    """The drafter zeroes slots of the target's cache."""
    good = package.Bigram.grow

    def grow(self, tree, seqs, limits):
        broken._zero(seqs)
        return good(self, tree, seqs, limits)

    monkeypatch.setattr(package.Bigram, "grow", grow)


@pytest.fixture
def added(install, monkeypatch) -> ModuleType:
    """The method added to longdraft itself, by the lines of the page."""
    install()
    package = import_module("longdraft_bigram")
    record = eval(
        "{" + FILES["src/longdraft/methods/table.py"] + "}",
        vars(table) | {"bigram": package.bigram},
    )
    options = eval("{" + FILES["tests/support/listed.py"] + "}")
    assert record == {"bigram": package.BIGRAM} and options.keys() == {"bigram"}
    monkeypatch.setitem(METHODS, "bigram", record["bigram"])
    monkeypatch.setitem(listed.OPTIONS, "bigram", options["bigram"])
    monkeypatch.setitem(listed.BUILD, "bigram", listed.named("bigram"))
    monkeypatch.setattr(test_lossless, "FROM_TEXT", listed.FROM_TEXT | {"bigram"})
    return package


@pytest.mark.full
@pytest.mark.parametrize("model", ["llama", "llama-loops", "gpt-oss"])
def test_the_method_passes_the_list(added, model):
    test_lossless.test_every_named_method_is_on_the_list()
    for sampler in SAMPLERS.values():
        for rows in listed.ROWS.values():
            test_lossless.test_output_is_plain_decoding(model, rows, sampler, "bigram")


@pytest.mark.full
def test_the_method_drafts_as_it_declares_and_not_in_vain(added):
    test_lossless.test_the_matrix_is_not_vacuous("bigram")
    test_declared.test_drafts_are_as_declared("bigram")


def test_the_list_catches_a_broken_one(added, monkeypatch):
    corrupt(added, monkeypatch)
    with pytest.raises(AssertionError):
        check_lossless(listed.BUILD["bigram"], "llama", SAMPLERS["T=1"], listed.ROWS["3 rows"])


@pytest.mark.full
@pytest.mark.weekly
def test_pip_installs_the_package_of_the_page(tmp_path):
    """As a user does it, but for the network: `pip install .`, then `longdraft methods` and the
    package's own test.
    """
    pytest.importorskip("setuptools")
    project = tmp_path / "project"
    site = tmp_path / "site"
    project.mkdir()
    for name in PACKAGE:
        (project / name).write_text(FILES[name], encoding="utf-8")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, "--target", str(site), str(project)], check=True)
    paths = [str(site), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    there = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    run = [sys.executable, "-m", "longdraft", "methods", "--json"]
    done = subprocess.run(run, env=there, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [entry["name"] for entry in json.loads(done.stdout)["elsewhere"]] == ["bigram"]
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(project / "test_bigram.py"),
    ]
    assert subprocess.run(tests, env=there, cwd=project, capture_output=True).returncode == 0
