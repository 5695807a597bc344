"""A prompt that was read once is continued from a file: the same output, or a refusal in one
line.
"""

from __future__ import annotations

import os
import shutil
import struct
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import tiny
from support.checks import SAMPLERS, SEED
from support.listed import exact, make, named

from longdraft import InputError, PromptFile, Sampler, generate
from longdraft.core import KVCache, PromptSpec
from longdraft.drafters import PlainDecoding
from longdraft.engine.conversation import Conversation
from longdraft.models.identity import fingerprint
from longdraft.models.lm import LM
from longdraft.prompts import prompt_file, prompt_layout, prompt_origin, saved_prompt
from longdraft.prompts.prompt_layout import About
from longdraft.prompts.prompt_origin import Origin, origin_of
from longdraft.prompts.saved_prompt import SavedPrompt

NEW = 16
LENGTH = 150
METHODS = {
    "plain": lambda lm: PlainDecoding(),
    "vegas": named("vegas"),
    "magicdec-snapkv": named("magicdec-snapkv"),
    "suffix": named("suffix"),
    "longspec": named("longspec"),
    "eagle3": lambda lm: make("eagle3", lm, topk=12, levels=2, nodes=40, reach=20),
    "dflash": named("dflash"),
    "sd": named("sd"),
}
SAMPLED = {name: SAMPLERS[name] for name in ("greedy", "T=1 min-p penalty")}
PROMPTS = tiny.prompts(LENGTH, 60)
# By how a second prompt relates to one that was kept: all of it, its beginning, more, and another
# end.
SECOND = {
    "the same": PROMPTS[0],
    "shorter": PROMPTS[0][:100],
    "longer": PROMPTS[0] + PROMPTS[1],
    "another end": PROMPTS[0][:110] + PROMPTS[1],
}


@cache
def said(model: str, method: str, sampler: Sampler, second: str) -> list[int]:
    """What is said without any file."""
    lm = tiny.target(model)
    return generate(
        lm, [SECOND[second]], METHODS[method](lm), max_new_tokens=NEW, sampler=sampler, seed=SEED
    )[0]


def continued(lm: LM, file: PromptFile, method: str, sampler: Sampler, second: str) -> list[int]:
    given = {"max_new_tokens": NEW, "sampler": sampler, "seed": SEED, "prompt_cache": file}
    return generate(lm, [SECOND[second]], METHODS[method](lm), **given)[0]


def kept(model: str, path: Path, prompt: list[int] = PROMPTS[0]) -> PromptFile:
    """A file of the first prompt, by itself or in a process of its own: nothing of the reader's."""
    lm = tiny.target(model)
    file = PromptFile(path, lm)
    row = lm.new_cache(1, len(prompt))
    with torch.inference_mode():
        lm.prefill(prompt[:-1], row)
    file.store(prompt[:-1], row, 1.5)
    assert path.exists() and not file.note
    return PromptFile(path, lm, file.origin)


def equal(
    model: str, path: Path, method: str = "plain", sampler: Sampler = SAMPLERS["T=1"]
) -> bool:
    """Whether all of SECOND say what they say without a file; each begins with the same file."""
    lm = tiny.target(model)
    found = []
    for second in SECOND:
        file = kept(model, path)
        found.append(
            continued(lm, file, method, sampler, second) == said(model, method, sampler, second)
        )
        path.unlink()
    return all(found)


# Losslessness -------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("sampler", SAMPLED.values(), ids=SAMPLED)
@pytest.mark.parametrize("method", METHODS)
def test_output_is_that_without_a_file(tmp_path, method, sampler):
    assert equal("llama", tmp_path / "p", method, sampler)


@pytest.mark.full
@pytest.mark.parametrize(
    "model",
    ["llama-bf16", "qwen3-kv8", "mistral-window", "deepseek", "gpt-oss", "llama-torch", "qwen3.5"],
)
def test_on_every_kind_of_cache(tmp_path, model, monkeypatch):
    monkeypatch.setattr("longdraft.models.lm.PART", 32)  # where torch reads prompts
    said.cache_clear()
    for method in (
        "vegas",
        *["magicdec-snapkv"] * (model == "qwen3.5"),
    ):  # it reads the prompt's end again
        assert equal(exact(model), tmp_path / "p", method)
    said.cache_clear()


class Counting(LM):
    """Counts the tokens of its passes."""

    tokens = 0

    def __call__(self, tree, cache, start=0, *given, **more):
        self.tokens += tree.size - start
        return super().__call__(tree, cache, start, *given, **more)


