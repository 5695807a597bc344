"""docs/adding-a-method.md is true: a method that is made by its steps is listed, is lossless, and cannot do harm.

The files come from the page. They are installed into a temporary folder on Python's path, by pip in one test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import test_declared
import test_lossless
from support import broken, listed
from support.checks import SAMPLERS, check_lossless
from support.place import SHORT
from support.tiny import target

from longdraft import InputError, build, methods
from longdraft.bench.plots import style
from longdraft.bench.selection import parse
from longdraft.cli import main
from longdraft.methods import METHODS, elsewhere, family, table
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.spec import MethodSpec

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
FILES = {
    title: textwrap.dedent(text)
    for title, text in re.findall(r'^ *```\w+ title="(.*?)"\n(.*?)^ *```$', PAGE, re.M | re.S)
}
PACKAGE = ("pyproject.toml", "longdraft_bigram.py", "test_bigram.py")
PROJECT = tomllib.loads(FILES["pyproject.toml"])["project"]
ENTRIES = PROJECT["entry-points"]["longdraft.methods"]

Install = Callable[..., None]


def forget() -> None:
    elsewhere._entries.cache_clear()
    elsewhere._outcome.cache_clear()


@pytest.fixture(autouse=True)
def forgotten():
    """What is installed is looked up anew in each test, and what was imported is gone after it."""
    before = set(sys.modules)
    forget()
    yield
    forget()
    for name in sys.modules.keys() - before:
        if name.startswith("longdraft_"):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch) -> Install:
    """Installs a package of one module, as pip does: the module, and a folder with its name and its entry points."""
    site = tmp_path / "site"
    site.mkdir()

    def add(name: str = PROJECT["name"], code: str = FILES["longdraft_bigram.py"], **entries: str) -> None:
        facts = site / f"{name.replace('-', '_')}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        named = "\n".join(f"{key} = {value}" for key, value in (entries or ENTRIES).items())
        (facts / "entry_points.txt").write_text(f"[longdraft.methods]\n{named}\n")
        (site / f"{name.replace('-', '_')}.py").write_text(code)
        monkeypatch.syspath_prepend(site)

    return add


def test_the_page_has_every_file_of_its_steps():
    assert [*FILES] == [*PACKAGE, "src/longdraft/methods/table.py", "tests/support/listed.py"]


def test_the_package_of_the_page_adds_its_method(install, place, capsys):
    install()
    assert main(["methods", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [entry] = found["elsewhere"]
    assert entry["name"] == "bigram" and entry["package"] == PROJECT["name"] and found["problems"] == []
    assert entry["options"]["count"]["default"] == 5 and entry["label"] == family.NGRAMS.label
    assert main(["methods"]) == 0
    shown = capsys.readouterr()
    assert f"bigram           ours\n{'':<17}{entry['does']}" in shown.out and shown.err == ""
    assert f"From the package {PROJECT['name']}." in shown.out
    words = ["generate", "-m", "tiny", "--method", "bigram", "-o", "count=3", "--prompt-file", "a.txt", "--compare"]
    assert main([*words, *SHORT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    assert style.colour("bigram@count=3") == family.NGRAMS.color != style.OTHER
    assert [entry.name for entry in parse("plain,bigram@count=3", [])] == ["plain", "bigram"]
    with pytest.raises(InputError, match="option count is 0"):
        MethodSpec("bigram", "bigram", {"count": "0"})


def test_the_server_offers_the_method(install, monkeypatch):
    traces = pytest.importorskip("longdraft.server.traces", reason="the server's packages are not installed")
    monkeypatch.setattr(traces, "has_template", lambda tokenizer: False)
    service: Any = SimpleNamespace(target=target("llama"), tokenizer=None, model="tiny", room=128)
    tracer = traces.Tracer(service, DrafterWeights(), "bigram")
    assert tracer.methods["default"] == "vegas"
    install()
    forget()
    assert tracer.methods["default"] == "bigram"
    [entry] = [entry for entry in tracer.methods["methods"] if entry["name"] == "bigram"]
    assert entry["label"] == family.NGRAMS.label and entry["options"]["count"]["default"] == "5"


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
    record = eval("{" + FILES["src/longdraft/methods/table.py"] + "}", vars(table) | {"bigram": package.bigram})
    options = eval("{" + FILES["tests/support/listed.py"] + "}")
    assert record == {"bigram": package.BIGRAM} and options.keys() == {"bigram"}
    monkeypatch.setitem(METHODS, "bigram", record["bigram"])
    monkeypatch.setitem(listed.OPTIONS, "bigram", options["bigram"])
    monkeypatch.setitem(listed.BUILD, "bigram", listed.named("bigram"))
    monkeypatch.setattr(test_lossless, "FROM_TEXT", listed.FROM_TEXT | {"bigram"})
    return package


@pytest.mark.parametrize("model", ["llama", "llama-loops", "gpt-oss"])
def test_the_method_passes_the_list(added, model):
    test_lossless.test_every_named_method_is_on_the_list()
    for sampler in SAMPLERS.values():
        for rows in listed.ROWS.values():
            test_lossless.test_output_is_plain_decoding(model, rows, sampler, "bigram")


def test_the_method_drafts_as_it_declares_and_not_in_vain(added):
    test_lossless.test_the_matrix_is_not_vacuous("bigram")
    test_declared.test_drafts_are_as_declared("bigram")


def test_the_list_catches_a_broken_one(added, monkeypatch):
    corrupt(added, monkeypatch)
    with pytest.raises(AssertionError):
        check_lossless(listed.BUILD["bigram"], "llama", SAMPLERS["T=1"], listed.ROWS["3 rows"])


# What cannot be used is one line, and everything else goes on working ---------------------------------------------

BAD = {
    "own name": ({"vegas": "longdraft_other:BIGRAM"}, "", "has a method 'vegas', which is longdraft's own name"),
    "control": ({"recents": "longdraft_other:BIGRAM"}, "", "has a method 'recents', which is longdraft's own name"),
    "import": (
        {"other": "longdraft_other:BIGRAM"},
        "import nothing_of_this_name",
        "be imported: ModuleNotFound",
    ),
    "lines": ({"other": "longdraft_other:BIGRAM"}, "raise ValueError('a\\nb')", "cannot be imported: ValueError: a b"),
    "exit": ({"other": "longdraft_other:BIGRAM"}, "raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    "absent": ({"other": "longdraft_other:NOTHING"}, "", "cannot be imported: AttributeError"),
    "function": ({"other": "longdraft_other:bigram"}, "", "bigram is a function, not a longdraft.methods.Method"),
    "name": ({"Other_Name": "longdraft_other:BIGRAM"}, "", "a name takes small letters"),
    "kind": ({"other": "longdraft_other:X"}, 'X = replace(BIGRAM, needs="own")', "needs drafter weights of kind 'own'"),
    "trial": ({"other": "longdraft_other:X"}, "X = replace(BIGRAM, trial=Trial(0))", "`auto` tries longdraft's own"),
    "family": ({"other": "longdraft_other:X"}, 'X = replace(BIGRAM, family="blue")', "a family that is no Family"),
    "options": ({"other": "longdraft_other:X"}, "X = replace(BIGRAM, build=odd)", "options that cannot be read"),
}
MORE = """
from dataclasses import replace
from longdraft.methods import Trial
def odd(target, count: "NoSuchType" = 3): ...
"""


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_one_line(case, install, place, capsys):
    entries, more, says = BAD[case]
    install()
    install("longdraft-other", FILES["longdraft_bigram.py"] + MORE + more, **entries)
    usable, [problem] = elsewhere.listed()
    assert list(usable) == ["bigram"]
    assert says in problem and "longdraft-other" in problem and "\n" not in problem
    assert main(["methods"]) == 0
    assert capsys.readouterr().err == f"longdraft: note: {problem}\n"
    [name] = entries
    if name in METHODS | methods.CONTROLS:
        assert methods.find(name) is (METHODS | methods.CONTROLS)[name]
    else:
        with pytest.raises(InputError, match=re.escape(problem)):
            methods.find(name)
        assert main(["generate", "-m", "tiny", "--prompt-file", "a.txt", "--method", name]) == 2
        assert problem in capsys.readouterr().err
    assert methods.find("bigram") is usable["bigram"].method


def test_a_package_whose_import_fails_is_imported_once(install, tmp_path):
    """A server's clients can name it as often as they like."""
    log = tmp_path / "log"
    code = f"open({str(log)!r}, 'a').write('x')\nraise ValueError"
    install("longdraft-other", code, other="longdraft_other:BIGRAM")
    for _ in range(3):
        with pytest.raises(InputError, match="ValueError"):
            methods.find("other")
    assert log.read_text() == "x"
    elsewhere._outcome.cache_clear()  # planted fault: what came of it is forgotten
    with pytest.raises(InputError):
        methods.find("other")
    assert log.read_text() == "xx"


