"""Files of tasks that a user brings, told apart by their fields: our own, Spec-Bench's,
SPEED-Bench's, LongBench's.

A file has one JSON object per line, or is one JSON list (LongBench v2). Nothing is shipped. The
fields that are read:

- our own: task, turns; and, if wanted, id, document, before, after, max_new_tokens;
- Spec-Bench and SPEED-Bench: question_id, category, turns;
- LongBench: context, input; and, if wanted, dataset, _id. v2: context, question, choice_A to
  choice_D, domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from longdraft.bench.tasks.task import Task, sha256
from longdraft.core.files import parse, read_bytes
from longdraft.errors import InputError

GIVE = (
    "give JSON lines of Spec-Bench, SPEED-Bench, LongBench, or with task and turns (docs/tasks.md)"
)
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
WITHOUT_INPUT = {  # LongBench's data sets whose question is in its own prompts, not in `input`
    "lcc": "Write the next line of this code.",
    "passage_count": "How many different paragraphs does this text have? Answer with the number.",
}
SUMMARY = "Write a summary of the text above."


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class Own(_Line):
    task: Text
    turns: Annotated[list[Text], Field(min_length=1)]
    id: str | int | None = None
    document: str = ""
    before: str = ""
    after: str = "\n\n"
    max_new_tokens: Count | None = None

    def made(self, number: int) -> Task:
        name = str(number if self.id is None else self.id)
        return Task(
            self.task,
            name,
            tuple(self.turns),
            self.document,
            self.before,
            self.after,
            self.max_new_tokens,
        )


class SpecBench(_Line):
    """SPEED-Bench has these fields too. There question_id is a text."""

    question_id: str | int
    turns: Annotated[list[Text], Field(min_length=1)]
    category: str = "question"

    def made(self, number: int) -> Task:
        return Task(self.category, str(self.question_id), tuple(self.turns))


class LongBench(_Line):
    context: Text
    input: str
    dataset: str = "question"
    id: str | int | None = Field(None, alias="_id")

    def made(self, number: int) -> Task:
        question = self.input.strip() or WITHOUT_INPUT.get(self.dataset, SUMMARY)
        return Task(
            self.dataset, str(number if self.id is None else self.id), (question,), self.context
        )


class LongBench2(_Line):
    context: Text
    question: Text
    domain: str = "question"
    id: str | int | None = Field(None, alias="_id")
    choice_A: str = ""
    choice_B: str = ""
    choice_C: str = ""
    choice_D: str = ""

    def made(self, number: int) -> Task:
        choices = [f"({c}) {text}" for c in "ABCD" if (text := getattr(self, f"choice_{c}"))]
        asked = [self.question, *choices, *(["Which answer is right, and why?"] if choices else [])]
        return Task(
            self.domain,
            str(number if self.id is None else self.id),
            ("\n".join(asked),),
            self.context,
        )


Format = type[Own] | type[SpecBench] | type[LongBench] | type[LongBench2]


def format_of(line: dict[str, Any]) -> Format | None:
    """By its fields; None for a line of another format."""
    if "turns" in line:
        if "task" in line:
            return Own
        return SpecBench if "question_id" in line else None
    if "context" in line:
        if "input" in line:
            return LongBench
        return LongBench2 if "question" in line else None
    return None


def read(path: Path) -> list[Task]:
    """The tasks of a file, in its order. Raises InputError with the line that is wrong."""
    tasks = []
    names = set[tuple[str, str]]()
    for number, where, line in _lines(path):
        kind = format_of(line) if isinstance(line, dict) else None
        if kind is None:
            raise InputError(f"{path}, {where}: not a task of a known format: {GIVE}")
        try:
            task = kind.model_validate(line).made(number)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part)[:40] for part in first["loc"][:2])
            raise InputError(f"{path}, {where}: {field}: {first['msg']}: {GIVE}") from None
        if (task.kind, task.instance) in names:
            raise InputError(
                f"{path}, {where}: a second {task.kind} task {task.instance[:40]!r}: give "
                "each its own id"
            )
        names.add((task.kind, task.instance))
        tasks.append(task)
    if not tasks:
        raise InputError(f"{path} has no tasks: {GIVE}")
    return tasks


def _lines(path: Path) -> Iterator[tuple[int, str, Any]]:
    """(number, where it stands, value) of each task."""
    text = _text(path)
    if text.lstrip().startswith("["):
        for i, value in enumerate(_value(text, f"{path}"), 1):
            yield i, f"entry {i}", value
        return
    for i, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield i, f"line {i}", _value(line, f"{path}, line {i}")


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}): {GIVE}") from None


def _value(text: str, where: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        raise InputError(f"{where}: not JSON: {GIVE}") from None


def source(path: Path) -> tuple[str, str]:
    """A file's name and sha256, for records. Raises InputError."""
    return path.name, sha256(_text(path))


def spread(tasks: list[Task], each: int | None) -> list[Task]:
    """At most `each` tasks of every kind, evenly spread over the file; None: all."""
    selected = []
    for kind in dict.fromkeys(task.kind for task in tasks):
        same = [task for task in tasks if task.kind == kind]
        count = len(same) if each is None else min(each, len(same))
        selected += [same[len(same) * i // count] for i in range(count)]
    return selected