@pytest.mark.parametrize(
    ("second", "read"), [("the same", 0), ("shorter", 0), ("longer", 60), ("another end", 59)]
)
def test_only_the_rest_is_read(tmp_path, second, read):
    kept("llama", tmp_path / "p")
    lm = Counting(tiny.stock("llama"))
    if lm.prompt_block > 1:
        pytest.skip("torch reads prompts here, in blocks")
    file = PromptFile(tmp_path / "p", lm)
    lm.tokens = 0
    continued(lm, file, "plain", Sampler(), second)
    assert lm.tokens == read + NEW


@torch.inference_mode()
def test_states_that_a_drafter_wants_are_those_of_the_whole_prompt(tmp_path):
    """They are read again with the prompt's end, so that a method's own time is what it is without
    a file.
    """
    lm = tiny.target("llama")
    tokens = PROMPTS[0][:-1]
    keep = PromptSpec((0, 1, 3), 20)
    file = kept("llama", tmp_path / "p")
    rows = [lm.new_cache(1, LENGTH) for _ in range(2)]
    want = lm.prefill(tokens, rows[0], keep=keep)
    states, read = prompt_file.read_prompt(lm, tokens, rows[1], file, keep=keep)
    if lm.prompt_block == 1:
        assert read.known == len(tokens) - 20 and read.whole_s == 1.5
    assert states.keys() == want.keys() and all(torch.equal(states[n], want[n]) for n in want)


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.parametrize(
    ("model", "counts"),
    [("llama", [149, 64, 128, 64]), ("qwen3.5", [149, 0, 128, 0])],
    ids=["llama", "qwen3.5"],
)
def test_where_torch_reads_prompts_parts_end_at_blocks(tmp_path, monkeypatch, model, counts):
    """States are kept of the whole prompt and of its last block's beginning."""
    monkeypatch.setattr("longdraft.models.lm.PART", 64)
    lm = in_torch(model)
    for name, count in zip(SECOND, counts, strict=True):
        file = PromptFile(tmp_path / name, lm)
        row = lm.new_cache(1, 300)
        read(lm, file, PROMPTS[0], row)
        assert file.load(SECOND[name][:-1], row).count == count
        assert continues_with_the_same_bits(lm, file, name), name


def in_torch(model: str) -> LM:
    lm = LM(tiny.stock(model))
    lm.backend = lm.eager
    return lm


def read(lm: LM, file: PromptFile, prompt: list[int], row: KVCache) -> None:
    """Read a prompt after what the file has of it, and keep it."""
    prompt_file.read_prompt(lm, prompt[:-1], row, file)
    file.store(prompt[:-1], row)


def continues_with_the_same_bits(lm: LM, file: PromptFile, second: str) -> bool:
    """Whether keys and states of one of SECOND are those of reading it whole."""
    prompt, (row, whole) = SECOND[second], (lm.new_cache(1, 300) for _ in range(2))
    read(lm, file, prompt, row)
    lm.prefill(prompt[:-1], whole)
    count = len(prompt) - 1
    ours, theirs = (
        [
            *(x[:, :count] for n in r.layers for x in r.stored(n, 0)),
            *(r.states_at(count) or {}).values(),
        ]
        for r in (row, whole)
    )
    return all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


@torch.inference_mode()
def test_states_inside_a_block_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("longdraft.models.lm.PART", 64)
    lm = in_torch("qwen3.5")
    file = PromptFile(tmp_path / "p", lm)
    row = lm.new_cache(1, 300)
    read(lm, file, PROMPTS[0], row)
    monkeypatch.setattr(PromptFile, "_usable", lambda self, saved, shared, *more: shared)
    assert not continues_with_the_same_bits(lm, file, "longer")


def test_a_shorter_prompt_leaves_the_file_and_another_replaces_it(tmp_path):
    file = kept("llama", tmp_path / "p")
    lm = tiny.target("llama")
    for second, length in (
        ("shorter", 149),
        ("the same", 149),
        ("longer", 209),
        ("another end", 169),
    ):
        continued(lm, file, "plain", Sampler(), second)
        assert len(load_file(tmp_path / "p")["tokens"]) == length


