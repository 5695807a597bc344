"""Suites: a task is the same wherever it is built, only its document is cut, and records say what
was asked.
"""

from __future__ import annotations

import json
import random
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from support.served import loaded
from transformers import GenerationConfig

from longdraft.bench import records as record
from longdraft.bench import report
from longdraft.bench.suite import nominal
from longdraft.bench.tasks import code, edit, passages, reader, reading, repo
from longdraft.bench.tasks.fitting import Fitting
from longdraft.bench.tasks.suites import NAMES, Suite
from longdraft.bench.tasks.task import Task
from longdraft.cli import main
from longdraft.core import Sampler
from longdraft.engine.acceptance_counts import AcceptanceCounts
from longdraft.errors import InputError
from longdraft.models import fetch, recommended
from longdraft.models.text import text_of

CONTEXT = 700
BUILT = [name for name in NAMES if name != "long"]
SLOW = {"question", "qa", "repo", "summary", "copy", "code"}
each_task = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in SLOW else []) for name in BUILT]
)


@pytest.fixture(autouse=True)
def few_packages(monkeypatch):
    """The standard library and two small packages: looking through all of them takes seconds."""
    monkeypatch.setattr(code, "PACKAGES", ("jinja2", "rich"))
    code.files.cache_clear()
    yield
    code.files.cache_clear()


@pytest.fixture(scope="module")
def fitting() -> Fitting:
    return Fitting(loaded()[1])


def built(name: str, fitting: Fitting, instances: int = 3, seed: int = 0) -> list[Task]:
    return [task for task, _ in Suite(name, [CONTEXT], instances, seed).tasks(fitting)]


@pytest.mark.full
@each_task
def test_prompts_have_the_length_that_was_asked_for(name, fitting):
    tasks = built(name, fitting)
    assert len({(task.instance, task.document) for task in tasks}) == 3
    for task in tasks:
        assert 0.8 * CONTEXT <= fitting.size(task) <= CONTEXT
        assert task.sources and all(len(sha256) == 64 for _, sha256 in task.sources)
        assert task.document.endswith("\n") and "{" not in task.turns[0]


def check_repeats(name: str, fitting: Fitting, monkeypatch) -> None:
    """The tasks of a seed are the same when the files are found in another order."""
    first = built(name, fitting, 2)
    found = Path.rglob
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rglob", lambda *a: list(found(*a))[::-1])
        code.files.cache_clear()
        again = built(name, fitting, 2)
    code.files.cache_clear()
    assert first == again


@pytest.mark.full
@each_task
def test_a_seed_has_its_tasks(name, fitting, monkeypatch):
    check_repeats(name, fitting, monkeypatch)
    assert built(name, fitting, 2, seed=1) != built(name, fitting, 2)
    seeds = count()
    for module in (edit, repo, reading, passages):
        monkeypatch.setattr(module, "shuffled", lambda *a: random.Random(next(seeds)))
    with pytest.raises(AssertionError):  # a builder that draws without its seed
        check_repeats(name, fitting, monkeypatch)


@pytest.mark.full
def test_files_that_are_found_in_another_order_are_noticed(fitting, monkeypatch):
    monkeypatch.setattr(code, "sorted", lambda names, key: list(names), raising=False)
    with pytest.raises(AssertionError):
        check_repeats("repo", fitting, monkeypatch)


class Careless(Fitting):
    """Faults: what a shorter prompt loses is the end of the question, or half a line of the
    document.
    """

    def __init__(self, tokenizer: Any, fault: str):
        super().__init__(tokenizer)
        self.fault = fault

    def fit(self, task: Task, context: int, valid=lambda text: True) -> Task:
        if self.fault == "line":
            return replace(task, document=task.document[: context * 2 - 1])
        return replace(
            super().fit(task, context, valid), turns=(task.turns[0][:-9], *task.turns[1:])
        )

    def tokens(self, messages) -> list[int]:
        return (
            super().tokens(messages)[:CONTEXT]
            if self.fault == "tokens"
            else super().tokens(messages)
        )


