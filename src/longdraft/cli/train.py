"""`longdraft train ...`: arguments in, calls out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from longdraft.cli.train_drafter import HELP, command, write_text
from longdraft.drafters.objectives import KINDS
from longdraft.errors import InputError
from longdraft.training import data, plot, probes, target, trainer
from longdraft.training.schedule import Plan, parse_stages

app = typer.Typer(no_args_is_help=True, help="Train a model or a drafter.")


@app.command("target")
def train_target(
    out: Annotated[Path, typer.Option(help="The finished model goes here.")],
    work: Annotated[Path, typer.Option(help="Tokenised data, checkpoints and log.jsonl.")] = Path("run"),
    stage: Annotated[list[str], typer.Option(help="LENGTH:STEPS, repeated; run in this order.")] = ["512:2000"],  # noqa: B006
    text: Annotated[list[str], typer.Option(help="Folder or glob of UTF-8 or .jsonl files, or hf:ID; repeated.")] = [],  # noqa: B006
    environment: Annotated[bool, typer.Option(help="Standard library and installed packages too.")] = True,
    package_cap: Annotated[int, typer.Option(help="Characters of one installed package, at most.")] = 8_000_000,
    dataset_cap: Annotated[int, typer.Option(help="Characters of one hf: dataset, at most.")] = 50_000_000,
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint in --work.")] = False,
    stop_at: Annotated[int, typer.Option(help="Stop after this step, to resume later; 0: never.", min=0)] = 0,
    export_only: Annotated[bool, typer.Option(help="No training: write the newest checkpoint to --out.")] = False,
    contexts: Annotated[str, typer.Option(help="Of the final probes; '': none.")] = "512,1024,2048,4096,8192",
    vocab: Annotated[int, typer.Option()] = 4096,
    tokenizer: Annotated[str, typer.Option(help="Take that of 'bundled' or a folder, to draft for it.")] = "",
    layers: Annotated[int, typer.Option(min=1)] = 4,
    hidden: Annotated[int, typer.Option(min=16)] = 256,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    mlp: Annotated[int, typer.Option(min=16)] = 704,
    positions: Annotated[int, typer.Option(min=16)] = 131072,
    code: Annotated[float, typer.Option(help="Share of rows that are code.", min=0, max=1)] = 0.65,
    copies: Annotated[float, typer.Option(help="Share of rows with repeated spans.", min=0, max=1)] = 0.25,
    guide_to: Annotated[int, typer.Option(help="Before this step, show some heads where to look.", min=0)] = 0,
    step_tokens: Annotated[int, typer.Option(help="Tokens of a step, at least one row.", min=8)] = 2048,
    matrix_rate: Annotated[float, typer.Option(help="Muon's learning rate.")] = 0.02,
    other_rate: Annotated[float, typer.Option(help="AdamW's learning rate.")] = 0.003,
    decay: Annotated[float, typer.Option(help="Last share of tokens, its rate falling.", min=0.001, max=1)] = 1 / 3,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    bf16: Annotated[bool, typer.Option(help="Multiply in bfloat16; weights stay float32.")] = True,
    threads: Annotated[int, typer.Option(help="0: torch's choice.", min=0)] = 0,
    save_seconds: Annotated[float, typer.Option(help="Between checkpoints.")] = 300,
    probe_every: Annotated[int, typer.Option(min=1)] = 500,
    log_every: Annotated[int, typer.Option(min=1)] = 10,
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
            command=trainer.command_line(),
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
            typer.echo(f"stopped at step {state['step']} of {plan.steps}: --resume goes on, --export-only exports")
            return
    facts = {f"{kind}_tokens": corpus.count(kind) for kind in data.KINDS}
    facts["documents"] = len(corpus.names)
    record = target.export(work, out, model, heldout, facts, lengths)
    typer.echo(f"step {record['step']}, {record['parameters']} parameters -> {out}")


@app.command("plot")
def plot_run(run: Annotated[Path, typer.Argument(help="The --work folder of a run.")]) -> None:
    """Loss and held-out figures of a run over its tokens, as RUN/loss.png."""
    typer.echo(plot.draw(run))


app.command("text")(write_text)
for kind in KINDS:
    app.command(kind, help=HELP[kind])(command(kind))


def main() -> None:
    """`python -m longdraft.training`."""
    try:
        app()
    except InputError as error:
        print(f"longdraft: {error}", file=sys.stderr)
        raise SystemExit(2) from None