def test_a_conversation_goes_on_in_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr("longdraft.models.lm.PART", 32)  # where torch reads prompts
    lm, (first, more) = tiny.target("llama"), tiny.prompts(80, 30)
    if not lm.exact:
        pytest.skip("decoded keys are not a prompt's here")
    talk, other = (Conversation(lm, Sampler(1.0), seed=5) for _ in range(2))
    text = first + [t for s in talk.answer(first, NEW) for t in s.tokens[0]] + more
    talk.save(tmp_path / "talk")
    other.load(tmp_path / "talk")
    assert other.known(text) == talk.known(text) >= (81 if lm.prompt_block == 1 else 64)
    found = [t for s in other.answer(text, NEW) for t in s.tokens[0]]
    assert found == generate(lm, [text], max_new_tokens=NEW, sampler=Sampler(1.0), seed=5)[0]
    with pytest.raises(InputError, match=r"nothing was said|no block of 32"):
        Conversation(lm).save(tmp_path / "none")
    with pytest.raises(InputError, match="decoded keys"):
        Conversation(tiny.target("llama-torch")).save(tmp_path / "none")


# Faults that the tests above would notice ---------------------------------------------------------


def late(row: KVCache, count: int) -> prompt_layout.Layers:
    pairs = {layer: row.stored(layer, 0) for layer in row.layers}
    return {layer: (k[:, 1 : count + 1], v[:, 1 : count + 1]) for layer, (k, v) in pairs.items()}


def test_keys_one_token_late_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_file, "stored", late)
    assert not equal("llama", tmp_path / "p")


def test_another_prompts_keys_would_be_noticed(tmp_path, monkeypatch):
    lm, [other] = tiny.target("llama"), tiny.prompts(LENGTH, seed=9)
    row = lm.new_cache(1, LENGTH)
    with torch.inference_mode():
        lm.prefill(other, row)
    right = prompt_file.stored
    monkeypatch.setattr(prompt_file, "stored", lambda _, count: right(row, count))
    assert not equal("llama", tmp_path / "p")


def test_a_fingerprint_that_is_ignored_would_be_noticed(tmp_path, monkeypatch):
    other = LM(tiny.stock("llama", seed=1))
    kept("llama", tmp_path / "p")
    ours = origin_of(tiny.target("llama"))
    theirs = origin_of(other)
    want = generate(other, [PROMPTS[0]], max_new_tokens=NEW)[0]
    assert (
        continued(other, PromptFile(tmp_path / "p", other, ours), "plain", Sampler(), "the same")
        != want
    )
    with pytest.raises(InputError, match="made with model"):
        continued(other, PromptFile(tmp_path / "p", other, theirs), "plain", Sampler(), "the same")


@torch.inference_mode()
def test_parts_that_end_anywhere_would_be_noticed_where_torch_reads_prompts(monkeypatch, tmp_path):
    """In bfloat16 a pass over fewer tokens writes other bits."""
    monkeypatch.setattr("longdraft.models.lm.PART", 64)
    lm = LM(tiny.stock("llama", dtype=torch.bfloat16))
    lm.backend = lm.eager
    texts = tiny.prompts(401, 401)
    texts[1] = texts[0][:383] + texts[1][383:]

    def same(block: int) -> bool:
        """Whether the second text's keys are those of reading it whole, after the first one was
        kept.
        """
        file = PromptFile(tmp_path / f"{block}", lm, replace(origin_of(lm), block=block))
        rows = [lm.new_cache(1, 401) for _ in texts]
        for text, row in zip(texts, rows, strict=True):
            prompt_file.read_prompt(lm, text[:-1], row, file)
            file.store(text[:-1], row)
        whole = lm.new_cache(1, 401)
        lm.prefill(texts[1][:-1], whole)
        pairs = [(rows[1].stored(n, 0), whole.stored(n, 0)) for n in whole.layers]
        return all(
            torch.equal(x[:, :400], y[:, :400]) for a, b in pairs for x, y in zip(a, b, strict=True)
        )

    assert same(64) and not same(1)


# Refusals by name ---------------------------------------------------------------------------------


def refused(path: Path, origin: Origin) -> str:
    """The line that says why, which must name the file."""
    with pytest.raises(InputError) as error, SavedPrompt.open(path, origin):
        pass
    line = str(error.value)
    assert "\n" not in line and len(line) < 500 and path.name in line
    return line


def with_theta(theta: float):
    hf = tiny.stock("llama")
    hf.config.rope_parameters = hf.config.rope_parameters | {"rope_theta": theta}
    return hf


