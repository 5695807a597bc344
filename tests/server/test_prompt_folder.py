"""A server's prompts in a private folder: a later server continues them, for their owner alone,
within bounds.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest
import test_prefix_owners
import torch
from support import tiny
from support.listed import exact, read_in_any_parts
from support.served import asked, client, said, serving, tokens_of

from longdraft import InputError, PrefixCache, PromptFolder, Sampler, Session, generate
from longdraft.prompts import prompt_folder
from longdraft.prompts.saved_prompt import SavedPrompt
from longdraft.server.http.guard import Guard

PART = 32
NEW = 12
ROOM = 10_000_000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(prompt_folder, "PART", PART)
    monkeypatch.setattr("longdraft.models.lm.PART", PART)  # where torch reads prompts
    monkeypatch.setattr("longdraft.models.lm.CHECKPOINT", PART)  # where states are kept


def answered(
    folder: PromptFolder, prompt: list[int], owner: str = "", lm=None
) -> tuple[list[int], int]:
    """What a session says, and how many tokens it knew; the folder is closed, and has what was
    said.
    """
    with Session(
        lm or tiny.target("llama"), batch=1, slots=400, sampler=Sampler(1.0), prefixes=folder
    ) as session:
        session.submit(prompt, NEW, seed=3, owner=owner)
        text = list[int]()
        known = 0
        while session.running or session.waiting:
            for event in session.step():
                text += event.tokens
                known = event.prompt.known if event.prompt is not None else known
    folder.close()
    return text, known


def opened(
    place: Path, model: str = "llama", limit: int = ROOM, memory: bool = False
) -> PromptFolder:
    return PromptFolder(
        place / "kept", tiny.target(model), limit, PrefixCache(1024, 16) if memory else None
    )


def alone(model: str, prompt: list[int]) -> list[int]:
    return generate(tiny.target(model), [prompt], max_new_tokens=NEW, sampler=Sampler(1.0), seed=3)[
        0
    ]


def parts(place: Path) -> list[Path]:
    """The files, the one used longest ago first."""
    return sorted((place / "kept").glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns)


@pytest.mark.full
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("model", ["llama", "llama-torch", "qwen3-kv8", "qwen3.5"])
def test_a_later_server_reads_only_the_rest(tmp_path, model, memory):
    [prompt, end] = tiny.prompts(150, 40)
    for text, known in ((prompt, 0), (prompt, 128), (prompt[:110] + end, 96)):
        folder = opened(tmp_path, model, memory=memory)
        assert answered(folder, text, lm=tiny.target(model)) == (alone(model, text), known)


def test_memory_and_folder_together_know_the_longer_beginning(tmp_path):
    [prompt] = tiny.prompts(150)
    answered(opened(tmp_path), prompt)
    folder = opened(tmp_path, memory=True)
    lm = tiny.target("llama")
    row = lm.new_cache(1, 200)
    with torch.inference_mode():
        assert folder.load(prompt[:-1], row) == 128
        lm.prefill(prompt[128:-1], row)
        folder.store(prompt[:-1], row)  # the memory has nine blocks of 16 now
        assert folder.load(prompt[:-1], lm.new_cache(1, 200)) == 144
    assert (folder.asked, folder.hits) == (298, 272)
    folder.close()


def test_owners_find_only_their_own(tmp_path):
    [prompt] = tiny.prompts(150)
    found = [answered(opened(tmp_path), prompt, owner)[1] for owner in ("a", "b", "", "a", "b")]
    assert found == [0, 0, 0, 128, 128]


def test_owners_that_are_lost_would_be_noticed(tmp_path, monkeypatch):
    right, [prompt] = PromptFolder._parts, tiny.prompts(150)
    monkeypatch.setattr(PromptFolder, "_parts", lambda self, tokens, owner: right(self, tokens, ""))
    assert [answered(opened(tmp_path), prompt, owner)[1] for owner in ("a", "b")] == [0, 128]


def test_another_models_prompts_are_not_found(tmp_path):
    [prompt] = tiny.prompts(150)
    for model in ("llama", "qwen3", "llama-bf16", "qwen3-kv8"):
        assert answered(opened(tmp_path, model), prompt, lm=tiny.target(exact(model)))[1] == 0


# Bounds -------------------------------------------------------------------------------------------


def room_for(place: Path, count: int) -> int:
    """A bound that so many parts of these sizes have room in, and no more."""
    return int((count - 0.5) * parts(place)[0].stat().st_size) + opened(place)._size(PART)


def total(place: Path) -> int:
    return sum(p.stat().st_size for p in (place / "kept").iterdir())


def test_the_bound_holds_and_what_was_used_longest_ago_goes(tmp_path):
    first, second, third = tiny.prompts(129, 129, 129)
    answered(opened(tmp_path), first)
    limit = room_for(tmp_path, 8)
    answered(opened(tmp_path, limit=limit), second)
    # now the second is the one used longest ago
    assert answered(opened(tmp_path, limit=limit), first)[1] == 128
    answered(opened(tmp_path, limit=limit), third)
    assert total(tmp_path) <= limit and len(parts(tmp_path)) == 8
    assert [answered(opened(tmp_path, limit=limit), p)[1] for p in (first, third, second)] == [
        128,
        128,
        0,
    ]
    assert total(tmp_path) <= limit


def test_a_bound_that_is_not_kept_would_be_noticed(tmp_path, monkeypatch):
    texts = tiny.prompts(129, 129, 129)
    answered(opened(tmp_path), texts[0])
    limit = room_for(tmp_path, 8)
    monkeypatch.setattr(PromptFolder, "_make_room", lambda *_: None)
    for text in texts:
        answered(opened(tmp_path, limit=limit), text)
    assert total(tmp_path) > limit


def test_of_a_prompt_its_end_goes_first(tmp_path):
    [prompt] = tiny.prompts(129)
    answered(opened(tmp_path), prompt)
    folder = opened(tmp_path, limit=room_for(tmp_path, 3))
    folder._make_room(folder._size(PART))
    assert folder.load(prompt, tiny.target("llama").new_cache(1, 200)) == 64
    folder.close()


def test_a_bound_without_room_for_a_part_is_refused(tmp_path):
    with pytest.raises(InputError, match="--cache-dir-mb"):
        opened(tmp_path, limit=1000)


def test_other_files_are_none_of_ours(tmp_path):
    opened(tmp_path).close()
    other = tmp_path / "kept" / "thesis.safetensors"
    other.write_text("mine")
    answered(opened(tmp_path, limit=2 * opened(tmp_path)._size(PART)), tiny.prompts(129)[0])
    assert other.read_text() == "mine"


def test_copies_that_wait_have_a_bound(tmp_path, monkeypatch):
    folder = opened(tmp_path)
    monkeypatch.setattr(prompt_folder, "MOST_WAITING", 2 * folder._size(PART))
    going = threading.Event()
    write = folder._write
    monkeypatch.setattr(folder, "_write", lambda *given: (going.wait(), write(*given)))
    row = tiny.target("llama").new_cache(1, 200)
    with torch.inference_mode():
        tiny.target("llama").prefill(tiny.prompts(128)[0], row)
        folder.store(tiny.prompts(128)[0], row)
    going.set()
    folder.close()
    assert len(parts(tmp_path)) == 2


# Safety -------------------------------------------------------------------------------------------


def test_files_and_folder_are_for_their_owner_alone(tmp_path):
    answered(opened(tmp_path), tiny.prompts(150)[0])
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "kept").iterdir()}
    assert modes == {0o600} and (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o777])
def test_a_folder_that_others_can_read_is_refused(tmp_path, mode):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept").chmod(mode)
    with pytest.raises(InputError, match="chmod 700"):
        opened(tmp_path)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == mode


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(InputError, match="not a folder"):
        opened(tmp_path)


DAMAGES = {
    "cut": lambda data, _: data[:-5],
    "changed": lambda data, _: data[:-5] + b"\0\1\2\3\4",
    "another part": lambda _, other: other,
    "empty": lambda *_: b"",
}


@pytest.mark.full
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("model", ["llama", "qwen3.5"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_is_read_again(tmp_path, damage, memory, model):
    [prompt], lm = tiny.prompts(150), tiny.target(model)
    answered(opened(tmp_path, model), prompt, lm=lm)
    *_, third, _, _ = found = parts(tmp_path)
    third.write_bytes(damage(third.read_bytes(), found[0].read_bytes()))
    folder = opened(tmp_path, model, memory=memory)
    if folder.memory is not None:  # it knows half of the damaged part
        with torch.inference_mode():
            row = lm.new_cache(1, 200)
            lm.prefill(prompt[:80], row)
            folder.memory.store(prompt[:80], row)
    # the memory has no states of what comes before that part
    known = 0 if memory and model == "qwen3.5" else 64
    assert answered(folder, prompt, lm=lm) == (alone(model, prompt), known)
    assert len(parts(tmp_path)) >= 4 and answered(opened(tmp_path, model), prompt, lm=lm) == (
        alone(model, prompt),
        128,
    )


def test_damage_that_is_believed_would_be_noticed(tmp_path, monkeypatch):
    [prompt] = tiny.prompts(150)
    answered(opened(tmp_path), prompt)
    first = parts(tmp_path)[-1]
    data = first.read_bytes()
    first.write_bytes(data[:-9000] + bytes(4000) + data[-5000:])

    def careless(self: SavedPrompt, row, count):
        self._damaged = lambda why: None  # type: ignore[method-assign]
        with suppress(TypeError):  # nothing is raised
            right(self, row, count)
        return {}

    right = SavedPrompt.read
    monkeypatch.setattr(SavedPrompt, "read", careless)
    text, known = answered(opened(tmp_path), prompt)
    assert known == 128 and text != alone("llama", prompt)


def test_a_disk_that_is_full_is_said_once_and_requests_go_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prompt_folder, "write", full)
    told = list[str]()
    folder = PromptFolder(tmp_path / "kept", tiny.target("llama"), ROOM, None, told.append)
    [prompt] = tiny.prompts(150)
    assert answered(folder, prompt) == (alone("llama", prompt), 0)
    assert len(told) == 1 and "No space left" in told[0] and not parts(tmp_path)


def test_several_servers_share_a_folder_and_its_bound(tmp_path):
    texts = tiny.prompts(*[129] * 6)
    lm = tiny.target("llama")
    limit = 9 * opened(tmp_path)._size(PART)
    folders = [opened(tmp_path, limit=limit) for _ in range(3)]
    rows = []
    for text in texts:
        rows.append(lm.new_cache(1, 200))
        with torch.inference_mode():
            lm.prefill(text, rows[-1])
    sizes = list[int]()

    def work(folder: PromptFolder, first: int) -> None:
        with torch.inference_mode():
            for i in (first, first + 3, first):
                folder.store(texts[i], rows[i])
                row = lm.new_cache(1, 200)
                known = folder.load(texts[i], row)
                pairs = [(row.stored(n, 0), rows[i].stored(n, 0)) for n in row.layers]
                assert all(
                    torch.equal(x[:, :known], y[:, :known])
                    for a, b in pairs
                    for x, y in zip(a, b, strict=True)
                )
                sizes.append(sum(size for *_, size in folder._files()))

    workers = [threading.Thread(target=work, args=(f, i)) for i, f in enumerate(folders)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    for f in folders:
        f.close()
    assert len(sizes) == 9 and max(sizes) <= limit and total(tmp_path) <= limit


class WrittenAtOnce:
    """A queue whose parts are written before `store` goes on."""

    def __init__(self, folder: PromptFolder):
        self.folder = folder
        self.queue = folder._queue
        self.get = self.queue.get

    def put(self, item) -> None:
        self.queue.put(item)
        while item is not None and item[0].name in self.folder._waiting:
            sleep(0.001)


def test_a_part_that_is_written_at_once_does_not_make_room_for_the_next_one(tmp_path):
    """It counted as used at no time until all parts were stored."""
    lm = tiny.target("llama")
    texts = tiny.prompts(4 * PART, 4 * PART)
    folder = opened(tmp_path, limit=4 * opened(tmp_path)._size(PART))
    folder._queue = WrittenAtOnce(folder)  # type: ignore[assignment]
    with torch.inference_mode():
        for text in texts:
            row = lm.new_cache(1, 200)
            lm.prefill(text, row)
            folder.store(text, row)
            assert folder.load(text, lm.new_cache(1, 200)) == 4 * PART
    folder.close()


def test_of_a_prompt_beyond_the_limit_the_beginning_stays_and_one_line_says_so(tmp_path):
    lm, [text, other], told = tiny.target("llama"), tiny.prompts(6 * PART, 5 * PART), list[str]()
    limit = 3 * opened(tmp_path)._size(PART)
    folder = PromptFolder(tmp_path / "kept", lm, limit, PrefixCache(1024, 16), told.append)
    assert folder.memory is not None
    with torch.inference_mode():
        for prompt in (text[: 5 * PART], text, text, other, other):
            row = lm.new_cache(1, 400)
            lm.prefill(prompt, row)
            folder.store(prompt, row)
    folder.close()
    assert opened(tmp_path, limit=limit).load(other, lm.new_cache(1, 400)) == 3 * PART
    assert (
        len(told) == 2
        and "only the first 96 of a prompt's 160 tokens" in told[0]
        and "--cache-dir-mb" in told[0]
    )


# A server -----------------------------------------------------------------------------------------


def cached(folder: PromptFolder, key: str, keys: list[bytes], text: str) -> int:
    """How many tokens of a prompt another server knew; its answer is the one that `generate`
    gives.
    """
    given = {"prompt": text, "max_tokens": NEW, "temperature": 1.0, "seed": 3}
    with (
        serving("plain", session={"prefixes": folder, "slots": 1024}, keys=keys) as server,
        client(server) as http,
    ):
        answer = http.post(
            "/v1/completions", json=asked(**given), headers={"Authorization": f"Bearer {key}"}
        )
        assert answer.status_code == 200, answer.text
    folder.close()
    assert answer.json()["choices"][0]["text"] == said(tokens_of(text), new=NEW)
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def by_keys(tmp_path: Path) -> list[int]:
    """Tokens known to the same key, and to another one that has its place among the keys."""
    from support.served import loaded

    lm = loaded()[0]
    text = test_prefix_owners.LONG
    found = []
    for key, keys in (
        ("one", [b"one", b"two"]),
        ("one", [b"two", b"one"]),
        ("two", [b"two", b"one"]),
    ):
        found.append(cached(PromptFolder(tmp_path / "kept", lm, ROOM * 10), key, keys, text))
    return found


@pytest.mark.full
@read_in_any_parts
def test_a_key_finds_its_prompts_in_a_later_server_wherever_it_stands(tmp_path):
    first, again, other = by_keys(tmp_path)
    assert first == other == 0 and again >= 64


@pytest.mark.full
@read_in_any_parts
def test_owners_by_their_place_would_be_noticed(tmp_path, monkeypatch):
    def by_place(self: Guard, scope) -> str:
        matches = self._matches(dict(reversed(scope["headers"])))
        return str(matches.index(True))

    monkeypatch.setattr(Guard, "_owner", by_place)
    assert by_keys(tmp_path)[2] > 0


def test_the_folder_is_never_left_behind_with_other_files(tmp_path):
    answered(opened(tmp_path), tiny.prompts(150)[0])
    names = {
        p.name for p in (tmp_path / "kept").iterdir() if not prompt_folder.NAMES.fullmatch(p.name)
    }
    assert names == {prompt_folder.LOCK}
    assert os.path.getsize(tmp_path / "kept" / prompt_folder.LOCK) == 0