def check_fit(fitting: Fitting) -> None:
    """Nothing but the document's last lines is left out of a prompt, which ends as the conversation
    does.
    """
    text = "".join(f"line {i} says {i * i}\n" for i in range(400))
    task = Task(
        "kind",
        "name",
        ("What does line 3 say? Answer in one word.",),
        text,
        "Before it.\n",
        "After it.\n",
    )
    fitted = fitting.fit(task, CONTEXT)
    assert replace(fitted, document="") == replace(task, document="")
    assert text.startswith(fitted.document) and fitted.document.endswith("\n")
    prompt = fitting.tokens(fitted.messages([]))
    assert CONTEXT - 20 <= len(prompt) <= CONTEXT
    said = text_of(fitting.tokenizer, prompt)
    assert all(part in said for part in (task.before, fitted.document, task.after, task.turns[0]))


@pytest.mark.parametrize("template", [True, False])
def test_only_the_document_is_cut(fitting, template):
    mine = Fitting(fitting.tokenizer)
    mine.template = template
    check_fit(mine)
    with pytest.raises(InputError, match="give a longer --context"):
        mine.fit(Task("edit", "x", ("a long question " * 300,), "text\n"), CONTEXT)


@pytest.mark.parametrize("fault", ["question", "line", "tokens"])
def test_a_cut_instruction_is_noticed(fitting, fault):
    with pytest.raises(AssertionError):
        check_fit(Careless(fitting.tokenizer, fault))


@pytest.mark.full
def test_an_edit_is_of_code_that_has_what_it_names(fitting):
    for task in built("edit", fitting):
        assert code.is_code(task.document) and task.turns[0].endswith(edit.WHOLE)
        assert task.new_tokens > fitting.count(task.document)
        if "`" in task.turns[0]:
            assert task.turns[0].split("`")[3 if "strict" in task.turns[0] else 1] in task.document
        else:
            assert task.document.count("os.path.") >= 2


@pytest.mark.full
@pytest.mark.parametrize("name", ["copy", "code"])
def test_the_function_that_is_asked_for_is_in_the_file(name, fitting):
    for task in built(name, fitting):
        asked = task.turns[0].split("`")[1]
        [node] = [node for name, node in code.functions(task.document) if name == asked]
        assert node.end_lineno - node.lineno + 1 in passages.LINES


@pytest.mark.full
def test_the_paragraph_that_is_quoted_is_there_once(fitting):
    for task in built("quote", fitting):
        words = task.turns[0].split('"')[1]
        assert len(words.split()) == passages.BEGINNING
        assert " ".join(task.document.split()).count(words) == 1


@pytest.mark.full
def test_a_repo_task_leaves_the_body_out(fitting):
    for task in built("repo", fitting):
        name = task.turns[0].split("`")[1]
        head = task.after.split("```python\n")[1]
        assert f"def {name.rpartition('.')[2]}(" in head and head.rstrip("`\n").endswith(
            ('"""', "'''", '"', "'")
        )


