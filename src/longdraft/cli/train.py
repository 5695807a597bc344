"""`longdraft train ...`: the commands that train a target or a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from longdraft.cli import train_options as o
from longdraft.cli.train_drafter import command
from longdraft.cli.train_text import write_text
from longdraft.drafters.kinds import KINDS
from longdraft.training import data, plot, probes, target, trainer

app = typer.Typer(no_args_is_help=True, help="Train a model or a drafter.")


def train_target(
    run: o.Run,
    out: Annotated[Path, typer.Option(help="Folder for the finished model.")],
    work: Annotated[Path, typer.Option(help="Folder for tokenised data, checkpoints and log.jsonl.")] = Path("run"),
    stage: o.Stage = ["512:2000"],  # noqa: B006
    text: o.Text = [],  # noqa: B006
    environment: Annotated[bool, typer.Option(help="Use the standard library and installed packages.")] = True,
    package_cap: o.PackageCap = 8_000_000,
    dataset_cap: o.DatasetCap = 50_000_000,
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
    copies: Annotated[float, typer.Option(help="Share of rows with repeated spans.", min=0, max=1)] = 0.25,
    guide_to: Annotated[int, typer.Option(help="Guide some attention heads before this step.", min=0)] = 0,
) -> None:
    """Train a small Qwen3 on this machine's Python files and on books, and export it in bfloat16."""
    if run.threads:
        torch.set_num_threads(run.threads)
    settings = run.settings(stage, positions, work)
    lengths = [int(c) for c in contexts.split(",") if c.strip().isdecimal()]
    sources = data.Sources(text, environment, package_cap, dataset_cap)
    corpus, heldout = target.prepare(work, sources, vocab, positions, tokenizer)
    model = target.build(vocab, layers, hidden, heads, mlp, positions, run.seed)
    if not run.export_only:
        loss_of = target.objective(model, corpus, settings, copies, guide_to)
        facts = {"copies": copies, "guide_to": guide_to}
        state = trainer.train(model, loss_of, settings, lambda: probes.cheap(model, heldout, vocab), facts)
        if state["step"] < settings.plan.steps:
            typer.echo(o.stopped(state["step"], settings.plan.steps))
            return
    facts = {f"{kind}_tokens": corpus.count(kind) for kind in data.TEXT_KINDS} | {"documents": len(corpus.names)}
    record = target.export(work, out, model, heldout, facts, lengths)
    typer.echo(f"step {record['step']}, {record['parameters']} parameters -> {out}")


@app.command("plot")
def plot_run(run: Annotated[Path, typer.Argument(help="The --work folder of a run.")]) -> None:
    """Plot a run's loss and held-out acceptance over its tokens, as RUN/loss.png."""
    typer.echo(plot.draw(run))


app.command("target")(o.with_run(train_target, o.Run(step_tokens=2048, decay=1 / 3, probe_every=500)))
app.command("text")(write_text)
for kind in KINDS.values():
    if kind.training is not None:
        app.command(kind.training.command, help=kind.training.help)(command(kind, kind.training))
