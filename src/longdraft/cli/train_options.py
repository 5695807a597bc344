"""Options that the training commands share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from longdraft.cli.sampling_options import Seed
from longdraft.core import provenance
from longdraft.errors import InputError
from longdraft.sampling_parameters import SEED
from longdraft.training.data import Sources
from longdraft.training.schedule import Plan, parse_stages
from longdraft.training.trainer import TrainingSettings

Text = Annotated[
    list[str], typer.Option(help="Folder or glob of UTF-8 or .jsonl files, or hf:ID; repeatable.")
]
PackageCap = Annotated[
    int, typer.Option(min=1, help="Maximum number of characters of one installed package.")
]
DatasetCap = Annotated[
    int, typer.Option(min=1, help="Maximum number of characters of one hf: dataset.")
]
Stage = Annotated[list[str], typer.Option(help="LENGTH:STEPS, run in the given order; repeatable.")]
Threads = Annotated[
    int, typer.Option(min=0, max=1024, help="Number of CPU threads (0: torch's choice).")
]


@dataclass(frozen=True)
class CorpusOptions:
    """The text of a run, and the folder for its tokens."""

    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder for tokenized data, checkpoints and log.jsonl (default: OUT.run)."
        ),
    ] = None
    text: Text = field(default_factory=list)
    environment: Annotated[
        bool | None,
        typer.Option(
            help="Use the standard library and installed packages (default: if no --text is given)."
        ),
    ] = None

    def folder(self, out: Path) -> Path:
        """The work folder of a run that writes to `out`."""
        return self.work or out.with_name(out.name + ".run")

    def sources(self, **caps: int) -> Sources:
        """caps: package_cap and dataset_cap of Sources."""
        environment = not self.text if self.environment is None else self.environment
        return Sources(self.text, environment, **caps)


@dataclass(frozen=True)
class Run:
    """How a training run proceeds, whatever is trained."""

    step_tokens: Annotated[
        int, typer.Option(min=8, max=1 << 30, help="Number of tokens per step (at least one row).")
    ] = 4096
    matrix_rate: Annotated[
        float, typer.Option(help="Learning rate of Muon, which trains matrices.")
    ] = 0.02
    other_rate: Annotated[
        float, typer.Option(help="Learning rate of AdamW, which trains all else.")
    ] = 0.003
    decay: Annotated[
        float,
        typer.Option(
            help="Final share of tokens over which the rate falls to 0.", min=0.001, max=1
        ),
    ] = 0.5
    code: Annotated[float, typer.Option(help="Share of rows that are code.", min=0, max=1)] = 0.65
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")] = False
    stop_at: Annotated[
        int, typer.Option(help="Stop after this step, to resume later (0: never).", min=0)
    ] = 0
    minutes: Annotated[
        float, typer.Option(help="Stop after this many minutes, to resume later (0: never).")
    ] = 0
    export_only: Annotated[
        bool, typer.Option(help="Do not train; write the newest checkpoint to --out.")
    ] = False
    probe_every: Annotated[
        int, typer.Option(min=1, help="Steps between evaluations on held-out text.")
    ] = 200
    log_every: Annotated[int, typer.Option(min=1, help="Steps between lines of the log.")] = 10
    save_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 300
    seed: Seed = SEED.default
    bf16: Annotated[bool, typer.Option(help="Compute in bfloat16; weights stay float32.")] = True
    threads: Threads = 0

    def settings(
        self, stages: list[str], positions: int, work: Path, **more: Any
    ) -> TrainingSettings:
        """The settings that the trainer needs. Raises InputError for stages that are not
        LENGTH:STEPS, and numbers that are none.
        """
        for name in ("matrix_rate", "other_rate", "decay", "code", "save_seconds", "minutes"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise InputError(
                    f"--{name.replace('_', '-')} is {value}: give a number of 0 or more"
                )
        plan = Plan(parse_stages(stages, positions), self.step_tokens, self.decay)
        shared = {
            f.name: getattr(self, f.name) for f in fields(TrainingSettings) if hasattr(self, f.name)
        }
        return TrainingSettings(
            plan, work, provenance.command(), (self.matrix_rate, self.other_rate), **shared, **more
        )


def stopped(step: int, steps: int) -> str:
    """The lines that are printed when a run stops early."""
    return (
        f"stopped at step {step} of {steps}: --resume continues it, --export-only writes the "
        "newest checkpoint"
    )
