"""`longdraft train glide|heads|medusa|eagle|budget`: one command line for every kind of drafter."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import torch
import typer

from longdraft.cli import common
from longdraft.cli import train_options as o
from longdraft.core.options import declared, pairs, read
from longdraft.drafters.checkpoint import WEIGHTS, fill, read_weights
from longdraft.drafters.kind import DrafterKind, Training
from longdraft.models.loading import load, quiet
from longdraft.training.data import TEXT_KINDS, Sources
from longdraft.training.frozen import Frozen
from longdraft.training.processes import joined
from longdraft.training.run import corpora, finish
from longdraft.training.run import train as train_module
from longdraft.training.spread import spread

Option = Annotated[list[str], typer.Option("-o", "--option", help="What to train for, as key=value; repeatable.")]
Patience = Annotated[int, typer.Option(min=0, help="Evaluations without improvement before training stops (0: never).")]


def command(kind: DrafterKind, training: Training) -> Callable[..., None]:
    """The function behind `longdraft train COMMAND`."""

    def train(
        run: o.Run,
        out: Annotated[Path, typer.Option(help="Folder for the finished drafter.")],
        model: common.Model = "bundled",
        work: o.Work = None,
        text: o.Text = [],  # noqa: B006
        environment: o.Environment = None,
        package_cap: o.PackageCap = 8_000_000,
        dataset_cap: o.DatasetCap = 50_000_000,
        option: Option = [],  # noqa: B006
        steps: Annotated[int, typer.Option(min=1, help="Number of steps with rows of --length.")] = 2000,
        length: Annotated[int, typer.Option(min=8, help="Number of tokens per row.")] = 1024,
        stage: o.Stage = [],  # noqa: B006
        accumulate: Annotated[int, typer.Option(min=1, help="Number of parts of a step, divided among processes.")] = 1,
        start: Annotated[Path | None, typer.Option(help="A drafter of this kind whose weights to start from.")] = None,
        shared: Annotated[bool, typer.Option("--spread", help="Divide the target's layers among processes.")] = False,
        patience: Patience = 0,
    ) -> None:
        quiet(run.threads or None)
        team = joined()
        target, tokenizer = load(model, "bfloat16" if run.bf16 else "float32", "cpu" if shared else None)
        if shared:
            spread(target, team)
        frozen, folder = Frozen(target), work or out.with_name(out.name + ".run")
        stages = stage or [f"{length}:{steps}"]
        settings = run.settings(stages, target.positions, folder, patience=patience, parts=accumulate, team=team)
        sources = Sources(text, environment if environment is not None else not text, package_cap, dataset_cap)
        if not team.first:
            team.wait()  # until the first process has tokenised the text
        corpus, heldout = corpora(frozen, tokenizer, sources, folder)
        if team.first:
            team.wait()
        torch.manual_seed(run.seed)
        module_name, function = training.objective.split(":")
        objective_of = getattr(import_module(module_name), function)
        options = dict(read(f"train {training.command}", declared(objective_of), pairs(option), text=True))
        objective = objective_of(frozen, corpus, **options)
        module = objective.module.to(target.device)
        if start is not None:
            fill(module, read_weights(start / WEIGHTS), str(start))
        if not run.export_only:
            state = train_module(objective, corpus, heldout, settings, options)
            if run.stop_at and state["step"] < settings.plan.steps:
                typer.echo(o.stopped(state["step"], settings.plan.steps))
                return
        if not team.first:
            return
        facts = {f"{name}_tokens": corpus.count(name) for name in TEXT_KINDS} | {"documents": len(corpus.names)}
        record = {"parameters": sum(p.numel() for p in module.parameters()), **facts, **finish(module, settings)}
        kind.save(module.to(torch.bfloat16), out, target, record, tokenizer)
        typer.echo(f"step {record['step']}, {record['parameters']} parameters -> {out}")

    return o.with_run(train, o.Run())
