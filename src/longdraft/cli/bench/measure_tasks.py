"""`longdraft bench tasks SUITE`: methods answer tasks that people give a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from longdraft.cli import common
from longdraft.cli.bench.bench_options import (
    ByStep,
    ComparedMethods,
    LoadedModel,
    Out,
    RecommendedSampling,
    Repeat,
    lengths,
)
from longdraft.cli.bench.measuring import measure
from longdraft.cli.sampling_options import Seed
from longdraft.sampling_parameters import SEED

if TYPE_CHECKING:
    from longdraft.bench.tasks.suites import Suite

SuiteName = Annotated[
    str,
    typer.Argument(
        metavar="SUITE",
        help="edit, repo, copy, code, question, qa, quote, summary, chat, long: built-in tasks; "
        "or a .jsonl file.",
    ),
]


@dataclass(frozen=True)
class TaskOptions:
    """The choice of a suite's tasks, and their lengths."""

    prompt_file: common.PromptFiles = field(default_factory=list)
    instances: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1 << 20,
            help="Number of tasks of each kind (default: 3; from a file: all).",
        ),
    ] = None
    context: Annotated[
        str,
        typer.Option(
            help="Number of prompt tokens; several with commas (default: 4096; a suite's file: its"
            " own lengths)."
        ),
    ] = ""
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of new tokens per answer (default: the task's)."),
    ] = None
    repeat: Repeat = 1

    def suite(self, name: str, seed: int) -> Suite:
        """Raises InputError."""
        from longdraft.bench import inputs
        from longdraft.bench.tasks.suites import Suite

        documents = tuple((file.name, inputs.read(file)) for file in self.prompt_file)
        contexts = lengths(self.context) if self.context else []
        return Suite(name, contexts, self.instances, seed, documents)


@dataclass(frozen=True)
class MeasureTasks:
    """Measure the speed of methods that answer tasks, one by one."""

    suite: SuiteName
    compared: ComparedMethods = ComparedMethods()
    loaded: LoadedModel = LoadedModel()
    tasks: TaskOptions = TaskOptions()
    sampling: RecommendedSampling = RecommendedSampling()
    seed: Seed = SEED.default
    by_step: ByStep = False
    out: Out = None

    def __post_init__(self) -> None:
        self.tasks.suite(self.suite, self.seed)
        self.compared.entries(self.loaded.trained, self.seed)

    def run(self) -> None:
        from longdraft.bench.suite import SuiteRun

        target, tokenizer, kept = self.loaded.load()
        job = SuiteRun(
            target,
            tokenizer,
            self.compared.entries(self.loaded.trained, self.seed),
            self.tasks.suite(self.suite, self.seed),
            self.tasks.max_new_tokens,
            self.tasks.repeat,
            self.sampling.sampler(target),
            self.seed,
            by_step=self.by_step,
            kept=kept,
        )
        measure(job, self.out)
