"""Models in the caches of llama.cpp, Ollama and LM Studio are listed, and Ollama's run by name.

Each test has a home folder of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from support import gguf_files as files
from support.place import BRIEF

from longdraft import generate, load
from longdraft.errors import InputError
from longdraft.models import local, recommended
from longdraft.models.text import token_ids

MODEL = "application/vnd.ollama.image.model"


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    for name in ("LLAMA_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


def gguf(folder: Path) -> bytes:
    path = files.saved(folder, quantized="Q8_0")
    data = path.read_bytes()
    path.unlink()
    return data


def layer(digest: str, kind: str = MODEL) -> dict:
    return {"mediaType": kind, "digest": digest, "size": 1}


def in_ollama(root: Path, data: bytes, *where: str) -> Path:
    """Writes a model as Ollama does -> its manifest. where: registry, namespace, name and tag."""
    digest = hashlib.sha256(data).hexdigest()
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    (root / "blobs" / f"sha256-{digest}").write_bytes(data)
    manifest = root.joinpath("manifests", *where)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    template = layer(f"sha256:{'0' * 64}", "application/vnd.ollama.image.template")
    content = {"schemaVersion": 2, "layers": [template, layer(f"sha256:{digest}")]}
    manifest.write_text(json.dumps(content), encoding="utf-8")
    return manifest


@pytest.fixture
def tiny(home, tmp_path):
    """The manifest of ollama:tiny."""
    root = home / ".ollama" / "models"
    return in_ollama(root, gguf(tmp_path), local.REGISTRY, local.LIBRARY, "tiny", "latest")


def put(file: Path, data: bytes = b"GGUF") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def everything(folder: Path) -> dict:
    """The state of each file below a folder."""
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(folder.rglob("*"))}


@pytest.mark.full
def test_a_model_of_ollama_runs_where_it_is(tiny, home, tmp_path, cli):
    before = everything(home)
    path = files.saved(tmp_path, quantized="Q8_0")
    lm, tokenizer = load("ollama:tiny", "float32")
    same, _ = load(str(path), "float32")
    prompt = token_ids(tokenizer, "hello the tree")
    made = generate(lm, [prompt], max_new_tokens=12, eos=())
    assert made == generate(same, [prompt], max_new_tokens=12, eos=())
    assert lm.name == "ollama:tiny" and recommended.recommended_settings(lm) == {}
    outputs = set()
    assert load(path, "float32")[0].name == path  # programs may give a Path
    for model in ("ollama:tiny", "ollama:tiny:latest", str(path)):
        status, out, err = cli("generate", "hello the tree", "-m", model, *BRIEF, "--ignore-eos")
        assert status == 0, err
        outputs.add(out)
    assert len(outputs) == 1 and everything(home) == before


def test_names_of_ollama(home, tmp_path, monkeypatch):
    root = tmp_path / "elsewhere"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    names = {
        "ollama:one": (local.REGISTRY, "library", "one", "latest"),
        "ollama:one:1.5b-q4_K_M": (local.REGISTRY, "library", "one", "1.5b-q4_K_M"),
        "ollama:org/two:8b": (local.REGISTRY, "org", "two", "8b"),
        "ollama:hf.co/org/three-GGUF:Q8_0": ("hf.co", "org", "three-GGUF", "Q8_0"),
    }
    for name, where in names.items():
        in_ollama(root, name.encode(), *where)
    for name in names:
        assert local.file_of(name).read_bytes() == name.encode()
    listed = {model.name: model.size for model in local.models()}
    latest = {name if name.count(":") == 2 else f"{name}:latest" for name in names}
    assert listed.keys() == latest
    assert all(local.file_of(name).stat().st_size == size for name, size in listed.items())


def digest(what: object):
    return lambda m: m.write_text(json.dumps({"layers": [layer(what)]}))  # type: ignore[arg-type]


def content(what: object):
    return lambda m: m.write_text(json.dumps(what))


OUT = "sha256:" + "../" * 20 + "etc/passwd"
BAD = {
    "no manifest": (lambda m: m.unlink(), "run `ollama pull tiny`"),
    "a folder": (lambda m: (m.unlink(), m.mkdir()), "run `ollama pull tiny`"),
    "no JSON": (lambda m: m.write_bytes(b"\xff{"), "is unreadable"),
    "too deep": (lambda m: m.write_text('{"a":' * 100_000), "is unreadable"),
    "too large": (lambda m: os.truncate(m, 1 << 25), "too large"),
    "a list": (content([]), "JSON object"),
    "no layers": (content({}), "does not name one model file"),
    "a number": (content({"layers": 3}), "does not name one model file"),
    "odd layers": (content({"layers": [3, None, [], {"mediaType": []}]}), "does not name one"),
    "other layers": (content({"layers": [layer("sha256:" + "0" * 64, "x")]}), "does not name one"),
    "two models": (content({"layers": 2 * [layer("sha256:" + "0" * 64)]}), "does not name one"),
    "no digest": (digest(None), "does not name one"),
    "out of the folder": (digest(OUT), "does not name one"),
    "a path": (digest("/etc/passwd"), "does not name one"),
    "another hash": (digest("md5:" + "0" * 32), "does not name one"),
    "upper case": (digest("sha256:" + "A" * 64), "does not name one"),
    "a second line": (digest("sha256:" + "0" * 64 + "\n"), "does not name one"),
    "no file": (digest("sha256:" + "0" * 64), "is missing: run `ollama pull tiny`"),
    "no GGUF": (
        lambda m: next((m.parents[4] / "blobs").iterdir()).write_bytes(b"none"),
        "not a GGUF file",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_what_is_wrong_in_ollama_is_one_line(tiny, cli, fault):
    change, names = BAD[fault]
    change(tiny)
    status, out, err = cli("generate", "hi", "-m", "ollama:tiny")
    assert (status, out) == (2, "") and len(err.splitlines()) == 1 and names in err
    status, out, err = cli("fetch")  # what cannot run is left out
    assert (status, err) == (0, "") and ("ollama:tiny" in out) == (fault == "no GGUF")


def test_without_the_check_of_digests_another_file_is_read(tiny, home, monkeypatch):
    """A broken variant of the reader: any text is a digest."""
    put(home / "secret")
    digest("sha256:x/../../../../secret")(tiny)
    (home / ".ollama" / "models" / "blobs" / "sha256-x").mkdir()
    with pytest.raises(InputError, match="does not name one"):
        local.file_of("ollama:tiny")
    monkeypatch.setattr(local, "DIGEST", local.re.compile("sha256:(.*)"))
    assert local.file_of("ollama:tiny").samefile(home / "secret")


ODD = ["", "..", "../x", "a/../b", "/etc/passwd", "a:..", "a:", "a b", "a\nb", "é"]


@pytest.mark.parametrize("name", [*ODD, "a/b/c/d", "a:b:c", "a" * 200])
def test_an_odd_name_is_one_line(home, cli, name):
    status, out, err = cli("generate", "hi", "-m", f"ollama:{name}")
    assert (status, out) == (2, "") and len(err.splitlines()) == 1
    assert "give ollama:NAME, ollama:NAME:TAG or ollama:ORG/NAME:TAG" in err


def test_fetch_lists_what_other_programs_have(tiny, home, cli):
    """Parts of a split model are one line; vision towers and incomplete models are left out."""
    llama = home / ".cache" / "llama.cpp"
    put(llama / "ggml-org_tiny_model.gguf", bytes(2_000_000))
    for i in (1, 2):
        put(llama / f"large-0000{i}-of-00002.gguf", bytes(3_000_000))
    put(llama / "lacking-00001-of-00002.gguf")
    put(llama / "mmproj-tiny.gguf")
    put(llama / "tiny.json")
    put(home / ".lmstudio" / "models" / "org" / "repo" / "new one.gguf")
    put(home / ".cache" / "lm-studio" / "models" / "org" / "repo" / "older.gguf")
    put(home / ".lmstudio" / "models" / "not-below-org.gguf")
    before = everything(home)
    status, out, err = cli("fetch")
    assert (status, err) == (0, "") and everything(home) == before
    lines = [line for line in out.splitlines() if " in the cache of " in line]
    assert [line.replace(str(home), "~") for line in lines] == [
        "ollama:tiny:latest in the cache of Ollama, 0 MB",
        "~/.cache/llama.cpp/ggml-org_tiny_model.gguf in the cache of llama.cpp, 2 MB",
        "~/.cache/llama.cpp/large-00001-of-00002.gguf in the cache of llama.cpp, 6 MB",
        "~/.cache/lm-studio/models/org/repo/older.gguf in the cache of LM Studio, 0 MB",
        "'~/.lmstudio/models/org/repo/new one.gguf' in the cache of LM Studio, 0 MB",
    ]


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, ".cache/llama.cpp"),
        ("darwin", {}, "Library/Caches/llama.cpp"),
        ("linux", {"XDG_CACHE_HOME": "{}/xdg"}, "xdg/llama.cpp"),
        ("darwin", {"XDG_CACHE_HOME": "{}/xdg"}, "Library/Caches/llama.cpp"),
        ("linux", {"XDG_CACHE_HOME": "{}/xdg", "LLAMA_CACHE": "{}/own"}, "own"),
    ],
)
def test_the_cache_of_llama_cpp(home, monkeypatch, platform, variables, folder):
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home))
    file = put(home / folder / "model.gguf")
    assert [model.name for model in local.models()] == [str(file)]


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 0)() == 0, reason="root reads all folders")
def test_a_folder_that_cannot_be_read_is_left_out(tiny, home):
    blobs = tiny.parents[4] / "blobs"
    os.chmod(blobs, 0)
    try:
        assert local.models() == []
    finally:
        os.chmod(blobs, 0o700)
