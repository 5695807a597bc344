"""Split GGUF files: any part names the model, and parts that do not fit together are one line."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import gguf_files as files
from support.gguf_files import ARRAY, F32, I32, STRING, U16, logits, ours, stock, try_to_load

from longdraft import load
from longdraft.bench.peers.choice import gguf_of
from longdraft.errors import InputError
from longdraft.models.gguf import file as gguf
from longdraft.models.gguf import parts
from longdraft.models.identity import fingerprint
from longdraft.models.loading import load_lm
from longdraft.recording.record_origin import weights_sha256

COUNT = 3


@pytest.fixture
def model():
    return files.of_model(stock())


def first_without_tensors(tmp_path, metadata, tensors):
    """Parts of which the first has only metadata, as llama-gguf-split writes on request."""
    shares = iter([{}, dict(list(tensors.items())[:5]), dict(list(tensors.items())[5:])])

    def change(i, own, some):
        some.clear()
        some.update(next(shares))

    return files.split(tmp_path, metadata, tensors, change=change)


@pytest.mark.full
@pytest.mark.parametrize("write", [files.split, first_without_tensors])
def test_any_part_names_the_model(tmp_path, model, write):
    whole = gguf.read(files.write(tmp_path / "whole.gguf", *model))
    paths = write(tmp_path, *model)
    for path in paths:
        file = gguf.read(path)
        assert list(file.tensors) == list(whole.tensors) and file.path == path
        assert file.metadata.keys() - whole.metadata.keys() == {
            "split.no",
            "split.count",
            "split.tensors.count",
        }
        assert torch.equal(ours(path), logits(stock()))
    assert len({weights_sha256(load_lm(str(path))) for path in paths}) == 1
    lm, tokenizer = load(str(paths[1]), "float32")
    assert tokenizer.decode(tokenizer("hel")["input_ids"]) == "hel"
    assert fingerprint(lm) == fingerprint(load_lm(str(tmp_path / "whole.gguf"), "float32"))
    assert gguf_of(lm) == paths[0]  # llama.cpp accepts the first part alone


def test_a_single_part_is_a_whole_file(tmp_path, model):
    (path,) = files.split(tmp_path, *model, count=1)
    assert torch.equal(ours(path), logits(stock()))
    assert torch.equal(ours(path.rename(tmp_path / "renamed.gguf")), logits(stock()))


def test_another_part_is_another_model(tmp_path, model, monkeypatch):
    """Weights of the last part alone are changed, and whatever identifies the model changes."""
    metadata, tensors = model
    path = files.split(tmp_path, metadata, tensors)[0]
    before = load_lm(str(path), "float32")
    known = weights_sha256(before)
    name = list(tensors)[-1]
    kind, shape, data = tensors[name]
    changed = files.plain(kind, 2 * torch.frombuffer(bytearray(data), dtype=torch.float32))
    files.split(tmp_path, metadata, tensors | {name: (kind, shape, changed)})
    after = load_lm(str(path), "float32")
    assert fingerprint(before)["digest"] != fingerprint(after)["digest"]
    assert weights_sha256(after) != known
    monkeypatch.setattr(parts, "files_of", lambda path: [path])  # a broken variant: this file alone
    only = weights_sha256(after)
    files.split(tmp_path, metadata, tensors)
    assert weights_sha256(before) == only


def put(part, key, *what):
    """Parts of which this one has another entry of the metadata."""

    def write(tmp_path, metadata, tensors):
        def change(i, own, some):
            if i == part:
                own[key] = what

        return files.split(tmp_path, metadata, tensors, change=change)

    return write


def drop(part, key):
    """Parts of which this one lacks an entry of the metadata, or a tensor."""

    def write(tmp_path, metadata, tensors):
        def change(i, own, some):
            if i == part:
                assert own.pop(key, None) or some.pop(key, None)

        return files.split(tmp_path, metadata, tensors, change=change)

    return write


def repeated(tmp_path, metadata, tensors):
    name = next(iter(tensors))

    def change(i, own, some):
        if i == 2:
            some[name] = tensors[name]

    return files.split(tmp_path, metadata, tensors, change=change)


def after(change):
    """Parts that are changed once they are written."""

    def write(tmp_path, metadata, tensors):
        paths = files.split(tmp_path, metadata, tensors)
        change(paths)
        return [path for path in paths if path.exists()]

    return write


def swap(paths):
    paths[1].rename(paths[0].with_name("third"))
    paths[2].rename(paths[1])
    paths[0].with_name("third").rename(paths[2])


def of_other_count(paths):
    (folder := paths[0].with_name("other")).mkdir()
    files.split(folder, *files.of_model(stock()), count=4)[1].rename(paths[1])


def of_other_model(paths):
    (folder := paths[0].with_name("other")).mkdir()
    files.split(folder, *files.of_model(stock(num_hidden_layers=2)))[1].rename(paths[1])


def rename(number, name):
    def change(paths):
        paths[number] = paths[number].rename(paths[number].with_name(name))

    return after(change)


BAD = {
    "missing": (after(lambda p: p[1].unlink()), "00002-of-00003.gguf is missing, part 2 of 3"),
    "a folder": (after(lambda p: (p[1].unlink(), p[1].mkdir(), p.pop(1))), "is missing, part 2"),
    "truncated": (
        after(lambda p: p[1].write_bytes(p[1].read_bytes()[:-40])),
        "00002-of-00003.gguf: the tensor .*truncated",
    ),
    "no GGUF": (after(lambda p: p[2].write_bytes(b"GGML" + bytes(40))), "not a GGUF file"),
    "swapped": (after(swap), "is part [23] of 3 by its metadata, but not by its name"),
    "another count": (after(of_other_count), "is part 2 of 4 by its metadata, but not by its name"),
    "another model": (after(of_other_model), "another model.*'split.tensors.count' differs"),
    "another kind": (
        put(1, "general.architecture", STRING, "qwen2"),
        "another model.*'general.architecture' differs",
    ),
    "another list": (
        put(2, "tokenizer.ggml.merges", ARRAY, (STRING, ["h e"])),
        "'tokenizer.ggml.merges' differs",
    ),
    "another array": (
        put(2, "tokenizer.ggml.token_type", ARRAY, (I32, [1] * 262)),
        "'tokenizer.ggml.token_type' differs",
    ),
    "a whole file": (
        after(lambda p: files.write(p[1], *files.of_model(stock()))),
        "is part 2 of 3 by its name, but whole by its metadata",
    ),
    "renamed": (rename(1, "model.gguf"), "name it NAME-00002-of-00003.gguf|00002.*is missing"),
    "renumbered": (rename(2, "model-00004-of-00003.gguf"), "name it model-00003-|00003-.*missing"),
    "number zero": (rename(0, "model-00000-of-00003.gguf"), "name it model-00001-|00001-.*missing"),
    "a tensor twice": (repeated, "00003-.*tensor 'token_embd.weight' is in an earlier part"),
    "a tensor less": (drop(2, "output.weight"), "have 29 tensors, but 30 by their metadata"),
    "no number": (drop(1, "split.no"), "split.no is not a number from 0 to 2"),
    "no total": (drop(1, "split.tensors.count"), "split.tensors.count is not a number"),
    "no count": (drop(1, "split.count"), "part 2 of 3 by its name, but whole"),
    "too high": (put(1, "split.no", U16, 3), "split.no is not a number from 0 to 2"),
    "negative": (put(1, "split.no", I32, -1), "split.no is not a number from 0 to 2"),
    "a fraction": (put(1, "split.count", F32, 3.0), "split.count is not a number from 0 to 65535"),
    "a text": (put(1, "split.count", STRING, "3\n"), "split.count is not a number"),
    "an array": (put(1, "split.no", ARRAY, (I32, [1, 2])), "split.no is not a number"),
    "below zero": (put(0, "split.tensors.count", I32, -1), "split.tensors.count is not a number"),
}


@pytest.mark.parametrize("fault", BAD)
def test_parts_that_do_not_fit_are_one_line(tmp_path, model, fault):
    """Whichever part is given."""
    write, names = BAD[fault]
    paths = write(tmp_path, *model)
    assert len(paths) >= COUNT - 1
    for path in paths:
        with pytest.raises(InputError, match=names) as found:
            gguf.read(path)
        assert "\n" not in str(found.value) and ": " in str(found.value)


def test_entries_that_only_a_later_part_has_are_left_out(tmp_path, model):
    path = put(1, "general.x", U16, 1)(tmp_path, *model)[0]
    assert "general.x" not in gguf.read(path).metadata


def test_without_the_comparison_of_parts_another_kind_is_read(tmp_path, model, monkeypatch):
    """A broken variant of the reader."""
    path = BAD["another kind"][0](tmp_path, *model)[0]
    monkeypatch.setattr(parts, "_difference", lambda first, other: None)
    assert gguf.read(path)


def test_the_command_line_names_the_missing_part(tmp_path, model, cli):
    paths = files.split(tmp_path, *model)
    paths[2].unlink()
    status, out, err = cli("generate", "hi", "-m", str(paths[1]))
    assert (status, out) == (2, "") and len(err.splitlines()) == 1
    assert "model-00003-of-00003.gguf is missing, part 3 of 3" in err


def test_parts_of_an_architecture_that_transformers_reads_are_one_line(tmp_path, model):
    metadata, tensors = model
    path = files.split(
        tmp_path, metadata | {"general.architecture": (STRING, "stablelm")}, tensors
    )[1]
    with pytest.raises(InputError, match="merge the parts with llama-gguf-split --merge"):
        load(str(path))


# Damage -------------------------------------------------------------------------------------------


@cache
def small() -> tuple[dict, dict]:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "head_dim": 4}
    return files.of_model(stock(**sizes), "F16")


@pytest.mark.full
@pytest.mark.parametrize("part", range(COUNT))
def test_a_truncated_part_is_refused_at_every_length(tmp_path, part):
    paths = files.split(tmp_path, *small())
    try_to_load(paths[0])
    data = paths[part].read_bytes()
    for size in [*range(0, len(data), 101), *range(0 if part else len(data), 900)]:
        paths[part].write_bytes(data[:size])
        with pytest.raises(InputError):
            gguf.read(paths[0])


@pytest.mark.full
@given(
    st.integers(0, COUNT - 1),
    st.integers(0, COUNT - 1),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=6),
    st.booleans(),
)
def test_flipped_bytes_of_a_part_are_an_error_or_a_model(
    tmp_path_factory, start, part, flips, early
):
    folder = tmp_path_factory.getbasetemp()
    paths = files.split(folder, *small())
    data = bytearray(paths[part].read_bytes())
    for at, bits in flips:
        data[at % (200 if early else len(data))] ^= bits
    paths[part].write_bytes(data)
    with suppress(InputError):
        try_to_load(paths[start])
