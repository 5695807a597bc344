"""`longdraft bench peers` and `peers-tasks`: methods beside other engines, in the same run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longdraft.cli import common, processes
from longdraft.cli.bench.bench_options import (
    LENGTHS,
    Batch,
    ComparedMethods,
    Context,
    LoadedModel,
    MeasuredTexts,
    Out,
    Repeat,
    lengths,
)
from longdraft.cli.bench.measure_tasks import SuiteName, TaskOptions
from longdraft.cli.bench.measuring import measure
from longdraft.cli.sampling_options import Seed, Temperature
from longdraft.sampling_parameters import SEED, TEMPERATURE

if TYPE_CHECKING:
    from longdraft.bench.peers.choice import ChosenPeers
    from longdraft.bench.selection import Entry
    from longdraft.models.lm import LM

Peers = Annotated[
    str,
    typer.Option(help="Other engines with commas: llama.cpp,openvino,transformers."),
]


@dataclass(frozen=True)
class PeerOptions:
    """The options that other engines need."""

    peer_model: Annotated[
        Path | None,
        typer.Option(
            help="The same model as a GGUF file, for other engines (default: the target's own)."
        ),
    ] = None
    peer_draft: Annotated[
        list[Path],
        typer.Option(
            help="A small model for their draft speculation: a GGUF file, or a folder; may be"
            " repeated."
        ),
    ] = field(default_factory=list)
    peer_llama_server: Annotated[
        Path | None,
        typer.Option(
            help="llama.cpp's llama-server, built for this machine (default: the wheel, which is"
            " not)."
        ),
    ] = None
    peer_openvino: Annotated[
        Path | None,
        typer.Option(
            help="A Python interpreter that has openvino-genai (default: this one, if it has it)."
        ),
    ] = None
    peer_only: Annotated[
        str,
        typer.Option(
            help="Measure only these rows of other engines, named as in tables:"
            " llama.cpp@fa=on,openvino."
        ),
    ] = ""

    def choice(self, peers: str) -> ChosenPeers:
        """Raises InputError."""
        from longdraft.bench.peers.choice import ChosenPeers

        return ChosenPeers(
            peers,
            self.peer_model,
            self.peer_draft,
            self.peer_llama_server,
            self.peer_openvino,
            self.peer_only,
        )

    def found(self, peers: str, target: LM) -> list[Entry]:
        """The peers as entries; a line on standard error names each that cannot be had."""
        engines, left_out = self.choice(peers).find(target)
        for line in left_out:
            typer.echo(line, err=True)
        return [*engines]


@dataclass(frozen=True)
class MeasurePeers:
    """Measure the speed of methods and other engines that continue the same texts."""

    peers: Peers
    peer_options: PeerOptions = PeerOptions()
    compared: ComparedMethods = ComparedMethods()
    loaded: LoadedModel = LoadedModel()
    texts: MeasuredTexts = MeasuredTexts()
    context: Context = LENGTHS
    max_new_tokens: common.NewTokens = 256
    batch: Batch = 1
    repeat: Repeat = 5
    temperature: Temperature = TEMPERATURE.default
    seed: Seed = SEED.default
    out: Out = None

    def __post_init__(self) -> None:
        processes.check_alone("bench peers")
        lengths(self.context)
        self.compared.entries(self.loaded.trained, self.seed)
        self.peer_options.choice(self.peers)

    def run(self) -> None:
        from longdraft.bench.speed import Speed
        from longdraft.core.sampling import Sampler

        target, tokenizer, kept = self.loaded.load()
        texts = self.texts.read(tokenizer)
        methods = self.compared.entries(self.loaded.trained, self.seed)
        job = Speed(
            target,
            tokenizer,
            [*methods, *self.peer_options.found(self.peers, target)],
            texts,
            lengths(self.context),
            new_tokens=self.max_new_tokens,
            batch=self.batch,
            repeat=self.repeat,
            sampler=Sampler(self.temperature),
            seed=self.seed,
            accept=None,
            kept=kept,
        )
        measure(job, self.out)


@dataclass(frozen=True)
class MeasurePeersTasks:
    """Measure the speed of methods and other engines that answer the same tasks."""

    suite: SuiteName
    peers: Peers
    peer_options: PeerOptions = PeerOptions()
    compared: ComparedMethods = ComparedMethods()
    loaded: LoadedModel = LoadedModel()
    tasks: TaskOptions = TaskOptions()
    temperature: Temperature = TEMPERATURE.default
    seed: Seed = SEED.default
    out: Out = None

    def __post_init__(self) -> None:
        processes.check_alone("bench peers-tasks")
        self.tasks.suite(self.suite, self.seed)
        self.compared.entries(self.loaded.trained, self.seed)
        self.peer_options.choice(self.peers)

    def run(self) -> None:
        from longdraft.bench.suite import SuiteRun
        from longdraft.core.sampling import Sampler

        target, tokenizer, kept = self.loaded.load()
        methods = self.compared.entries(self.loaded.trained, self.seed)
        job = SuiteRun(
            target,
            tokenizer,
            [*methods, *self.peer_options.found(self.peers, target)],
            self.tasks.suite(self.suite, self.seed),
            self.tasks.max_new_tokens,
            self.tasks.repeat,
            Sampler(self.temperature),
            self.seed,
            ends=False,
            kept=kept,
        )
        measure(job, self.out)
