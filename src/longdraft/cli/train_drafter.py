"""`longdraft train glide|heads|medusa|eagle|budget`: one command line for every kind of drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from longdraft.core import provenance
from longdraft.core.options import declared, pairs, read
from longdraft.drafters.checkpoint import WEIGHTS, fill, read_weights
from longdraft.drafters.kind import DrafterKind, Training
from longdraft.models.loading import load, quiet
from longdraft.training.data import TEXT_KINDS, Corpus, Sources
from longdraft.training.frozen import Frozen
from longdraft.training.processes import joined
from longdraft.training.run import Objective, TrainingRun, corpora
from longdraft.training.schedule import Plan, parse_stages
from longdraft.training.spread import spread


def command(kind: DrafterKind, training: Training) -> Callable[..., None]:
    """The function behind `longdraft train COMMAND`."""

    def train(
        out: Annotated[Path, typer.Option(help="Folder for the finished drafter.")],
        model: Annotated[
            str, typer.Option("-m", "--model", help="The target: 'bundled', a folder or a Hub id.")
        ] = "bundled",
        work: Annotated[
            Path | None, typer.Option(help="Folder for tokenised data, checkpoints and log.jsonl (default: OUT.run).")
        ] = None,
        text: Annotated[
            list[str], typer.Option(help="Folder or glob of UTF-8 or .jsonl files, or hf:ID; repeatable.")
        ] = [],  # noqa: B006
        environment: Annotated[
            bool | None,
            typer.Option(help="Train on the standard library and installed packages (default: if no --text)."),
        ] = None,
        package_cap: Annotated[
            int, typer.Option(help="Maximum number of characters of one installed package.")
        ] = 8_000_000,
        dataset_cap: Annotated[int, typer.Option(help="Maximum number of characters of one hf: dataset.")] = 50_000_000,
        option: Annotated[
            list[str], typer.Option("-o", "--option", help="An option of the objective, as key=value; repeatable.")
        ] = [],  # noqa: B006
        steps: Annotated[int, typer.Option(min=1, help="Number of steps with rows of --length.")] = 2000,
        length: Annotated[int, typer.Option(min=8, help="Number of tokens per row.")] = 1024,
        stage: Annotated[
            list[str], typer.Option(help="LENGTH:STEPS, instead of --length and --steps; repeatable.")
        ] = [],  # noqa: B006
        step_tokens: Annotated[int, typer.Option(help="Number of tokens per step (at least one row).", min=8)] = 4096,
        matrix_rate: Annotated[float, typer.Option(help="Learning rate of Muon, which trains matrices.")] = 0.02,
        other_rate: Annotated[float, typer.Option(help="Learning rate of AdamW, which trains all else.")] = 0.003,
        decay: Annotated[
            float, typer.Option(help="Share of all tokens over which the rate falls at the end.", min=0.001, max=1)
        ] = 0.5,
        accumulate: Annotated[
            int, typer.Option(min=1, help="Number of parts of a step, which are divided among processes.")
        ] = 1,
        start: Annotated[Path | None, typer.Option(help="A drafter of this kind whose weights to start from.")] = None,
        shared: Annotated[bool, typer.Option("--spread", help="Divide the target's layers among processes.")] = False,
        resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")] = False,
        stop_at: Annotated[int, typer.Option(help="Stop after this step, to resume later (0: never).", min=0)] = 0,
        export_only: Annotated[bool, typer.Option(help="Do not train; write the newest checkpoint to --out.")] = False,
        code: Annotated[float, typer.Option(help="Share of rows that are code.", min=0, max=1)] = 0.65,
        patience: Annotated[
            int, typer.Option(min=0, help="Evaluations without improvement before training stops (0: never).")
        ] = 0,
        probe_every: Annotated[int, typer.Option(min=1, help="Steps between evaluations on held-out text.")] = 200,
        log_every: Annotated[int, typer.Option(min=1, help="Steps between lines of the log.")] = 10,
        save_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 300,
        seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights and the order of text.")] = 0,
        bf16: Annotated[bool, typer.Option(help="Compute in bfloat16; weights stay float32.")] = True,
        threads: Annotated[int, typer.Option(help="Number of CPU threads (0: torch's choice).", min=0)] = 0,
    ) -> None:
        quiet(threads or None)
        team = joined()
        target, tokenizer = load(model, "bfloat16" if bf16 else "float32", "cpu" if shared else None)
        if shared:
            spread(target, team)
        plan = Plan(parse_stages(stage or [f"{length}:{steps}"], target.positions), step_tokens, decay)
        frozen, folder = Frozen(target), work or out.with_name(out.name + ".run")
        run = TrainingRun(
            plan,
            folder,
            provenance.command(),
            (matrix_rate, other_rate),
            seed=seed,
            code=code,
            bf16=bf16,
            resume=resume,
            stop_at=stop_at,
            probe_every=probe_every,
            patience=patience,
            save_seconds=save_seconds,
            log_every=log_every,
            parts=accumulate,
            team=team,
        )
        sources = Sources(text, environment if environment is not None else not text, package_cap, dataset_cap)
        if not team.first:
            team.wait()  # until the first process has tokenised the text
        corpus, heldout = corpora(frozen, tokenizer, sources, folder)
        if team.first:
            team.wait()
        torch.manual_seed(seed)
        objective, options = build(training, frozen, corpus, pairs(option))
        module = objective.module.to(target.device)
        if start is not None:
            fill(module, read_weights(start / WEIGHTS), str(start))
        if not export_only:
            state = run.train(objective, corpus, heldout, {"options": options})
            if stop_at and state["step"] < plan.steps:
                typer.echo(stopped(state["step"], plan.steps))
                return
        if not team.first:
            return
        facts = {f"{name}_tokens": corpus.count(name) for name in TEXT_KINDS} | {"documents": len(corpus.names)}
        record = {"parameters": sum(p.numel() for p in module.parameters()), **facts, **run.finish(module)}
        kind.save(module.to(torch.bfloat16), out, target, record, tokenizer)
        typer.echo(f"step {record['step']}, {record['parameters']} parameters -> {out}")

    return train


def stopped(step: int, steps: int) -> str:
    return (
        f"stopped at step {step} of {steps}: continue with --resume, or write the drafter or model with --export-only"
    )


def build(
    training: Training, frozen: Frozen, corpus: Corpus, given: dict[str, str]
) -> tuple[Objective, dict[str, Any]]:
    """-> the objective with these options, given as text, and the values of all its options. Raises InputError."""
    objective = training.objective()
    options = dict(read(f"train {training.command}", declared(objective), given, text=True))
    return objective(frozen, corpus, **options), options
