"""Methods of other packages: what cannot be used is one line, and only what is installed and asked
for is imported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import listed
from support.added import FILES, forget
from support.checks import check_lossless
from support.place import SHORT
from support.tiny import target

from longdraft import InputError, build, methods
from longdraft.bench.plots import style
from longdraft.bench.selection import parse
from longdraft.cli import main
from longdraft.methods import METHODS, elsewhere
from longdraft.methods.spec import MethodSpec

pytestmark = pytest.mark.usefixtures("forgotten")

# What cannot be used is one line, and everything else goes on working -----------------------------

BAD = {
    "own name": (
        {"vegas": "longdraft_other:BIGRAM"},
        "",
        "has a method 'vegas', which is longdraft's own name",
    ),
    "control": (
        {"recents": "longdraft_other:BIGRAM"},
        "",
        "has a method 'recents', which is longdraft's own name",
    ),
    "import": (
        {"other": "longdraft_other:BIGRAM"},
        "import nothing_of_this_name",
        "be imported: ModuleNotFound",
    ),
    "lines": (
        {"other": "longdraft_other:BIGRAM"},
        "raise ValueError('a\\nb')",
        "cannot be imported: ValueError: a b",
    ),
    "exit": (
        {"other": "longdraft_other:BIGRAM"},
        "raise SystemExit(3)",
        "cannot be imported: SystemExit: 3",
    ),
    "absent": ({"other": "longdraft_other:NOTHING"}, "", "cannot be imported: AttributeError"),
    "function": (
        {"other": "longdraft_other:bigram"},
        "",
        "bigram is a function, not a longdraft.methods.Method",
    ),
    "name": ({"Other_Name": "longdraft_other:BIGRAM"}, "", "a name takes small letters"),
    "kind": (
        {"other": "longdraft_other:X"},
        'X = replace(BIGRAM, needs="own")',
        "needs drafter weights of kind 'own'",
    ),
    "trial": (
        {"other": "longdraft_other:X"},
        "X = replace(BIGRAM, trial=Trial(0))",
        "`auto` tries longdraft's own",
    ),
    "family": (
        {"other": "longdraft_other:X"},
        'X = replace(BIGRAM, family="blue")',
        "a family that is no Family",
    ),
    "options": (
        {"other": "longdraft_other:X"},
        "X = replace(BIGRAM, build=odd)",
        "options that cannot be read",
    ),
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
    """A project's own folder has a copy of its entry points, and Python's path when its tests run
    in it.
    """
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


# Nothing is looked up before it must be, and nothing is imported that is not installed ------------


def test_longdrafts_own_methods_look_nothing_up(monkeypatch):
    def looked(**_):
        raise AssertionError("entry points were looked up")

    monkeypatch.setattr(elsewhere, "distributions", looked)
    for name in ("vegas", "auto", "lookup"):
        MethodSpec(name, name).build(target("llama"))
    check_lossless(listed.BUILD["vegas"])
    parse("plain,vegas,hf-static", [])
    assert style.color("vegas") and style.color("llama.cpp (wheel)")
    with pytest.raises(AssertionError, match="looked up"):
        methods.find("bigram")


def test_the_import_of_longdraft_looks_nothing_up():
    code = (
        "import longdraft, sys; print('longdraft.methods' in sys.modules, 'importlib.metadata' "
        "in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.full
def test_nothing_is_imported_from_a_models_folder_or_the_current_one(
    install, place, monkeypatch, tmp_path, capsys
):
    """The same files in a model's folder do nothing; nor in the current folder, which `python -m`
    searches.
    """
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
