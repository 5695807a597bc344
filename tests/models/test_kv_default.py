"""Keys and values in 8 bits by default: of a GGUF file in bfloat16, where kernels prefer that."""

from __future__ import annotations

import pytest
from support import gguf_files, tiny

from longdraft import InputError, generate
from longdraft.backends import native as native_backend
from longdraft.bench.plan.planner import LoadOptions, Planner
from longdraft.models.identity import fingerprint
from longdraft.models.lm import IN_8_BITS
from longdraft.models.loading import load, load_lm
from longdraft.ops import native

LIBRARY = native.library()
PREFERRED = LIBRARY is not None and native.name_of(LIBRARY) in native_backend.CODES_MEASURED
HERE = "int8" if PREFERRED else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    made = tmp_path_factory.mktemp("kv") / "llama"
    tiny.stock("llama").save_pretrained(made)
    return str(made)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    return str(gguf_files.saved(tmp_path_factory.mktemp("gguf")))


def test_it_is_chosen_where_the_kernels_prefer_it(file):
    lm, _ = load(file)
    assert lm.kv == HERE and lm.new_cache(1, 8).bits == (8 if PREFERRED else 0)
    assert (IN_8_BITS in (lm.note or "").splitlines()) is PREFERRED
    assert fingerprint(lm).get("kv") == HERE
    assert load_lm(file).kv == HERE
    prompt = list(range(3, 60))
    assert generate(lm, [prompt], max_new_tokens=5) == generate(
        load_lm(file, kv=HERE or "full"), [prompt], max_new_tokens=5
    )


def test_it_is_not_chosen_elsewhere(file, folder):
    for loaded in (load(file, kv="full"), load(file, "float32")):
        assert loaded[0].kv is None
        assert IN_8_BITS not in (loaded[0].note or "")
    assert load_lm(folder).kv is None


def test_whoever_asks_for_it_is_not_told(file):
    lm, _ = load(file, kv="int8")
    assert lm.kv == "int8" and IN_8_BITS not in (lm.note or "")


def test_builds_that_were_not_measured_keep_whole_keys(file, monkeypatch):
    monkeypatch.setattr(native_backend, "CODES_MEASURED", ())
    assert load_lm(file).kv is None


def test_without_kernels_keys_stay_whole(file, monkeypatch):
    monkeypatch.setenv("LONGDRAFT_NATIVE", "0")
    assert load_lm(file).kv is None


@pytest.mark.parametrize("kv", ["auto", "none", ""])
def test_other_words_are_refused(file, kv):
    with pytest.raises(InputError, match="choose int8 or full"):
        load_lm(file, kv=kv)


@pytest.mark.full
def test_a_plan_for_a_gpu_has_whole_keys(file):
    assert Planner(file, LoadOptions(), "H200").target.lm.kv is None
    assert Planner(file, LoadOptions(kv="full"), "H200").target.lm.kv is None
    assert Planner(file, LoadOptions(), "CPU").target.lm.kv == HERE
    with pytest.raises(InputError, match="H200 is a GPU"):
        Planner(file, LoadOptions(kv="int8"), "H200")


def test_an_outline_takes_both_words(folder):
    for kv in ("full", None):
        assert Planner(folder, LoadOptions(kv=kv), "CPU").target.lm.kv is None
    assert Planner(folder, LoadOptions(kv="int8"), "CPU").target.lm.kv == "int8"
