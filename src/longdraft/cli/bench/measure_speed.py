"""`longdraft bench speed` and `longdraft bench cost`: methods take turns at continuing texts."""

from __future__ import annotations

from dataclasses import dataclass, field

from longdraft.cli import common
from longdraft.cli.bench.bench_options import (
    LENGTHS,
    Ask,
    Batch,
    ByStep,
    ComparedMethods,
    Context,
    LoadedModel,
    MeasuredTexts,
    Out,
    RecommendedSampling,
    Repeat,
    lengths,
)
from longdraft.cli.bench.measuring import measure
from longdraft.cli.sampling_options import Seed
from longdraft.sampling_parameters import SEED


@dataclass(frozen=True)
class MeasureSpeed:
    """Measure the speed of methods that continue texts, with real acceptance."""

    compared: ComparedMethods = ComparedMethods()
    loaded: LoadedModel = LoadedModel()
    texts: MeasuredTexts = MeasuredTexts()
    ask: Ask = ""
    context: Context = LENGTHS
    max_new_tokens: common.NewTokens = 256
    batch: Batch = 1
    repeat: Repeat = 5
    sampling: RecommendedSampling = RecommendedSampling()
    seed: Seed = SEED.default
    by_step: ByStep = False
    out: Out = None

    def __post_init__(self) -> None:
        lengths(self.context)
        self.compared.entries(self.loaded.trained, self.seed)

    def run(self, accept: float | None = None) -> None:
        """accept: drafts that are accepted per step, instead of those that are right."""
        from longdraft.bench import inputs
        from longdraft.bench.speed import Speed

        target, tokenizer, kept = self.loaded.load()
        texts = self.texts.read(tokenizer)
        job = Speed(
            target,
            tokenizer,
            self.compared.entries(self.loaded.trained, self.seed),
            inputs.ask(texts, self.ask, tokenizer) if self.ask else texts,
            lengths(self.context),
            new_tokens=self.max_new_tokens,
            batch=self.batch,
            repeat=self.repeat,
            sampler=self.sampling.sampler(target),
            seed=self.seed,
            accept=accept,
            by_step=self.by_step,
            kept=kept,
        )
        measure(job, self.out)


@dataclass(frozen=True)
class MeasureCost(MeasureSpeed):
    """Measure what methods cost at a stated acceptance, --accept drafts per step."""

    accept: common.Accepted = field(kw_only=True)

    def run(self, accept: float | None = None) -> None:
        super().run(self.accept)