def test_a_name_that_two_packages_use_is_used_by_neither(install):
    install()
    install("longdraft-other", bigram="longdraft_other:BIGRAM")
    usable, [problem] = elsewhere.listed()
    assert usable == {} and "both have a method 'bigram': uninstall one of them" in problem
    assert "longdraft-bigram" in problem and "longdraft-other" in problem
    with pytest.raises(InputError, match="uninstall one of them"):
        build("bigram", target("llama"))


def test_a_damaged_package_and_a_second_copy_disturb_nothing(install, tmp_path, monkeypatch):
    """A project's own folder has a copy of its entry points, and Python's path when its tests run in it."""
    install("longdraft-other", other="longdraft_other:BIGRAM")
    facts = tmp_path / "site" / "longdraft_other-1.0.dist-info" / "entry_points.txt"
    facts.write_text("[longdraft.methods]\nneither a name nor a value\n")
    install()
    copy = tmp_path / "project" / "longdraft_bigram.egg-info"
    copy.mkdir(parents=True)
    for name, text in (("PKG-INFO", "METADATA"), ("entry_points.txt", "entry_points.txt")):
        source = tmp_path / "site" / "longdraft_bigram-1.0.dist-info" / text
        (copy / name).write_text(source.read_text())
    monkeypatch.chdir(copy.parent)
    monkeypatch.syspath_prepend(copy.parent)
    usable, problems = elsewhere.listed()
    assert list(usable) == ["bigram"] and problems == []


