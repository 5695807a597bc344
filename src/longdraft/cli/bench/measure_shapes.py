"""`longdraft bench shape-cost` and `shape-steps`: cost alone, with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from longdraft.cli import common, processes
from longdraft.cli.bench.bench_options import (
    LENGTHS,
    Batch,
    ComparedMethods,
    Context,
    Out,
    Repeat,
    SamplingOptions,
    lengths,
)
from longdraft.cli.bench.measuring import measure
from longdraft.cli.option_groups import Dtype
from longdraft.cli.sampling_options import Seed
from longdraft.errors import InputError
from longdraft.sampling_parameters import SEED

if TYPE_CHECKING:
    from longdraft.bench.inputs import Text
    from longdraft.models.lm import LM

Shape = Annotated[
    str,
    typer.Argument(
        metavar="SHAPE",
        help="LAYERSxHIDDEN or hybrid:LAYERSxHIDDEN: the shape of a model with random weights.",
    ),
]


def shaped_model(shape: str, dtype: str, seed: int) -> LM:
    """A model with random weights. Raises InputError."""
    from longdraft.bench.shapes import random_model

    target = random_model(shape, dtype, seed)
    common.settle()
    return target


def random_text(target: LM, contexts: list[int], batch: int, seed: int) -> Text:
    """A text that is long enough for prompts of these lengths. Raises InputError."""
    from longdraft.bench import inputs

    if max(contexts) > target.positions:
        raise InputError(
            f"context {max(contexts)} exceeds the {target.positions} positions of a shape"
        )
    return inputs.random_text(max(contexts) + batch, target.vocab, seed)


@dataclass(frozen=True)
class MeasureShapeCost:
    """Measure what methods cost on a model with random weights, at a stated acceptance."""

    shape: Shape
    compared: ComparedMethods = ComparedMethods()
    dtype: Dtype = "bfloat16"
    context: Context = LENGTHS
    max_new_tokens: common.NewTokens = 256
    batch: Batch = 1
    repeat: Repeat = 5
    accept: common.Accept = None
    sampling: SamplingOptions = SamplingOptions()
    seed: Seed = SEED.default
    out: Out = None

    def __post_init__(self) -> None:
        from longdraft.bench.shapes import sizes

        processes.check_alone("bench shape-cost")
        sizes(self.shape)
        lengths(self.context)
        speculative = any(e.speculative for e in self.compared.entries("", self.seed))
        if self.accept is None and speculative:
            raise InputError("the acceptance with random weights means nothing: add --accept K")

    def run(self) -> None:
        from longdraft.bench.speed import Speed

        contexts = lengths(self.context)
        target = shaped_model(self.shape, self.dtype, self.seed)
        job = Speed(
            target,
            None,
            self.compared.entries("", self.seed),
            [random_text(target, contexts, self.batch, self.seed)],
            contexts,
            new_tokens=self.max_new_tokens,
            batch=self.batch,
            repeat=self.repeat,
            sampler=self.sampling.sampler(target),
            seed=self.seed,
            accept=self.accept,
        )
        measure(job, self.out)


@dataclass(frozen=True)
class MeasureShapeSteps:
    """Measure the cost of single operations of a model with random weights."""

    shape: Shape
    dtype: Dtype = "bfloat16"
    context: Context = LENGTHS
    repeat: Repeat = 5
    seed: Seed = SEED.default
    out: Out = None

    def __post_init__(self) -> None:
        from longdraft.bench.shapes import sizes

        processes.check_alone("bench shape-steps")
        sizes(self.shape)
        lengths(self.context)

    def run(self) -> None:
        from longdraft.bench.steps import Steps

        contexts = lengths(self.context)
        target = shaped_model(self.shape, self.dtype, self.seed)
        text = random_text(target, contexts, 1, self.seed)
        measure(Steps(target, [text], contexts, self.repeat, self.seed), self.out)