LINES = {
    "own": {
        "task": "mine",
        "id": 7,
        "turns": ["a", "b"],
        "document": "text\n",
        "max_new_tokens": 5,
    },
    "Spec-Bench": {
        "question_id": 81,
        "category": "writing",
        "turns": ["Compose a post.", "Rewrite it."],
    },
    "SPEED-Bench": {
        "question_id": "q1",
        "category": "coding",
        "sub_category": "x",
        "turns": ["Sort."],
        "multiturn": False,
    },
    "LongBench": {
        "_id": "h",
        "context": "text",
        "input": "Who?",
        "answers": ["x"],
        "dataset": "hotpotqa",
        "length": 1,
    },
    "LongBench, no input": {
        "context": "text",
        "input": "",
        "answers": ["x"],
        "dataset": "gov_report",
    },
    "LongBench v2": {
        "_id": "v",
        "domain": "Code",
        "context": "text",
        "question": "Which?",
        "choice_A": "1",
        "choice_B": "2",
    },
}
READ = {
    "own": Task("mine", "7", ("a", "b"), "text\n", new_tokens=5),
    "Spec-Bench": Task("writing", "81", ("Compose a post.", "Rewrite it.")),
    "SPEED-Bench": Task("coding", "q1", ("Sort.",)),
    "LongBench": Task("hotpotqa", "h", ("Who?",), "text"),
    "LongBench, no input": Task("gov_report", "1", (reader.SUMMARY,), "text"),
    "LongBench v2": Task(
        "Code", "v", ("Which?\n(A) 1\n(B) 2\nWhich answer is right, and why?",), "text"
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_format_is_known_by_its_fields(tmp_path, name):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(LINES[name]) + "\n\n")
    assert reader.read(file) == [READ[name]]
    file.write_text(json.dumps([LINES[name]], indent=1))  # as a list
    assert reader.read(file) == [READ[name]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1: not JSON"),
        ('{"a": 1}', "line 1: not a task of a known format"),
        ('\n{"question_id": 1, "turns": []}', "line 2: turns"),
        ('{"question_id": 1, "turns": [{"content": "x"}]}', "line 1: turns.0"),
        ('{"question_id": 1, "turns": ["x"]}\n' * 2, "line 2: a second question task '1'"),
        ("", "has no tasks"),
        ("[1]", "entry 1: not a task"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, says):
    file = tmp_path / "tasks.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        reader.read(file)


def test_tasks_of_a_file_are_spread_over_it():
    tasks = [Task(kind, str(i), ("x",)) for kind in "ab" for i in range(10)]
    assert [t.instance for t in reader.spread(tasks, 2)] == ["0", "5"] * 2
    assert reader.spread(tasks, None) == tasks and len(reader.spread(tasks, 99)) == 20


def run(*words: str) -> SimpleNamespace:
    out = StringIO()
    err = StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return SimpleNamespace(status=status, out=out.getvalue(), err=err.getvalue())


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """Records of a user's file: a conversation, and a question that does not fit."""
    folder = tmp_path_factory.mktemp("suite")
    own = {
        "task": "mine",
        "id": "one",
        "turns": ["def walk(path):", "    for name in"],
        "document": "import os\n" * 40,
    }
    other = {"task": "mine", "id": "two", "turns": ["x = 1\n" * 200]}
    (folder / "own.jsonl").write_text(f"{json.dumps(own)}\n{json.dumps(other)}\n")
    words = [
        "--methods",
        "vegas@min_budget=8,lookup",
        "--context",
        "100",
        "--max-new-tokens",
        "12",
        "--dtype",
        "float32",
    ]
    result = run(
        "bench",
        "tasks",
        str(folder / "own.jsonl"),
        *words,
        "--out",
        str(folder / "records.jsonl"),
    )
    assert result.status == 0, result.err
    assert (
        "mine task two has more than 100 tokens" in result.err and "Suite own.jsonl" in result.out
    )
    return folder / "records.jsonl"


@pytest.mark.full
def test_records_say_what_was_asked(measured):
    found = record.load([measured])
    assert len(found) == 2 * 3
    assert all(r["equal"] and r["task"] == "suite" and r["suite"] == "own.jsonl" for r in found)
    assert {(r["kind"], r["instance"], r["turn"], r["context"]) for r in found} == {
        ("mine", "one", turn, 100) for turn in (1, 2)
    }
    assert found[0]["sources"][0]["name"] == "own.jsonl"
    for r in found:
        assert 0 <= r["distinct_3"] <= 1 and 1 <= r["new_tokens"] <= 12
        if r["method"] == "plain":
            assert "metrics" not in r
            continue
        m = r["metrics"]["speculative_decoding"]
        assert sum(m["acceptance_histogram"]) == m["num_spec_steps"] <= r["verify_steps"]
        assert m["num_accepted_draft_tokens"] == round(
            (r["mean_acceptance_length"] - 1) * r["verify_steps"]
        )


@pytest.mark.full
def test_the_next_turn_has_the_answer_before_it(measured):
    """Its prompt is the conversation with plain decoding's answer, which is every method's."""
    found = record.load([measured])
    first, second = ([r for r in found if r["turn"] == turn] for turn in (1, 2))
    plain = next(r for r in first if r["method"] == "plain")
    fitting = Fitting(loaded()[1])
    fitting.template = False  # the command line loads the model without one
    task = Task("mine", "one", ("def walk(path):", "    for name in"), "import os\n" * 40)
    task = fitting.fit(task, 100)
    prompt = fitting.tokens(task.messages([text_of(fitting.tokenizer, plain["token_ids"])]))
    assert {r["prompt_tokens"] for r in second} == {len(prompt)}
    assert {r["prompt_tokens"] for r in first} == {fitting.size(task)}


def suite_record(base: dict, label: str, instance: str, rate: float, repeat: int = 0) -> dict:
    return base | {
        "label": label,
        "method": label,
        "instance": instance,
        "tokens_per_s": rate,
        "repeat": repeat,
        "turn": 1,
    }


def test_the_report_has_medians_over_instances_and_the_worst(measured):
    base = {k: v for k, v in record.load([measured])[0].items() if k not in ("speedup", "where")}
    gains = {"a": [1.0, 3.0, 1.2], "b": [4.0, 4.0, 4.0], "c": [2.0, 2.1, 1.9]}
    found = [suite_record(base, "plain", name, 10.0) for name in gains]
    found += [
        suite_record(base, "vegas", name, 10 * gain, i)
        for name, each in gains.items()
        for i, gain in enumerate(each)
    ]
    (section,) = report.sections(found)
    worst = section.header.index("speedup (worst)")
    assert [row[worst] for row in section.rows] == [
        "1.00x (1.00x)",
        f"{median([1.2, 4, 2]):.2f}x (1.20x)",
    ]
    assert [row[:3] for row in section.rows] == [["mine", "100", "plain"], ["mine", "100", "vegas"]]
    assert section.rows[1][-1] == "3" and len(section.sources[1].own) == 9


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("tasks nothing", "there is no suite 'nothing': choose edit"),
        ("tasks no.jsonl", "cannot read no.jsonl"),
        ("tasks", "Missing argument 'SUITE'"),
        ("tasks edit --batch 2", "No such option: --batch"),
        ("tasks edit --text book", "No such option: --text"),
        ("tasks edit --context 20", "give another --context"),
        ("tasks edit --context 20k", "context is '20k'"),
        ("tasks edit --prompt-file README.md", "suite edit has its own texts"),
        ("tasks edit --recommended --temperature 1", "--recommended sets the sampling"),
        ("speed --instances 3", "No such option: --instances"),
        ("speed --recommended --top-p 0.5", "--recommended sets the sampling"),
        ("acceptance --recommended --penalty 2", "--recommended sets the sampling"),
        ("speed --recommended --context 20", "recommends no sampling"),
    ],
)
def test_bad_input_is_one_clear_line(words, says, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    result = run("bench", *words.split(), "--dtype", "float32")
    assert result.status == 2 and says in result.err and len(result.err.splitlines()) == 1


def test_a_users_text_is_what_is_asked_about(fitting):
    text = "".join(f"Alice said {i}.\n" for i in range(600))
    for name in ("question", "summary", "chat"):
        tasks = [
            task for task, _ in Suite(name, [CONTEXT], 2, 0, (("talk.txt", text),)).tasks(fitting)
        ]
        assert all(task.document in text and task.sources[0][0] == "talk.txt" for task in tasks)
        assert len(tasks[0].turns) == (6 if name == "chat" else 1)


def test_a_prompt_stands_at_the_next_length():
    assert [nominal(n) for n in (1, 1024, 1025, 30_000, 30_001, 40_000)] == [
        1024,
        1024,
        4096,
        30_000,
        32768,
        65536,
    ]


def test_recommended_sampling_comes_from_the_model(monkeypatch, tmp_path):
    def of(**config) -> Any:
        hf = SimpleNamespace(name_or_path="", generation_config=GenerationConfig(**config))
        return SimpleNamespace(hf=hf, name="m")

    model = of(do_sample=True, temperature=0.6, top_k=20, repetition_penalty=1.1)
    expected = Sampler(0.6, top_k=20, penalty=1.1, window=recommended.EVERYTHING)
    assert recommended.recommended_sampler(model) == expected
    with pytest.raises(InputError, match="m recommends no sampling"):
        recommended.recommended_sampler(of())
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path))
    file = fetch.place_of("qwen2.5-coder-0.5b")
    file.parent.mkdir()
    file.touch()
    model.hf.name_or_path = str(file)
    said: dict[str, Any] = {}
    monkeypatch.setattr(recommended.gguf, "read", lambda path: SimpleNamespace(metadata=said))
    expected = Sampler(0.7, top_k=20, top_p=0.8, penalty=1.1, window=recommended.EVERYTHING)
    assert recommended.recommended_sampler(model) == expected
    said["general.sampling.temp"] = 0.5  # what a file says itself counts
    assert recommended.recommended_sampler(model) == Sampler(0.5)
    assert fetch.SOURCES.keys() <= recommended.OF_FETCHED.keys()


def test_steps_without_a_draft_do_not_count():
    drafts = AcceptanceCounts()
    for drafted, accepted in ((4, 4), (0, 0), (2, 0), (4, 1)):
        drafts.add(drafted, accepted)
    assert drafts.metrics() == {
        "mean_acceptance_length": pytest.approx(1 + 5 / 3),
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [1, 1, 0, 0, 1],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 10,
        "num_spec_tokens": 4,
    }
