"""GGUF files of the Hub by llama.cpp's names (hf:ORG/REPO:Q4_K_M). The Hub is replaced: no test
uses the network.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from support import gguf_files as files
from support.place import BRIEF

from longdraft.errors import InputError
from longdraft.models import hub_files

REPOSITORY = "org/tiny-GGUF"
SHA = "a" * 40
SINGLE = ["tiny-BF16.gguf", "tiny-F16.gguf", "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"]
PARTS = [f"Q6_K/tiny-Q6_K-0000{i}-of-00002.gguf" for i in (1, 2)]
NAMES = ["README.md", "config.json", "mmproj-tiny-Q8_0.gguf", *PARTS, *SINGLE]


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        (None, ["tiny-Q4_K_M.gguf"]),
        ("Q4_K_M", ["tiny-Q4_K_M.gguf"]),
        ("q4_k_m", ["tiny-Q4_K_M.gguf"]),
        ("Q8_0", ["tiny-Q8_0.gguf"]),
        ("F16", ["tiny-F16.gguf"]),
        ("bf16", ["tiny-BF16.gguf"]),
        ("Q6_K", PARTS),
        (PARTS[0], PARTS),
        ("tiny-Q8_0.gguf", ["tiny-Q8_0.gguf"]),
    ],
)
def test_a_type_chooses_the_file(kind, chosen):
    assert hub_files.choose(REPOSITORY, NAMES, kind) == chosen


def test_without_the_usual_type_the_first_file_is_chosen():
    assert hub_files.choose(REPOSITORY, ["README.md", "b-Q8_0.gguf", "a-Q2_K.gguf"], None) == [
        "b-Q8_0.gguf"
    ]


ODD = [f"{folder}Q4_K_M.gguf" for folder in ("../", "/", "a\\", "a\n", "a//", "./")]


@pytest.mark.parametrize(
    ("names", "kind", "line"),
    [
        (NAMES, "Q3_K", f"no GGUF files of the type Q3_K: give hf:{REPOSITORY}: and one of Q6_K/"),
        (["a-Q4_K_M.gguf", "a-Q4_K_S.gguf"], "Q4_K", "2 GGUF files of the type Q4_K"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], None, "2 GGUF files of the type Q4_K_M"),
        ([f"{i}.gguf" for i in range(30)], "x", "or 18 more"),
        (["config.json"], None, f"or -m {REPOSITORY} for its safetensors"),
        ([], "Q8_0", "no GGUF files of the type Q8_0"),
        ([*ODD, None, 3], "Q4_K_M", "no GGUF files of the type Q4_K_M"),
        (PARTS[:1], "Q6_K", f"lacks {PARTS[1]}, a part of"),
        (PARTS[1:], "Q6_K", "no GGUF files of the type Q6_K"),
    ],
)
def test_no_file_or_several_are_one_line(names, kind, line):
    with pytest.raises(InputError) as found:
        hub_files.choose(REPOSITORY, names, kind)
    assert line in str(found.value) and "\n" not in str(found.value) and ": " in str(found.value)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub with NAMES, of which two are models. `asked`: the files that were downloaded."""
    folder = tmp_path / "hub"
    metadata, tensors = files.of_model(files.stock(), quantized="Q8_0")
    (folder / "Q6_K").mkdir(parents=True)
    files.write(folder / "tiny-Q4_K_M.gguf", metadata, tensors)
    for path, name in zip(files.split(tmp_path, metadata, tensors, 2), PARTS, strict=True):
        path.rename(folder / name)
    asked = []
    hub = SimpleNamespace(folder=folder, asked=asked, names=NAMES, error=None)

    def model_info(self, repository, timeout):
        assert repository == REPOSITORY and timeout <= 10
        if hub.error:
            raise hub.error
        return SimpleNamespace(
            sha=SHA, siblings=[SimpleNamespace(rfilename=name) for name in hub.names]
        )

    def download(repository, name, *, revision):
        assert (repository, revision) == (REPOSITORY, SHA)
        asked.append(name)
        if not (folder / name).exists():
            raise ConnectionError("no route\nmore")
        return str(folder / name)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    return hub


