"""The suites that are built here, by name, and a user's file as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from longdraft.bench.tasks import edit, long, passages, reader, reading, repo
from longdraft.bench.tasks.fitting import Fitting
from longdraft.bench.tasks.reading import Given
from longdraft.bench.tasks.task import Task
from longdraft.errors import InputError

LENGTHS = (1 << 10, 1 << 12, 1 << 13, 1 << 14, 30_000)
INSTANCES = 3  # of each built task
OF_CODE = {
    "edit": edit.build,
    "repo": repo.build,
    "copy": passages.copy,
    "code": passages.code,
}
OF_TEXT: dict[str, Callable[[Fitting, int, int, int, list[Given]], Task]] = {
    "question": reading.question,
    "qa": reading.qa,
    "quote": passages.quote,
    "summary": reading.summary,
    "chat": reading.chat,
}
NAMES = (*OF_CODE, *OF_TEXT, "long")


@dataclass(frozen=True)
class Suite:
    """A suite's name and its tasks. contexts: prompt lengths in tokens; a file's tasks keep their
    length without.

    instances: of each task and context; None: INSTANCES, or all that a file has. given: texts for
    OF_TEXT.
    """

    name: str
    contexts: list[int]
    instances: int | None = None
    seed: int = 0
    given: tuple[Given, ...] = ()

    def __post_init__(self) -> None:
        if self.file is None and self.name not in NAMES:
            raise InputError(
                f"there is no suite {self.name[:60]!r}: choose {', '.join(NAMES)}, or give "
                "a .jsonl file"
            )
        if self.given and self.name not in OF_TEXT:
            raise InputError(f"suite {self.name} has its own texts: leave --prompt-file out")

    @property
    def file(self) -> Path | None:
        """The user's file; None for a suite that is built here."""
        path = Path(self.name)
        return path if path.suffix in (".jsonl", ".json") else None

    @property
    def label(self) -> str:
        """Its name in records."""
        return self.name if self.file is None else self.file.name

    def tasks(self, fitting: Fitting) -> Iterator[tuple[Task, int]]:
        """(task, context) of each that is to be measured; context 0: its own length. Raises
        InputError.
        """
        if self.file is not None:
            tasks = reader.spread(reader.read(self.file), self.instances)
            yield from ((task, context) for context in self.contexts or [0] for task in tasks)
            return
        count = self.instances or INSTANCES
        if self.name == "long":
            yield from ((long.build(i), 0) for i in range(count))
            return
        for context in self.contexts or [1 << 12]:
            for i in range(count):
                yield self._built(fitting, context, i), context

    def _built(self, fitting: Fitting, context: int, instance: int) -> Task:
        if self.name in OF_CODE:
            return OF_CODE[self.name](fitting, context, instance, self.seed)
        return OF_TEXT[self.name](fitting, context, instance, self.seed, list(self.given))