def test_an_unknown_name_lists_those_of_packages(install):
    install()
    for call in (lambda: methods.find("nothing"), lambda: parse("nothing", [])):
        with pytest.raises(InputError, match=r"unknown method 'nothing': choose .*vegas.*bigram"):
            call()


# Nothing is looked up before it must be, and nothing is imported that is not installed -------------------------------


def test_longdrafts_own_methods_look_nothing_up(monkeypatch):
    def looked(**_):
        raise AssertionError("entry points were looked up")

    monkeypatch.setattr(elsewhere, "distributions", looked)
    for name in ("vegas", "auto", "lookup"):
        MethodSpec(name, name).build(target("llama"))
    check_lossless(listed.BUILD["vegas"])
    parse("plain,vegas,hf-static", [])
    assert style.colour("vegas") and style.colour("llama.cpp (wheel)")
    with pytest.raises(AssertionError, match="looked up"):
        methods.find("bigram")


def test_the_import_of_longdraft_looks_nothing_up():
    code = "import longdraft, sys; print('longdraft.methods' in sys.modules, 'importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_nothing_is_imported_from_a_models_folder_or_the_current_one(install, place, monkeypatch, tmp_path, capsys):
    """The same files in a model's folder do nothing; nor in the current folder, which `python -m` searches."""
    mark = tmp_path / "ran"
    install(code=FILES["longdraft_bigram.py"] + f"open({str(mark)!r}, 'w')\n")
    site = tmp_path / "site"
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part != str(site)])
    forget()
    words = ["generate", "-m", "tiny", "--prompt-file", "a.txt", "--method", "vegas", *SHORT]
    for file in site.iterdir():
        file.rename(Path("tiny") / file.name)
    assert main(words) == main(["methods", "-m", "tiny"]) == 0 and elsewhere.listed() == ({}, [])
    assert not mark.exists()
    monkeypatch.chdir("tiny")
    for folder in ("", str(Path.cwd())):
        monkeypatch.setattr(sys, "path", [folder, *sys.path])
        forget()
        usable, [problem] = elsewhere.listed()
        assert usable == {} and "lies in the current folder" in problem
        assert not mark.exists()
    monkeypatch.chdir("..")  # planted fault: the check is what keeps it from being imported
    elsewhere._outcome.cache_clear()
    assert list(elsewhere.listed()[0]) == ["bigram"] and mark.exists()


@pytest.mark.full
def test_pip_installs_the_package_of_the_page(tmp_path):
    """As a user does it, but for the network: `pip install .`, then `longdraft methods` and the package's own test."""
    pytest.importorskip("setuptools")
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    for name in PACKAGE:
        (project / name).write_text(FILES[name], encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(project)], check=True)
    paths = [str(site), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    there = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    run = [sys.executable, "-m", "longdraft", "methods", "--json"]
    done = subprocess.run(run, env=there, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [entry["name"] for entry in json.loads(done.stdout)["elsewhere"]] == ["bigram"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project / "test_bigram.py")]
    assert subprocess.run(tests, env=there, cwd=project, capture_output=True).returncode == 0
