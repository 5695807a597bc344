"""benchmarks/long_context.py measures what it says, and docs/smollm2.py concludes from it what the
records say.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longdraft.bench.inputs import held_out_files
from longdraft.models.loading import load

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs")]
import long_context  # noqa: E402
import smollm2  # noqa: E402
from arguments import status  # noqa: E402

BOOK = ROOT / "src" / "longdraft" / "assets" / "text" / "great-expectations.txt"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def bundled():
    lm, tokenizer = load("bundled", "float32")
    tokenizer.chat_template = TEMPLATE
    return lm, tokenizer


@pytest.fixture(scope="module")
def book(bundled):
    return next(long_context.books([str(BOOK)], 1, bundled[1], 0))


@pytest.mark.full
def test_the_loss_is_transformers_own(bundled, book):
    lm = bundled[0]
    tokens = book.tokens[-1024:]
    found = long_context.loss(lm, tokens, lambda count: None)
    ids = torch.tensor([tokens])
    labels = ids.clone()
    labels[:, : -long_context.SCORED] = -100
    with torch.inference_mode():
        lm.hf.set_attn_implementation("eager")
        assert found == pytest.approx(float(lm.hf(input_ids=ids, labels=labels).loss), abs=2e-4)
        labels[:, -long_context.SCORED - 1] = ids[:, -long_context.SCORED - 1]  # one token too many
        assert found != pytest.approx(float(lm.hf(input_ids=ids, labels=labels).loss), abs=2e-4)


@pytest.mark.full
def test_every_context_ends_in_the_same_tokens_and_a_second_call_in_the_same_text(
    bundled, book, tmp_path, monkeypatch
):
    again = next(long_context.books([str(BOOK)], 1, bundled[1], 0))
    (tmp_path / "long.txt").write_text(BOOK.read_text(encoding="utf-8") * 3, encoding="utf-8")
    some, others = (
        list(long_context.books([f"{tmp_path}/*.txt"], 2, bundled[1], seed)) for seed in (0, 1)
    )
    assert len(book.tokens) == long_context.LONGEST
    assert book.fields() == again.fields()
    assert len({t.fields()["text_sha256"] for t in some + others}) == 4
    monkeypatch.setattr(long_context, "LONGEST", 2048)
    monkeypatch.setattr(long_context, "held_out_files", lambda: held_out_files()[:1])
    a, b = long_context.code(2, bundled[1], 0)
    assert len(a.tokens) == len(b.tokens) == 2048 and a.tokens != b.tokens


def test_facts_stand_between_sentences_at_their_depths(bundled, book):
    text = bundled[1].decode(book.tokens)
    facts = [f"Fact {i} is here." for i in range(5)]
    whole = long_context.hidden(text, facts)
    assert re.sub(r"Fact \d is here\. ", "", whole) == text
    for depth, fact in zip(long_context.DEPTHS, facts, strict=True):
        at = whole.index(fact)
        assert whole[at - 2 : at] == ". " and at / len(whole) == pytest.approx(depth, abs=0.02)


@pytest.mark.parametrize(("shift", "found"), [(0, 5), (1, 0)])
def test_an_answer_counts_if_it_has_the_number_asked_for(bundled, book, monkeypatch, shift, found):
    """A reader of prompts in place of the model; with a shift, it answers with the number of
    another fact.
    """
    tokenizer = bundled[1]

    class Reader:
        def __init__(self, *_):
            pass

        def known(self, prompt):
            return 0

        def answer(self, prompt, limit, report):
            text = tokenizer.decode(prompt)
            asked = re.findall(r"What is the (.*)\? Answer", text)[-1]
            facts = re.findall(r"The ([^.]*) is (\d{5})\.", text)
            place = [subject for subject, _ in facts].index(asked)
            number = facts[(place + shift) % len(facts)][1]
            yield SimpleNamespace(tokens=[tokenizer(f"It is {number}.")["input_ids"]])

    monkeypatch.setattr(long_context, "Conversation", Reader)
    record = long_context.ask(bundled[0], tokenizer, book, 4096, 0)
    assert sum(record["found"]) == found
    assert 4096 - long_context.ROOM < record["prompt_tokens"] <= 4096 - long_context.ANSWER
    assert sorted(record["facts"]) == sorted(long_context.FACTS)


def measure(out: Path, **options) -> None:
    arguments = {"model": "bundled", "books": BOOK, "out": out, "contexts": 1024, "ropes": "none"}
    arguments |= {"texts": 1, "haystacks": 0} | options
    long_context.main(
        [word for k, v in arguments.items() if v is not None for word in (f"--{k}", str(v))]
    )


@pytest.mark.full
def test_what_the_file_has_is_not_measured_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(long_context, "LONGEST", 2048)
    monkeypatch.setattr(long_context, "held_out_files", lambda: held_out_files()[:1])
    out = tmp_path / "long.jsonl"
    measure(out)
    first = out.read_text()
    records = [json.loads(line) for line in first.splitlines()]
    assert [r["text"] for r in records] == ["book", "code"]
    assert all(
        {"device", "versions", "git_sha", "command", "seed", "time", "run"} <= r.keys()
        for r in records
    )
    measure(out)
    assert out.read_text() == first and len(capsys.readouterr().out.splitlines()) == 2
    measure(out, ropes="none,yarn:2")
    assert [json.loads(line)["rope"] for line in out.read_text().splitlines()] == [
        None,
        None,
        "yarn:2",
        "yarn:2",
    ]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"books": None}, "--books"),
        ({"contexts": "512"}, "--contexts"),
        ({"contexts": "many"}, "--contexts"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, options, word):
    with pytest.raises(SystemExit) as stopped:
        sys.exit(status(lambda: measure(tmp_path / "long.jsonl", **options)))
    shown = capsys.readouterr().err.strip()
    assert stopped.value.code == 2 and word in shown and "\n" not in shown


def planted(changes: dict[tuple[str | None, int], list[float]]) -> list[dict]:
    """Records whose loss at (rope, context) is that of 8K plus these changes, one for each text."""
    return [
        {
            "rope": rope,
            "context": context,
            "text_sha256": str(i),
            "text": "book",
            "loss": 3.0 + i + change,
        }
        for (rope, context), values in changes.items()
        for i, change in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("longer", "own", "plain"),
    [
        ([-0.1, -0.2, 0.0], "16,384", "16,384"),  # better on the whole
        ([0.1, -0.2, 0.15], "16,384", "16,384"),  # worse by less than a standard error
        ([0.1, 0.2, 0.15], "8,192", "8,192"),
        ([-0.1, -0.1], "8,192", "8,192"),  # too few texts
    ],
)
def test_the_statement_follows_from_the_losses(longer, own, plain):
    found = planted(
        {(None, 8192): [0, 0, 0], ("yarn:2", 8192): [0, 0, 0], ("yarn:2", 16384): longer}
    )
    line = next(line for line in smollm2.verdict(found).splitlines() if "yarn:2" in line)
    assert f"does not hurt up to {own} tokens" in line and line.endswith(
        f"8,192 tokens: up to {plain} tokens."
    )
    dearer = [r | {"loss": r["loss"] + 0.5} if r["rope"] else r for r in found]
    line = next(line for line in smollm2.verdict(dearer).splitlines() if "yarn:2" in line)
    assert f"does not hurt up to {own} tokens" in line and line.endswith("8,192 tokens: nowhere.")


def test_differences_are_of_the_same_text():
    found = planted({(None, 8192): [0, 0, 0], (None, 16384): [0.1, 0.3]})
    assert smollm2.differences(found, None, 16384, None) == pytest.approx([0.1, 0.3])
    row = smollm2._loss_row(found, None, [8192, 16384])
    assert row == ["none", "4.000", "", "+0.200 ± 0.100 [2]"]
