"""`longdraft train ...`: the commands that train a target or a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from longdraft.cli.train_drafter import command, stopped
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
    stage: Annotated[list[str], typer.Option(help="LENGTH:STEPS, run in the given order; repeatable.")] = ["512:2000"],  # noqa: B006
    text: Annotated[
        list[str], typer.Option(help="Folder or glob of UTF-8 or .jsonl files, or hf:ID; repeatable.")
    ] = [],  # noqa: B006
    environment: Annotated[
        bool, typer.Option(help="Also train on the standard library and installed packages.")
    ] = True,
    package_cap: Annotated[
        int, typer.Option(help="Maximum number of characters of one installed package.")
    ] = 8_000_000,
    dataset_cap: Annotated[int, typer.Option(help="Maximum number of characters of one hf: dataset.")] = 50_000_000,
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint in --work.")] = False,
    stop_at: Annotated[int, typer.Option(help="Stop after this step, to resume later (0: never).", min=0)] = 0,
    export_only: Annotated[bool, typer.Option(help="Do not train; write the newest checkpoint to --out.")] = False,
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
    code: Annotated[float, typer.Option(help="Share of rows that are code.", min=0, max=1)] = 0.65,
    copies: Annotated[float, typer.Option(help="Share of rows with repeated spans.", min=0, max=1)] = 0.25,
    guide_to: Annotated[int, typer.Option(help="Guide some attention heads before this step.", min=0)] = 0,
    step_tokens: Annotated[int, typer.Option(help="Number of tokens per step (at least one row).", min=8)] = 2048,
    matrix_rate: Annotated[float, typer.Option(help="Learning rate of Muon, which trains matrices.")] = 0.02,
    other_rate: Annotated[float, typer.Option(help="Learning rate of AdamW, which trains all else.")] = 0.003,
    decay: Annotated[
        float, typer.Option(help="Share of all tokens over which the rate falls at the end.", min=0.001, max=1)
    ] = 1 / 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights and the order of text.")] = 0,
    bf16: Annotated[bool, typer.Option(help="Compute in bfloat16; weights stay float32.")] = True,
    threads: Annotated[int, typer.Option(help="Number of CPU threads (0: torch's choice).", min=0)] = 0,
    save_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 300,
    probe_every: Annotated[int, typer.Option(min=1, help="Steps between evaluations on held-out text.")] = 500,
    log_every: Annotated[int, typer.Option(min=1, help="Steps between lines of the log.")] = 10,
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
        state = trainer.train(
            model,
            target.objective(model, corpus, plan, seed, code, copies, bf16, guide_to),
            plan,
            work,
            command=provenance.command(),
            rates=(matrix_rate, other_rate),
            settings={"copies": copies, "code": code, "guide_to": guide_to, "seed": seed, "bf16": bf16},
            resume=resume,
            probe=lambda: probes.cheap(model, heldout, vocab),
            probe_every=probe_every,
            log_every=log_every,
            save_seconds=save_seconds,
            stop_at=stop_at,
        )
        if state["step"] < plan.steps:
            typer.echo(stopped(state["step"], plan.steps))
            return
    facts = {f"{kind}_tokens": corpus.count(kind) for kind in data.TEXT_KINDS}
    facts["documents"] = len(corpus.names)
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
