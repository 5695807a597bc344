"""`longdraft bench acceptance`: drafts that the target accepts at many positions of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from longdraft.cli.bench.bench_options import (
    LENGTHS,
    ComparedMethods,
    Context,
    LoadedModel,
    MeasuredTexts,
    Out,
    RecommendedSampling,
    lengths,
)
from longdraft.cli.bench.measuring import measure
from longdraft.cli.sampling_options import Seed
from longdraft.sampling_parameters import SEED


@dataclass(frozen=True)
class MeasureAcceptance:
    """Measure how many drafts the target accepts at many positions of given texts."""

    compared: ComparedMethods = ComparedMethods("vegas")
    loaded: LoadedModel = LoadedModel()
    texts: MeasuredTexts = MeasuredTexts()
    context: Context = LENGTHS
    anchors: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Positions per text and context.")
    ] = 200
    warmup_rounds: Annotated[
        int, typer.Option(min=0, help="Speculative steps before the measured one.")
    ] = 0
    sampling: RecommendedSampling = RecommendedSampling()
    seed: Seed = SEED.default
    out: Out = None

    def __post_init__(self) -> None:
        lengths(self.context)
        self.compared.entries(self.loaded.trained, self.seed)

    def run(self) -> None:
        from longdraft.bench.teacher_forced import TeacherForced

        target, tokenizer, kept = self.loaded.load()
        job = TeacherForced(
            target,
            self.compared.entries(self.loaded.trained, self.seed),
            self.texts.read(tokenizer),
            lengths(self.context),
            self.anchors,
            self.sampling.sampler(target),
            self.seed,
            self.warmup_rounds,
            kept=kept,
        )
        measure(job, self.out)
