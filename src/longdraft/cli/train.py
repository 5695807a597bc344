"""`longdraft train ...`: the commands that train a target or a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from longdraft.cli import train_options as o
from longdraft.cli.train_drafter import command
from longdraft.cli.train_text import write_text
from longdraft.core import provenance
from longdraft.drafters.kinds import KINDS
from longdraft.training import data, plot, probes, target, trainer
from longdraft.training.schedule import Plan, parse_stages

app = typer.Typer(no_args_is_help=True, help="Train a model or a drafter.")


@app.command("target")
def train_target(
    out: Annotated[Path, typer.Option(help="Folder for the finished model.")],
    work: Annotated[Path, typer.Option(help="Folder for tokenised data, checkpoints and log.jsonl.")] = Path("run"),
    stage: o.Stage = ["512:2000"],  # noqa: B006
    text: o.Text = [],  # noqa: B006
    environment: Annotated[bool, typer.Option(help="Use the standard library and installed packages.")] = True,
    package_cap: o.PackageCap = 8_000_000,
    dataset_cap: o.DatasetCap = 50_000_000,
    resume: o.Resume = False,
    stop_at: o.StopAt = 0,
    export_only: o.ExportOnly = False,
    contexts: Annotated[
        str, typer.Option(help="Context lengths of the final evaluation; '' skips it.")
    ] = "512,1024,2048,4096,8192",
    vocab: Annotated[int, typer.Option(help="Number of tokens of the vocabulary.")] = 4096,
    tokenizer: Annotated[
        str, typer.Option(help="Use the tokenizer of 'bundled' or of a model folder, to draft for that model.")
    ] = "",
    layers: Annotated[int, typer.Option(min=1, help="Number of layers.")] = 4,
    hidden: Annotated[int, typer.Option(min=16, help="Width of the hidden states.")] = 256,
    heads: Annotated[int, typer.Option(min=1, help="Number of attention heads.")] = 4,
    mlp: Annotated[int, typer.Option(min=16, help="Width of the MLP.")] = 704,
    positions: Annotated[int, typer.Option(min=16, help="Maximum context length.")] = 131072,
    code: o.Code = 0.65,
    copies: Annotated[float, typer.Option(help="Share of rows with repeated spans.", min=0, max=1)] = 0.25,
    guide_to: Annotated[int, typer.Option(help="Guide some attention heads before this step.", min=0)] = 0,
    step_tokens: o.StepTokens = 2048,
    matrix_rate: o.MatrixRate = 0.02,
    other_rate: o.OtherRate = 0.003,
    decay: o.Decay = 1 / 3,
    seed: o.Seed = 0,
    bf16: o.Bf16 = True,
    threads: o.Threads = 0,
    save_seconds: o.SaveSeconds = 300,
    probe_every: o.ProbeEvery = 500,
    log_every: o.LogEvery = 10,
) -> None:
    """Train a small Qwen3 on this machine's Python files and on books, and export it in bfloat16."""
    if threads:
        torch.set_num_threads(threads)
    plan = Plan(parse_stages(stage, positions), step_tokens, decay)
    lengths = [int(c) for c in contexts.split(",") if c.strip().isdecimal()]
    sources = data.Sources(text, environment, package_cap, dataset_cap)
    corpus, heldout = target.prepare(work, sources, vocab, positions, tokenizer)
    model = target.build(vocab, layers, hidden, heads, mlp, positions, seed)
    if not export_only:
        settings = trainer.Settings(
            plan,
            work,
            provenance.command(),
            (matrix_rate, other_rate),
            seed=seed,
            code=code,
            bf16=bf16,
            resume=resume,
            stop_at=stop_at,
            probe_every=probe_every,
            log_every=log_every,
            save_seconds=save_seconds,
        )
        loss_of = target.objective(model, corpus, settings, copies, guide_to)
        facts = {"copies": copies, "guide_to": guide_to}
        state = trainer.train(model, loss_of, settings, lambda: probes.cheap(model, heldout, vocab), facts)
        if state["step"] < plan.steps:
            typer.echo(o.stopped(state["step"], plan.steps))
            return
    facts = {f"{kind}_tokens": corpus.count(kind) for kind in data.TEXT_KINDS} | {"documents": len(corpus.names)}
    record = target.export(work, out, model, heldout, facts, lengths)
    typer.echo(f"step {record['step']}, {record['parameters']} parameters -> {out}")


@app.command("plot")
def plot_run(run: Annotated[Path, typer.Argument(help="The --work folder of a run.")]) -> None:
    """Plot a run's loss and held-out acceptance over its tokens, as RUN/loss.png."""
    typer.echo(plot.draw(run))


app.command("text")(write_text)
for kind in KINDS.values():
    if kind.training is not None:
        app.command(kind.training.command, help=kind.training.help)(command(kind, kind.training))
