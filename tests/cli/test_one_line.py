"""One line instead of a traceback, or of hours of training that are lost: each case was met
once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from longdraft import launch
from longdraft.cli import main, train
from longdraft.core import places
from longdraft.core.files import read_json
from longdraft.drafters import kinds
from longdraft.errors import InputError
from longdraft.training import checkpoint

GOOD = {"step": 3, "seconds": 1.5, "runs": [], "probes": []}


def refused(cli, *words: str) -> str:
    """The one line that a command ends with."""
    status, out, err = cli(*words)
    assert (status, out, len(err.splitlines())) == (2, "", 1) and err.startswith("longdraft: ")
    return err


# Folders to write ---------------------------------------------------------------------------------


@pytest.fixture
def released(place):
    """A folder that `import` and `pack-drafter` read far enough to write."""
    folder = place / "released"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("out", [".", "/", "..", "./x/.."])
def test_a_folder_without_a_name_is_refused(cli, place, released, out):
    (released / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    lines = [
        "export -m tiny",
        "import released -m tiny",
        "export-drafter released -m tiny",
        "pack-drafter released",
    ]
    lines += [
        f"train {what} --text long.txt"
        for what in ("eagle -m tiny", "budget -m tiny", "text -m tiny", "target")
    ]
    for line in lines:
        assert "--out" in refused(cli, *line.split(), "--out", out)
    assert not list(place.glob("*.run")) and not list(place.glob(".*"))


def test_places_are_checked_without_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    before = sorted(tmp_path.rglob("*"))
    for path, why in (
        ("file", "is a file"),
        ("full", "not empty"),
        ("file/x", "cannot write"),
        ("/proc/x/y", "cannot write"),
    ):
        with pytest.raises(InputError, match=why):
            places.new_folder(Path(path))
    for path, why in (
        ("full", "a folder"),
        ("/dev/null", "a device"),
        ("file/x", "cannot write"),
        (".", "current folder"),
    ):
        with pytest.raises(InputError, match=why):
            places.new_file(Path(path))
    assert places.new_folder(Path("a/b")) == tmp_path / "a" / "b"
    assert (
        places.new_folder(Path("full"), replaced=["x"])
        == tmp_path / "full"
        == places.new_folder(Path("full"), replaced=None)
    )
    assert places.new_file(Path("full/../file")) == tmp_path / "file"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.full
def test_training_is_refused_before_it_starts(cli, place, monkeypatch):
    """An --out that could not be written at the end; without the check, the training runs."""
    started = []
    monkeypatch.setattr(
        train, "load", lambda *_, **__: started.append(1) or pytest.fail("the target was loaded")
    )
    (place / "notes").mkdir()
    (place / "notes" / "diary.txt").write_text("keep")
    for kind in ("eagle", "budget"):
        for out in (".", "notes", "a.txt", "a.txt/x", "/proc/x/y"):
            assert out in refused(
                cli, "train", kind, "--out", out, "-m", "tiny", "--text", "long.txt"
            )
    assert not started and (place / "notes" / "diary.txt").read_text() == "keep"
    monkeypatch.setattr(train, "_new", lambda out, kind: out)  # the fault
    with pytest.raises(pytest.fail.Exception):
        cli("train", "eagle", "--out", "notes", "-m", "tiny", "--text", "long.txt")


def test_a_drafter_in_the_folder_is_replaced(tmp_path):
    """Only by a kind that writes the same files; a whole model is known by its training.json."""
    for name in ("model.safetensors", "config.json", "training.json"):
        (tmp_path / name).touch()
    assert train._new(tmp_path, kinds.EAGLE2) == train._new(tmp_path, kinds.BUDGET) == tmp_path
    (tmp_path / "tokenizer.json").touch()
    assert train._new(tmp_path, kinds.BUDGET) == tmp_path
    with pytest.raises(InputError, match=r"other files in it, such as tokenizer\.json"):
        train._new(tmp_path, kinds.EAGLE2)


# Files to read ------------------------------------------------------------------------------------

PICKLED = [
    torch.zeros(2),
    {},
    {"state_dict": torch.zeros(2)},
    {"state_dict": {}},
    {1: torch.zeros(2)},
    [torch.zeros(2)],
]
PICKLED += [
    {"state_dict": {1: torch.zeros(2), "x": torch.zeros(2)}},
    {"x": {"y": torch.zeros(2)}},
    {"x": 1},
]


@pytest.mark.parametrize("held", range(len(PICKLED)))
def test_pickled_weights_that_are_no_dictionary(cli, place, held):
    folder = place / f"pickled{held}"
    folder.mkdir()
    torch.save(PICKLED[held], folder / "x.bin")
    assert "dictionary of tensors by name" in refused(
        cli, "import", folder.name, "--out", "made", "-m", "tiny"
    )
    assert not (place / "made").exists()


@pytest.mark.parametrize("name", [*GOOD, None])
@pytest.mark.parametrize("value", [None, "x", [1], {}, -1, True, float("nan"), 1e999])
def test_a_checkpoint_without_its_state_is_refused(tmp_path, name, value):
    state = GOOD | {name: value} if name else value
    if name in ("runs", "probes") and value == []:
        return
    model = torch.nn.Linear(2, 2)
    checkpoint.save(tmp_path, 3, model, [], dict(GOOD))
    (tmp_path / "step-00000003" / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"unreadable checkpoint .*delete that folder"):
        checkpoint.load(checkpoint.latest(tmp_path), model, [])


def test_a_checkpoint_is_read_back(tmp_path):
    model = torch.nn.Linear(2, 2)
    checkpoint.save(tmp_path, 3, model, [], dict(GOOD))
    assert checkpoint.load(checkpoint.latest(tmp_path), model, []) == GOOD


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_device_that_never_ends_is_not_read(cli, device):
    lines = [
        "bench speed -m tiny --prompt-file",
        "report --out fresh",
        "serve -m tiny --api-key-file",
        "audit --prompt-file",
    ]
    for line in lines:
        assert device in refused(cli, *line.split(), device)
    with pytest.raises(InputError, match="a device"):
        read_json(Path(device))


# The environment ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["x", "0", "-1", "1.5", "\u0663", "9" * 30])
def test_a_world_size_that_is_no_number(cli, monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    assert "WORLD_SIZE" in refused(cli, "methods") and "torchrun" in refused(
        cli, "generate", "hi", "-m", "tiny"
    )


def test_variables_that_torchrun_sets_are_all_there(monkeypatch):
    found = {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "LOCAL_RANK": "1",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert (launch.world(), launch.local_rank()) == ((1, 2), 1)
    for name, value in (
        ("RANK", "2"),
        ("RANK", ""),
        ("MASTER_PORT", "x"),
        ("MASTER_ADDR", ""),
        ("RANK", "-1"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(InputError, match=name):
                launch.world()
                launch.check_meeting()
    monkeypatch.setenv("LOCAL_RANK", "x")
    with pytest.raises(InputError, match="LOCAL_RANK"):
        launch.local_rank()


# The boundary -------------------------------------------------------------------------------------


def test_what_the_system_says_of_a_file_is_one_line(cli, monkeypatch):
    def refuse(*_: object) -> None:
        Path("/proc/nowhere/x").touch()

    monkeypatch.setattr(places, "new_folder", refuse)
    said = refused(cli, "export", "--out", "fresh", "-m", "tiny")
    assert "/proc/nowhere/x" in said and os.strerror(2) in said


@pytest.mark.full
def test_text_of_the_whole_machine_is_refused(cli):
    for source in ("", "/", "//"):
        assert "--text" in refused(
            cli,
            "train",
            "eagle",
            "--out",
            "fresh",
            "-m",
            "tiny",
            "--length",
            "16",
            "--text",
            source,
        )


def test_a_user_who_is_not_there(cli):
    assert "no user" in refused(cli, "generate", "hi", "-m", "~nobody-here/x")
    assert main(["methods", "-m", "tiny"]) == 0