@pytest.mark.full
def test_a_file_of_the_hub_runs(hub, cli):
    options = (*BRIEF, "--ignore-eos")
    outputs = set()
    for kind in ("", ":Q4_K_M", ":Q6_K"):
        status, out, err = cli("generate", "hel", "-m", f"hf:{REPOSITORY}{kind}", *options)
        assert status == 0, err
        outputs.add(out)
    assert len(outputs) == 1 and hub.asked == [*2 * ["tiny-Q4_K_M.gguf"], *PARTS]
    status, out, _ = cli("fetch", f"hf:{REPOSITORY}:Q6_K")
    assert status == 0 and str(hub.folder / PARTS[0]) in out and f"-m hf:{REPOSITORY}:Q6_K" in out


def raised(kind):
    """An error of the library without the response that it wants."""
    return kind.__new__(kind)


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        (f"{REPOSITORY}:Q3_K", {}, "no GGUF files of the type Q3_K"),
        (f"{REPOSITORY}:Q8_0", {}, "cannot download tiny-Q8_0.gguf of org/tiny-GGUF (no route)"),
        (REPOSITORY, {"error": raised(GatedRepoError)}, "is gated: accept its terms"),
        (REPOSITORY, {"error": raised(RepositoryNotFoundError)}, "the Hub has no org/tiny-GGUF"),
        ("tiny", {}, "give hf:ORG/REPO or hf:ORG/REPO:TYPE"),
        ("../x/y", {}, "give hf:ORG/REPO or hf:ORG/REPO:TYPE"),
        ("org/name:a b", {}, "give hf:ORG/REPO or hf:ORG/REPO:TYPE"),
        ("org/na\nme", {}, "give hf:ORG/REPO or hf:ORG/REPO:TYPE"),
    ],
)
def test_the_command_line_reports_what_is_wrong(hub, cli, name, change, line):
    vars(hub).update(change)
    for words in (("generate", "hi", "-m", f"hf:{name}"), ("fetch", f"hf:{name}")):
        status, out, err = cli(*words)
        assert (status, out) == (2, "") and len(err.splitlines()) == 1 and line in err


def in_cache(root: Path, revision: str, names: list[str]) -> None:
    """Writes a revision as the Hub's library keeps it."""
    folder = root / "models--org--tiny-GGUF"
    for name in names:
        file = folder / "snapshots" / revision / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"GGUF")


def test_without_the_hub_the_cache_is_used(hub, tmp_path, monkeypatch, cli):
    """A file is never taken for one of another type, as it may be with the list of the Hub."""
    hub.error = ConnectionError("no route")
    root = tmp_path / "cache"
    scan = partial(huggingface_hub.scan_cache_dir, cache_dir=root)
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", scan)
    name = f"hf:{REPOSITORY}"

    def refused(kind: str) -> str:
        with pytest.raises(InputError) as found:
            hub_files.file_of(f"{name}{kind}")
        return str(found.value)

    assert "its local cache has no GGUF file" in refused("")
    in_cache(root, "b" * 40, ["tiny-Q8_0.gguf", *PARTS[:1]])
    assert hub_files.file_of(f"{name}:Q8_0").name == "tiny-Q8_0.gguf"
    assert "only Q6_K/tiny-Q6_K-00001-of-00002.gguf, tiny-Q8_0.gguf" in refused("")
    assert "connect to the network" in refused(":Q6_K")
    in_cache(root, "b" * 40, PARTS)
    file = hub_files.file_of(f"{name}:Q6_K")
    assert file.as_posix().endswith(PARTS[0]) and file.is_file() and hub.asked == []
    status, out, err = cli("generate", "hi", "-m", name)
    assert (status, out) == (2, "") and len(err.splitlines()) == 1 and "cannot reach" in err