OTHERS = {
    "model": lambda: LM(tiny.stock("llama", seed=1)),
    "model 'llama": lambda: LM(tiny.stock("qwen3")),
    "rope": lambda: LM(tiny.stock("llama"), rope="yarn:2"),
    "dtype": lambda: LM(tiny.stock("llama", dtype=torch.bfloat16)),
    "8-bit keys": lambda: LM(tiny.stock("llama"), kv="int8"),
    "quantized weights": lambda: LM(tiny.stock("llama"), weights="int8"),
    "configuration": lambda: LM(with_theta(5e5)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_model_is_refused_by_what_differs(tmp_path, name):
    kept("llama", tmp_path / "p")
    origin = origin_of(OTHERS[name]())
    assert f"made with {name}" in refused(tmp_path / "p", origin)


def test_a_change_that_the_fingerprint_does_not_see_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("longdraft.models.identity.SAMPLE", 1000)
    kept("llama", tmp_path / "p")
    hf = tiny.stock("llama")
    hf.model.layers[0].mlp.down_proj.weight.data.view(-1)[1] += 0.5
    other = LM(hf)
    assert fingerprint(other) == fingerprint(tiny.target("llama"))
    assert "made with weights" in refused(tmp_path / "p", origin_of(other))


@pytest.mark.parametrize(
    "name", ["layout", "backend", "longdraft", "torch", "kernels", "code", "vector instructions"]
)
def test_a_file_of_another_build_is_refused_by_what_differs(tmp_path, name):
    file = kept("llama", tmp_path / "p")
    origin = replace(file.origin, facts=file.origin.facts | {name: "another"})
    assert f"made with {name} " in refused(tmp_path / "p", origin) and "'another'" in refused(
        tmp_path / "p", origin
    )


def test_what_decides_the_bits_is_in_the_facts(monkeypatch):
    lm = tiny.target("llama-torch")
    facts = origin_of(lm).facts
    assert (
        origin_of(lm).facts
        == facts
        == origin_of(LM(tiny.stock("llama-torch"))).facts
        | {"backend": "eager"}
        | {name: facts[name] for name in ("kernels", "threads", "processor")}
    )
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)  # torch may then add in another order
        assert origin_of(lm).facts != facts
        native = tiny.target("llama")
        if native.prompt_block == 1:
            assert "threads" not in origin_of(native).facts
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(prompt_origin, "COMPUTING", ("ops",))
    assert origin_of(lm).facts["code"] != facts["code"]


# Files that are damaged or hostile ----------------------------------------------------------------


def loaded(path: Path, origin: Origin) -> None:
    row = tiny.target("llama").new_cache(1, 200)
    with SavedPrompt.open(path, origin) as saved:
        saved.read(row, min(saved.about.count, 50))


def altered(path: Path, at: int, change: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(change)] = change
    path.write_bytes(data)


@pytest.mark.full
def test_a_file_that_was_cut_or_changed_anywhere_is_refused(tmp_path):
    file = kept("llama", tmp_path / "p")
    path = tmp_path / "q"
    whole = (tmp_path / "p").read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    places = [
        *range(0, header, 7),
        *range(header, header + 700, 41),
        *range(header, len(whole), 3001),
        len(whole) - 1,
    ]
    for at in places:
        path.write_bytes(whole[:at])
        with pytest.raises(
            InputError, match=r"q (is damaged|is not a prompt|was made with|is a saved prompt)"
        ):
            loaded(path, file.origin)
        path.write_bytes(whole)
        altered(path, at, bytes([whole[at] ^ 1 << at % 8]))
        with pytest.raises(
            InputError, match=r"q (is damaged|is not a prompt|was made with|is a saved prompt)"
        ):
            loaded(path, file.origin)
    path.write_bytes(whole + b"\0")
    with pytest.raises(InputError, match="damaged"):
        loaded(path, file.origin)
    path.write_bytes(whole)
    loaded(path, file.origin)


def test_a_checksum_that_is_not_compared_would_be_noticed(tmp_path, monkeypatch):
    file = kept("llama", tmp_path / "p")
    altered(tmp_path / "p", -100, b"\1\2\3\4")
    with pytest.raises(InputError, match="its checksum is wrong"):
        loaded(tmp_path / "p", file.origin)
    monkeypatch.setattr(SavedPrompt, "_damaged", lambda *_: KeyError())
    with pytest.raises(KeyError):
        loaded(tmp_path / "p", file.origin)


def rewritten(path: Path, origin: Origin, about: About) -> None:
    """A file that claims something else, with a right header for it."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    path.write_bytes(prompt_layout.header(origin, about, "0" * 64) + data[end:])


@pytest.mark.parametrize(
    "about",
    [
        About(1 << 30),
        About(400),
        About(149, begin=500),
        About(0),
        About(149, seconds=-1.0),
        About(149, border=100),
    ],
)
def test_claims_are_compared_before_memory_is_taken(tmp_path, about, monkeypatch):
    file = kept("llama", tmp_path / "p")
    rewritten(tmp_path / "p", file.origin, about)
    monkeypatch.setattr(np, "frombuffer", None)
    monkeypatch.setattr(KVCache, "allocate", None)
    assert "damaged" in refused(tmp_path / "p", file.origin)


HOSTILE = {
    "a header as long as 64 bits allow": b"\xff" * 8 + b"{}",
    "a header longer than the file": struct.pack("<Q", 1 << 20) + b"{}",
    "nothing": b"",
    "seven bytes": b"1234567",
    "nested": struct.pack("<Q", 200000) + b"[" * 200000,
    "a number of a million digits": struct.pack("<Q", 1 << 20) + b"1" * (1 << 20),
    "another safetensors file": struct.pack("<Q", 2) + b"{}",
    "numbers for words": struct.pack("<Q", 30) + b'{"__metadata__":{"format":17}}',
    "a list for words": struct.pack("<Q", 20) + b'{"__metadata__": []}',
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix",
    "text": b"Once upon a time there was a file that somebody named by mistake.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_file_of_something_else_is_refused_and_stays(tmp_path, content):
    path = tmp_path / "p"
    lm = tiny.target("llama")
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a prompt that longdraft has saved"):
        generate(lm, [PROMPTS[0]], max_new_tokens=2, prompt_cache=PromptFile(path, lm))
    assert path.read_bytes() == content


def test_what_is_no_file_is_refused(tmp_path):
    origin = origin_of(tiny.target("llama"))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        assert "is not a file" in refused(tmp_path / name, origin)
    assert (
        "another file" in refused(tmp_path / "loop", origin) if _loop(tmp_path / "loop") else True
    )


def _loop(path: Path) -> bool:
    path.symlink_to(path)
    return True


# Writing ------------------------------------------------------------------------------------------


def test_a_file_is_for_its_owner_alone_and_any_reader_of_safetensors(tmp_path):
    kept("llama", tmp_path / "p")
    assert os.stat(tmp_path / "p").st_mode & 0o777 == 0o600
    found = load_file(tmp_path / "p")
    assert found["tokens"].tolist() == PROMPTS[0][:-1] and found["keys.0"].shape == (2, 149, 16)


@pytest.mark.parametrize("step", ["parts", "_sync", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, step, monkeypatch):
    file = kept("llama", tmp_path / "p")
    lm = tiny.target("llama")
    old = (tmp_path / "p").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if hasattr(os, step) else saved_prompt, step, full)
    assert continued(lm, file, "plain", Sampler(), "longer") == said(
        "llama", "plain", Sampler(), "longer"
    )
    assert "No space left" in file.note
    if step != "_sync":  # by then the new one is there
        assert (tmp_path / "p").read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_writers_and_readers_at_the_same_time(tmp_path):
    lm = tiny.target("llama")
    path = tmp_path / "p"
    texts = tiny.prompts(149, 149, 149)
    rows = []
    origin = origin_of(tiny.target("llama"))
    for text in texts:
        rows.append(lm.new_cache(1, 149))
        with torch.inference_mode():
            lm.prefill(text, rows[-1])
    over = threading.Event()
    wrong = []

    def write(i: int) -> None:
        while not over.is_set():
            PromptFile(path, lm, origin).store(texts[i], rows[i])

    writers = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for t in writers:
        t.start()
    while not path.exists():
        pass
    seen = set()
    try:
        for _ in range(40):
            row = lm.new_cache(1, 149)
            with SavedPrompt.open(path, origin) as saved:
                saved.read(row, 149)
            i = texts.index(saved.tokens)
            seen.add(i)
            wrong += [
                n
                for n in row.layers
                if not torch.equal(row.stored(n, 0)[0], rows[i].stored(n, 0)[0])
            ]
    finally:
        over.set()
        for t in writers:
            t.join()
    assert not wrong and len(seen) > 1
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_what_killed_writers_left_is_removed(tmp_path):
    old = tmp_path / ".writing-old"
    new = tmp_path / ".writing-new"
    for p in (old, new):
        p.write_text("half a prompt")
    os.utime(old, (0, 0))
    kept("llama", tmp_path / "p")
    assert not old.exists() and new.exists()


def test_a_copy_is_as_good(tmp_path):
    file = kept("llama", tmp_path / "p")
    shutil.copy(tmp_path / "p", tmp_path / "q")
    loaded(tmp_path / "q", file.origin)
