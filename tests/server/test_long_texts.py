"""Prompts beyond the context are refused before all of them is read, and leave no memory behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from attacks import LONG, long_body
from hostile_table import table
from long_prompts import PATHS, long_prompts
from server_process import ServerProcess
from support.served import client, loaded, quiet, serving
from support.templates import TOKENIZERS

from longdraft.bench.records import read_records
from longdraft.models.text import token_ids
from longdraft.server.http import guard, long_texts
from longdraft.server.http.long_texts import exceeds, give_back, pieces

CODE = "".join(
    f"def f{i}(x, y={i}):\n    return x[{i % 7}] + 'é漢' * y  # {'=' * (i % 40)}\n\n"
    for i in range(1200)
)
TEXTS = {"code": CODE, "mixed": "漢字 \U0001f600\n" * 8000} | {
    kind: unit * 40_000 for kind, unit in LONG.items()
}


def tokenizer(name: str) -> Any:
    return loaded()[1] if name == "bundled" else TOKENIZERS[name]()


def counted(name: str, text: str) -> int:
    return len(token_ids(tokenizer(name), text, add_special_tokens=False))


@pytest.mark.full
@pytest.mark.each_value
@pytest.mark.parametrize("text", sorted(TEXTS))
@pytest.mark.parametrize(
    "name",
    ["bundled", *(pytest.param(name, marks=pytest.mark.weekly) for name in sorted(TOKENIZERS))],
)
def test_no_text_that_fits_is_refused(name, text, monkeypatch):
    """And one that is much too long is, unless it is one unknown token after another, which some
    tokenizers join.
    """
    most = counted(name, TEXTS[text])
    assert not exceeds(tokenizer(name), TEXTS[text], most)
    assert exceeds(tokenizer(name), TEXTS[text], int(most * 0.8)) or most < 10_000
    monkeypatch.setattr(long_texts, "SPARE", -2000)
    assert exceeds(tokenizer(name), TEXTS[text], most)  # the check can fail


@pytest.mark.parametrize("text", sorted(TEXTS))
def test_pieces_are_the_text(text):
    found = list(pieces(TEXTS[text]))
    assert "".join(found) == TEXTS[text] and max(map(len, found)) <= long_texts.PIECE


@pytest.mark.full
@pytest.mark.parametrize("fault", [False, True])
@pytest.mark.weekly
def test_little_of_a_long_prompt_is_read(fault, monkeypatch):
    """By every path that takes one, whatever field it is in."""
    read = list[int]()

    def seen(tokenizer: Any, text: str, *control: bool, **options: Any) -> list[int]:
        read.append(len(text))
        return token_ids(tokenizer, text, *control, **options)

    monkeypatch.setattr(long_texts, "token_ids", seen)
    monkeypatch.setattr("longdraft.server.decode.service.token_ids", seen)
    if fault:
        monkeypatch.setattr(long_texts, "exceeds", lambda *_: False)
    long = "a b " * 50_000
    bodies = [(path, long_body(path, "words", 200_000)) for path in PATHS]
    tool = {"type": "function", "function": {"name": "f", "description": long}}
    bodies += [
        (
            PATHS[0],
            {"model": "tiny", "messages": [{"role": "tool", "tool_call_id": "a", "content": long}]},
        ),
        ("/v1/responses", {"model": "tiny", "input": long}),
        ("/v1/longdraft/trace", {"prompt": long, "method": "vegas"}),
    ]
    with serving() as server, client(server) as http:
        chosen = server.service.tokenizer.chat_template
        server.service.tokenizer.chat_template = (
            chosen + "{{ tools[0].function.description if tools else '' }}"
        )
        try:
            asked = {
                "model": "tiny",
                "messages": [{"role": "user", "content": "a"}],
                "tools": [tool],
            }
            bodies.append((PATHS[0], asked))
            monkeypatch.setattr("longdraft.server.openai.tokenizing.MOST_TOKENIZED", 1000)
            answers = [http.post(path, json=body) for path, body in bodies]
        finally:
            server.service.tokenizer.chat_template = chosen
    errors = [answer.json().get("error", {}) for answer in answers]
    if fault:
        assert max(read) > len(long) // 2
    else:
        assert [(a.status_code, e["code"]) for a, e in zip(answers, errors, strict=True)] == [
            (400, "context_length_exceeded")
        ] * len(bodies)
        assert sum(read) < 2 * len(bodies) * long_texts.PIECE


@pytest.mark.timing
def test_memory_is_given_back_after_a_large_body(monkeypatch):
    calls = list[int]()
    monkeypatch.setattr(guard, "give_back", lambda: calls.append(1))
    with serving() as server, client(server) as http:
        http.post("/tokenize", json={"prompt": "a"})
        assert not calls
        http.post("/tokenize", json={"prompt": "a" * long_texts.LARGE})
        assert quiet(server)
        deadline = time.monotonic() + 10
        while not calls and time.monotonic() < deadline:  # it comes after the answer
            time.sleep(0.01)
        assert len(calls) == 1


def test_there_may_be_nothing_to_give_memory_back_with(monkeypatch):
    give_back()
    monkeypatch.setattr(long_texts, "TRIM", None)
    give_back()


@pytest.mark.timing
@pytest.mark.full
@pytest.mark.weekly
def test_long_prompts_cost_little(tmp_path):
    """Memory of a process, and small chats beside them. benchmarks/hostile.py has the full
    sizes.
    """
    with ServerProcess(tmp_path) as server:
        found = long_prompts(server, 800_000, 4)
    answers = {
        how for asked, found in found["answers"].items() if "tokenize" not in asked for how in found
    }
    assert answers == {"400"}
    assert (
        found["mb_peak"] < found["mb_before"] + 250
        and found["mb_after"] < 1.15 * found["mb_before"] + 60
    )
    assert found["small_longest_s"] < 5


def test_the_table_has_a_row_for_long_prompts():
    root = Path(__file__).parents[2]
    ((_, record),) = read_records(next(root.glob("benchmarks/records/*-hostile.jsonl.gz")))
    long = {
        "at_once": 8,
        "bytes": 3_900_000,
        "answers": {"a": {"400": 8}},
        "mb_before": 1,
        "mb_peak": 2,
        "mb_after": 1,
    }
    assert "8 prompts of 3.9 MB" in table(
        record | {"long": long | {"small_longest_s": 0.3, "small_alone_s": 0.1}}
    )
