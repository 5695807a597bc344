"""Options that the training commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Text = Annotated[list[str], typer.Option(help="Folder or glob of UTF-8 or .jsonl files, or hf:ID; repeatable.")]
Environment = Annotated[
    bool | None, typer.Option(help="Use the standard library and installed packages (default: if no --text is given).")
]
PackageCap = Annotated[int, typer.Option(help="Maximum number of characters of one installed package.")]
DatasetCap = Annotated[int, typer.Option(help="Maximum number of characters of one hf: dataset.")]
Work = Annotated[
    Path | None, typer.Option(help="Folder for tokenised data, checkpoints and log.jsonl (default: OUT.run).")
]
Stage = Annotated[list[str], typer.Option(help="LENGTH:STEPS, run in the given order; repeatable.")]
StepTokens = Annotated[int, typer.Option(min=8, help="Number of tokens per step (at least one row).")]
MatrixRate = Annotated[float, typer.Option(help="Learning rate of Muon, which trains matrices.")]
OtherRate = Annotated[float, typer.Option(help="Learning rate of AdamW, which trains all else.")]
Decay = Annotated[float, typer.Option(help="Final share of tokens over which the rate falls to 0.", min=0.001, max=1)]
Code = Annotated[float, typer.Option(help="Share of rows that are code.", min=0, max=1)]
Resume = Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")]
StopAt = Annotated[int, typer.Option(help="Stop after this step, to resume later (0: never).", min=0)]
ExportOnly = Annotated[bool, typer.Option(help="Do not train; write the newest checkpoint to --out.")]
ProbeEvery = Annotated[int, typer.Option(min=1, help="Steps between evaluations on held-out text.")]
LogEvery = Annotated[int, typer.Option(min=1, help="Steps between lines of the log.")]
SaveSeconds = Annotated[float, typer.Option(help="Seconds between checkpoints.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of random numbers.")]
Bf16 = Annotated[bool, typer.Option(help="Compute in bfloat16; weights stay float32.")]
Threads = Annotated[int, typer.Option(min=0, help="Number of CPU threads (0: torch's choice).")]


def stopped(step: int, steps: int) -> str:
    """What is printed when a run stops early."""
    return f"stopped at step {step} of {steps}: --resume continues it, --export-only writes the newest checkpoint"
