"""`longdraft bench steps`: the cost of single operations."""

from __future__ import annotations

from dataclasses import dataclass

from longdraft.cli import processes
from longdraft.cli.bench.bench_options import (
    LENGTHS,
    Context,
    LoadedModel,
    MeasuredTexts,
    Out,
    Repeat,
    lengths,
)
from longdraft.cli.bench.measuring import measure
from longdraft.cli.sampling_options import Seed
from longdraft.sampling_parameters import SEED


@dataclass(frozen=True)
class MeasureSteps:
    """Measure the cost of single operations: decoding, verifying, drafting, selecting keys."""

    loaded: LoadedModel = LoadedModel()
    texts: MeasuredTexts = MeasuredTexts()
    context: Context = LENGTHS
    repeat: Repeat = 5
    seed: Seed = SEED.default
    out: Out = None

    def __post_init__(self) -> None:
        processes.check_alone("bench steps")
        lengths(self.context)

    def run(self) -> None:
        from longdraft.bench.steps import Steps

        target, tokenizer, kept = self.loaded.load()
        texts = self.texts.read(tokenizer)
        job = Steps(target, texts, lengths(self.context), self.repeat, self.seed, kept=kept)
        measure(job, self.out)
