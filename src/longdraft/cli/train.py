"""`longdraft train ...`: the commands that train a target or a drafter."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import torch
import typer

from longdraft.cli import common
from longdraft.cli import train_options as o
from longdraft.cli.option_groups import Rope, Weights, expand
from longdraft.cli.train_text import write_text
from longdraft.core.options import declared, pairs, read
from longdraft.core.places import new_folder
from longdraft.core.processes import joined
from longdraft.drafters.checkpoint import FACTS, WEIGHTS
from longdraft.drafters.kind import DrafterKind, Training
from longdraft.drafters.kinds import KINDS
from longdraft.drafters.released import fill
from longdraft.errors import InputError
from longdraft.models import eight_bits
from longdraft.models.loading import load, quiet
from longdraft.training import data, plot, probes, target, trainer
from longdraft.training.frozen import Frozen
from longdraft.training.kept_states import KeptStates
from longdraft.training.processes import spread
from longdraft.training.run import corpora, finish
from longdraft.training.run import train as run_training
from longdraft.training.turns import Turns

Option = Annotated[
    list[str], typer.Option("-o", "--option", help="What to train for, as key=value; repeatable.")
]
Patience = Annotated[
    int,
    typer.Option(min=0, help="Evaluations without improvement before training stops (0: never)."),
]

States = Annotated[
    Path | None,
    typer.Option(
        help="Keep the target's states in this folder; rows then begin at multiples of their "
        "length."
    ),
]

Answers = Annotated[
    bool,
    typer.Option(
        "--answers",
        help="Train only on the model's answers in conversations, not on the questions.",
    ),
]

app = typer.Typer(no_args_is_help=True, help="Train a model or a drafter.")


@expand
def train_target(
    out: Annotated[Path, typer.Option(help="Folder for the finished model.")],
    work: Annotated[
        Path, typer.Option(help="Folder for tokenized data, checkpoints and log.jsonl.")
    ] = Path("run"),
    stage: o.Stage = ["512:2000"],  # noqa: B006
    text: o.Text = [],  # noqa: B006
    environment: Annotated[
        bool, typer.Option(help="Use the standard library and installed packages.")
    ] = True,
    package_cap: o.PackageCap = 8_000_000,
    dataset_cap: o.DatasetCap = 50_000_000,
    contexts: Annotated[
        str, typer.Option(help="Context lengths of the final evaluation; '' skips it.")
    ] = "512,1024,2048,4096,8192",
    vocab: Annotated[
        int, typer.Option(min=258, max=1 << 20, help="Number of tokens of the vocabulary.")
    ] = 4096,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="Use the tokenizer of 'bundled' or of a model folder, to draft for that model."
        ),
    ] = "",
    architecture: Annotated[
        str,
        typer.Option(
            help="What is trained: qwen3, or qwen3_5_text, a hybrid with recurrent layers."
        ),
    ] = "qwen3",
    layers: Annotated[int, typer.Option(min=1, max=1024, help="Number of layers.")] = 4,
    hidden: Annotated[
        int, typer.Option(min=16, max=1 << 16, help="Width of the hidden states.")
    ] = 256,
    heads: Annotated[int, typer.Option(min=1, max=1024, help="Number of attention heads.")] = 4,
    mlp: Annotated[int, typer.Option(min=16, max=1 << 20, help="Width of the MLP.")] = 704,
    positions: Annotated[
        int, typer.Option(min=16, max=1 << 24, help="Maximum context length.")
    ] = 131072,
    copies: Annotated[
        float, typer.Option(help="Share of rows with repeated spans.", min=0, max=1)
    ] = 0.25,
    guide_to: Annotated[
        int, typer.Option(help="Guide some attention heads before this step.", min=0)
    ] = 0,
    run: o.Run = o.Run(step_tokens=2048, decay=1 / 3, probe_every=500),
) -> None:
    """Train a small model on this machine's Python files and on books, and export it in
    bfloat16.
    """
    out = new_folder(out, replaced=None)
    if math.isnan(copies):
        raise InputError("--copies is nan: give a share from 0 to 1")
    if architecture not in target.ARCHITECTURES:
        raise InputError(
            f"--architecture is {architecture[:40]!r}: choose {' or '.join(target.ARCHITECTURES)}"
        )
    if run.threads:
        torch.set_num_threads(run.threads)
    settings = run.settings(stage, positions, work)
    lengths = [int(c) for c in contexts.split(",") if c.strip().isdecimal()]
    sources = data.Sources(text, environment, package_cap, dataset_cap)
    corpus, heldout = target.prepare(work, sources, vocab, positions, tokenizer)
    model = target.ARCHITECTURES[architecture](
        vocab, layers, hidden, heads, mlp, positions, run.seed
    )
    if not run.export_only:
        loss_of = target.objective(model, corpus, settings, copies, guide_to)
        facts = {"copies": copies, "guide_to": guide_to}
        state = trainer.train(
            model, loss_of, settings, lambda: probes.cheap(model, heldout, vocab), facts
        )
        if state["step"] < settings.plan.steps:
            typer.echo(o.stopped(state["step"], settings.plan.steps))
            return
    facts = {f"{kind}_tokens": corpus.count(kind) for kind in data.TEXT_KINDS} | {
        "documents": len(corpus.names)
    }
    record = target.export(work, out, model, heldout, facts, lengths)
    typer.echo(f"step {record['step']}, {record['parameters']} parameters -> {out}")


def drafter_command(kind: DrafterKind, training: Training) -> Callable[..., None]:
    """The command that trains drafters of this kind."""

    @expand
    def train_drafter(
        out: Annotated[Path, typer.Option(help="Folder for the finished drafter.")],
        model: common.Model = "bundled",
        rope: Rope = None,
        weights: Weights = None,
        corpus_options: o.CorpusOptions = o.CorpusOptions(),
        package_cap: o.PackageCap = 8_000_000,
        dataset_cap: o.DatasetCap = 50_000_000,
        option: Option = [],  # noqa: B006
        steps: Annotated[
            int, typer.Option(min=1, max=1 << 40, help="Number of steps with rows of --length.")
        ] = 2000,
        length: Annotated[
            int, typer.Option(min=8, max=1 << 24, help="Number of tokens per row.")
        ] = 1024,
        stage: o.Stage = [],  # noqa: B006
        accumulate: Annotated[
            int, typer.Option(min=1, help="Number of parts of a step, divided among processes.")
        ] = 1,
        start: Annotated[
            Path | None, typer.Option(help="A drafter of this kind whose weights to start from.")
        ] = None,
        shared: Annotated[
            bool, typer.Option("--spread", help="Divide the target's layers among processes.")
        ] = False,
        patience: Patience = 0,
        states: States = None,
        answers: Answers = False,
        run: o.Run = o.Run(),
    ) -> None:
        quiet(run.threads or None)
        out = _new(out, kind)
        team = joined()
        if states and shared:
            raise InputError("--states and --spread cannot be combined: leave one of them out")
        lm, tokenizer = load(
            model, "bfloat16" if run.bf16 else "float32", "cpu" if shared else None, rope, weights
        )
        if shared:
            lm = spread(lm, team)
        turns = Turns.of(tokenizer) if answers else None
        frozen = KeptStates(lm, states, turns) if states else Frozen(lm, turns)
        folder = corpus_options.folder(out)
        stages = stage or [f"{length}:{steps}"]
        settings = run.settings(
            stages, lm.positions, folder, patience=patience, parts=accumulate, team=team
        )
        sources = corpus_options.sources(package_cap=package_cap, dataset_cap=dataset_cap)
        if not team.first:
            team.wait()  # until the first process has tokenized the text
        corpus, heldout = corpora(frozen, tokenizer, sources, folder)
        if team.first:
            team.wait()
        torch.manual_seed(run.seed)
        module_name, function = training.objective.split(":")
        objective_of = getattr(import_module(module_name), function)
        options = dict(
            read(f"train {training.command}", declared(objective_of), pairs(option), text=True)
        )
        if answers and options.get("labels", "target") != "target":
            raise InputError(
                f"--answers needs -o labels=target, not {options['labels']}: leave one of them out"
            )
        objective = objective_of(frozen, corpus, **options)
        module = objective.module.to(lm.device)
        if start is not None:
            fill(module, eight_bits.read(start / WEIGHTS), str(start))
        if not run.export_only:
            state = run_training(
                objective, corpus, heldout, settings, options, grid=states is not None
            )
            early = run.stop_at or (run.minutes and not trainer.stale(state["probes"], patience))
            if early and state["step"] < settings.plan.steps:
                typer.echo(o.stopped(state["step"], settings.plan.steps))
                return
        if not team.first:
            return
        facts = {f"{name}_tokens": corpus.count(name) for name in data.TEXT_KINDS} | {
            "documents": len(corpus.names)
        }
        record = {
            "parameters": sum(p.numel() for p in module.parameters()),
            **facts,
            **finish(module, settings),
        }
        kind.save(module.to(torch.bfloat16), out, lm, record, tokenizer)
        typer.echo(f"step {record['step']}, {record['parameters']} parameters -> {out}")

    return train_drafter


def _new(out: Path, kind: DrafterKind) -> Path:
    """The folder for the finished drafter, which may hold an earlier one. Raises InputError, before
    any training.
    """
    if kind.files is not None or (out.is_dir() and not (out / FACTS).exists()):
        return new_folder(out, replaced=kind.files or ())
    return new_folder(out, replaced=None)


def plot_run(run: Annotated[Path, typer.Argument(help="The --work folder of a run.")]) -> None:
    """Plot a run's loss and held-out acceptance over its tokens, as RUN/loss.png."""
    typer.echo(plot.draw(run))


app.command("target")(train_target)
app.command("plot")(plot_run)
app.command("text")(write_text)
for kind in KINDS.values():
    if kind.training is not None:
        app.command(kind.training.command, help=kind.training.help)(
            drafter_command(kind, kind.training)
        )
