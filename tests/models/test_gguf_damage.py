"""GGUF files that are damaged, unsupported or contradict themselves: each is one line, with no
allocation first.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import gguf_files as files
from support.gguf_files import ARRAY, F32, I32, STRING, U32, saved, stock, tokens, try_to_load

from longdraft import load
from longdraft.errors import InputError
from longdraft.models.gguf import file as gguf


def drop(key):
    return lambda metadata, tensors: (metadata.pop(key, None), tensors.pop(key, None))


def put(key, *what):
    return lambda metadata, tensors: metadata.update({key: what})


def tensor(name, *what):
    return lambda metadata, tensors: tensors.update({name: what})


NEST = (ARRAY, (ARRAY, [(ARRAY, [(ARRAY, [(ARRAY, [])])])]))
BAD = [
    (drop("general.architecture"), "lacks general.architecture"),
    (put("general.architecture", STRING, "mystery"), "mystery"),
    (put("general.architecture", U32, 3), "not of type str"),
    (put("general.alignment", U32, 48), "power of 2"),
    (put("split.count", U32, 3), "split.no is not a number from 0 to 2"),
    (put("nested", *NEST), "nested too deeply"),
    (put("llama.expert_count", U32, 8), "lacks llama.expert_used_count"),
    (put("llama.block_count", U32, 4_000_000_000), "4000000000 layers"),
    (put("llama.block_count", U32, 2), "has no tensor 'blk.2"),
    (put("llama.attention.head_count", U32, 0), "0 query"),
    (put("llama.attention.head_count_kv", U32, 3), "3 key heads"),
    (put("llama.embedding_length", U32, 128), "implies"),
    (put("llama.feed_forward_length", U32, 4_000_000_000), "implies 4000000000x64"),
    (put("llama.rope.dimension_count", U32, 8), "rotates 8 of 16"),
    (put("llama.context_length", U32, 0), "context length of 0"),
    (put("llama.rope.freq_base", F32, 0.0), "base 0"),
    (put("llama.rope.freq_base", F32, float("nan")), "nan"),
    (put("llama.attention.layer_norm_rms_epsilon", F32, float("inf")), "inf"),
    (put("llama.attention.sliding_window", U32, 64), "sliding window"),
    (lambda m, t: m.update({"llama.rope.scaling.type": (STRING, "longrope"),
    "llama.rope.scaling.factor": (F32, 2.0)}),
     "none, linear or yarn"),
    (drop("token_embd.weight"), "lacks the tensor token_embd.weight"),
    (drop("blk.1.ffn_up.weight"), "lacks the weights model.layers.1.mlp.up_proj"),
    (tensor("extra", "F32", (2,), bytes(8)), "has no tensor 'extra'"),
    (tensor("blk.1.ffn_up.weight", "F32", (2, 64), bytes(512)), "is 2x64"),
    (tensor("output_norm.weight", 16, (64,), bytes(256)), "IQ2_XXS.*F32, F16"),
    (tensor("output_norm.weight", 99, (64,), bytes(256)), "type 99"),
    (tensor("output_norm.weight", "F32", (1, 1, 1, 1, 64), bytes(256)), "5 dimensions"),
    (tensor("blk.1.ffn_up.weight", "Q4_1", (96, 48), bytes(2000)), "multiples of 32"),
    (tensor("output_norm.weight", "F32", (64,), b"\0\0\xc0\x7f" * 64), "infinity or NaN"),
    (tensor("z", "F32", (1 << 40, 1 << 20), bytes(8)), "truncated"),
    (tokens(lambda t: t[:-1]), "261 tokens.*262 rows"),
    (tokens(lambda t: [*t[:-1], t[0]]), "same token twice"),
    (drop("tokenizer.ggml.tokens"), "no tokenizer"),
    (drop("tokenizer.ggml.model"), "lacks tokenizer.ggml.model"),
    (put("tokenizer.ggml.tokens", ARRAY, (U32, [1, 2])), "not of type list"),
    (put("tokenizer.ggml.model", STRING, "rwkv"), "'rwkv'"),
    (put("tokenizer.ggml.pre", STRING, "strange"), "unknown rule 'strange'"),
    (put("tokenizer.ggml.eos_token_id", U32, 262), "eos_token_id is 262"),
    (put("tokenizer.ggml.merges", ARRAY, (STRING, ["he"])), "not two tokens"),
    (put("tokenizer.ggml.merges", ARRAY, (STRING, ["z qq"])), "do not fit"),
    (put("tokenizer.ggml.token_type", ARRAY, (I32, [1])), "1 entries for 262"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_bad_file_is_one_line(tmp_path, number):
    change, names = BAD[number]
    path = saved(tmp_path, change=change)
    with pytest.raises(InputError, match=names) as found:
        load(str(path), "float32")
    assert "\n" not in str(found.value) and ": " in str(found.value)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"", "not a GGUF file"),
        (b"GGML" + bytes(40), "not a GGUF file"),
        (b"GGUF", "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1: convert it to GGUF version 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "number of tensors is"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "number of metadata entries is"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62) + bytes(40),
            "at most",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + files.text("k")
            + struct.pack("<I", 77)
            + bytes(9),
            "value type 77",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + files.text("k")
            + struct.pack("<IQ", 8, 1 << 62),
            "are left",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + files.text("k")
            + struct.pack("<IIQ", 9, 8, 1 << 60),
            "cannot hold",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 2)
            + 2 * (files.text("k") + struct.pack("<II", 4, 1)),
            "appears twice",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(9),
            "UTF-8",
        ),
    ],
)
def test_a_bad_header_is_one_line(tmp_path, data, names):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError, match=names):
        gguf.read(path)


def test_the_command_line_reports_a_bad_file(tmp_path, cli, capsys):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    for where, names in (
        (path, "version is 0"),
        (tmp_path / "none.gguf", "No such file"),
        (tmp_path, "bad.gguf"),
    ):
        status, out, err = cli("generate", "hi", "-m", str(where))
        assert (status, out) == (2, "") and len(err.splitlines()) == 1 and names in err


@cache
def small(words: bool = True) -> bytes:
    """A file whose header is most of it."""
    hf = stock(num_hidden_layers=1, hidden_size=16, intermediate_size=16, head_dim=4)
    metadata, tensors = files.of_model(hf, "F16", words=words)
    return files.contents(metadata, tensors)


@pytest.mark.full
def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(small())
    try_to_load(path)
    few = small(words=False)
    all_ = small()
    header = few.index(b"output.weight") + 40
    cuts = [few[:size] for size in [*range(header), *range(header, len(few), 997)]]
    for data in [*cuts, *(all_[:size] for size in range(0, len(all_), 101))]:
        path.write_bytes(data)
        with pytest.raises(InputError):
            gguf.read(path)


@pytest.mark.full
@given(
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=6),
    st.booleans(),
)
def test_flipped_bytes_are_an_error_or_a_model(tmp_path_factory, flips, early):
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    data = bytearray(small())
    for at, bits in flips:
        data[at % (1500 if early else len(data))] ^= bits
    path.write_bytes(data)
    with suppress(InputError):
        try_to_load(path)
