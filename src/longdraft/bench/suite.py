"""Task `suite`: all methods take turns at the answers of a suite's tasks, turn by turn of each
conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from longdraft.bench.inputs import Text
from longdraft.bench.selection import Entry
from longdraft.bench.speed import Speed
from longdraft.bench.tasks import reader
from longdraft.bench.tasks.fitting import Fitting
from longdraft.bench.tasks.suites import LENGTHS, Suite
from longdraft.bench.tasks.task import Task, sha256
from longdraft.core import Sampler
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.text import text_of
from longdraft.prompts.prompt_file import PromptFiles
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

NEW = 256  # tokens of an answer where a task does not say


@dataclass(frozen=True)
class SuiteTurn(Text):
    """One turn of a task as a text of Speed's: the whole prompt. about: what its records say of the
    task.
    """

    ends: bool = True
    about: dict[str, Any] = field(default_factory=dict)

    def prompts(self, context: int, batch: int) -> list[list[int]]:
        return [self.tokens] * batch

    def fields(self) -> dict[str, Any]:
        return self.about


@dataclass
class SuiteRun:
    """The parameters of one run; entries as in Speed. new_tokens: the most of each answer (None: as
    tasks say).

    Other engines cannot end at an end token, so beside them no answer does. An assistant's message
    is plain decoding's answer; every method has the same, or its record says that it is not equal.
    """

    target: LM
    tokenizer: Any
    entries: list[Entry]
    suite: Suite
    new_tokens: int | None
    repeat: int
    sampler: Sampler
    seed: int
    ends: bool = True
    by_step: bool = False
    left_out: list[str] = field(default_factory=list)
    kept: PromptFiles | None = None

    def check(self) -> None:
        """Build all tasks. Raises InputError for whatever would fail later."""
        self.fitting = Fitting(self.tokenizer)
        self.tasks = list(self._fitted())
        if not self.tasks:
            raise InputError(
                "no task of the file fits: give a longer --context, or a model with more positions"
            )
        for task, context in self.tasks:
            self._speed(task, context, []).check()

    def _fitted(self) -> Iterator[tuple[Task, int]]:
        """The tasks with a prompt that fits and leaves room to answer; others are named in
        left_out.
        """
        source = () if self.suite.file is None else (reader.source(self.suite.file),)
        for task, context in self.suite.tasks(self.fitting):
            task = replace(task, sources=task.sources or source)
            if context and self.suite.file is not None:
                try:
                    task = self.fitting.fit(task, context)
                except InputError as error:
                    self.left_out.append(str(error))
                    continue
            if (size := self.fitting.size(task)) + len(task.turns) > self.target.positions:
                subject = f"the prompt of {task.kind} task {task.instance} has {size} tokens"
                if self.suite.file is None:
                    raise InputError(
                        f"{subject}, and the model has {self.target.positions} positions: "
                        "give less --context"
                    )
                self.left_out.append(
                    f"{subject}, more than the model's {self.target.positions} positions"
                )
                continue
            yield task, context or nominal(size)

    @property
    def steps(self) -> int:
        entries = len(self.entries) + all(e.name != "plain" for e in self.entries)
        return sum(len(task.turns) for task, _ in self.tasks) * (entries * self.repeat + 1)

    def run(self, log: RecordFile, tick: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Yields each record as it is written."""
        shared = provenance(self.target, self.seed)
        for task, context in self.tasks:
            answers: list[str] = []
            for _ in task.turns:
                speed = self._speed(task, context, answers)
                answer = None
                if not speed.new_tokens:
                    self.left_out.append(
                        f"{task.kind} task {task.instance} ends with turn {len(answers)}: no room"
                    )
                    break
                for record in speed.run(log, tick, shared):
                    if record.get("method") == "plain":
                        answer = text_of(self.tokenizer, record["token_ids"])
                    yield record
                answers.append(answer or "")

    def _speed(self, task: Task, context: int, answers: list[str]) -> Speed:
        """The measurement of the turn after these answers."""
        messages = task.messages(answers)
        prompt = self.fitting.tokens(messages)
        most = min(n for n in (self.new_tokens, task.new_tokens, 1 << 30) if n is not None)
        most = NEW if most == 1 << 30 else most
        room = max(self.target.positions - len(prompt), 0)
        about = {
            "task": "suite",
            "suite": self.suite.label,
            **task.fields(),
            "turn": len(answers) + 1,
        }
        about |= {
            "template": self.fitting.template,
            "ends": self.ends,
            "new_tokens_limit": min(most, room),
        }
        text = SuiteTurn(
            f"{task.kind} {task.instance}",
            prompt,
            sha256("\n\n".join(m["content"] for m in messages)),
            ends=self.ends,
            about=about,
        )
        return Speed(
            self.target,
            self.tokenizer,
            self.entries,
            [text],
            [context],
            min(most, room),
            1,
            self.repeat,
            self.sampler,
            self.seed,
            None,
            by_step=self.by_step,
            kept=self.kept,
            left_out=self.left_out,
        )


def nominal(size: int) -> int:
    """The length under which a report lists a prompt of this many tokens: the next of LENGTHS, then
    of the powers of two.
    """
    return next((n for n in LENGTHS if size <= n), 1 << (size - 1).bit_length())
