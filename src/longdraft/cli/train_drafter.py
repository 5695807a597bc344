"""`longdraft train glide|heads|medusa|eagle|budget`: one command line for every kind of drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from longdraft.core.options import pairs
from longdraft.drafters.checkpoint import WEIGHTS, fill, read_weights
from longdraft.drafters.objectives import KINDS, objective
from longdraft.models.loading import load, quiet
from longdraft.training import generations, trainer
from longdraft.training.data import KINDS as TEXT_KINDS
from longdraft.training.data import Sources
from longdraft.training.drafter import Run, corpora
from longdraft.training.frozen import Frozen
from longdraft.training.processes import joined
from longdraft.training.schedule import Plan, parse_stages
from longdraft.training.spread import spread

HELP = {
    "glide": "Train LongSpec's block, which reads the target's own keys.",
    "heads": "Train TokenSwift's chained heads.",
    "medusa": "Train Medusa's heads.",
    "eagle": "Train an EAGLE-3 layer on its own outputs.",
    "budget": "Teach a small model to draft under any budget of its cache.",
}


def command(kind: str) -> Callable[..., None]:
    """The function that typer makes the command of."""

    def train(
        out: Annotated[Path, typer.Option(help="The finished drafter goes here.")],
        model: Annotated[
            str, typer.Option("-m", "--model", help="The target: 'bundled', a folder, a Hub id.")
        ] = "bundled",
        work: Annotated[Path | None, typer.Option(help="Tokenised data, checkpoints, log.jsonl [OUT.run].")] = None,
        text: Annotated[list[str], typer.Option(help="Folder or glob of UTF-8 or .jsonl files, hf:ID; repeated.")] = [],  # noqa: B006
        environment: Annotated[
            bool | None, typer.Option(help="The standard library and installed packages [if no --text].")
        ] = None,
        package_cap: Annotated[int, typer.Option(help="Characters of one installed package, at most.")] = 8_000_000,
        dataset_cap: Annotated[int, typer.Option(help="Characters of one hf: dataset, at most.")] = 50_000_000,
        option: Annotated[list[str], typer.Option("-o", "--option", help="What is learnt: key=value.")] = [],  # noqa: B006
        steps: Annotated[int, typer.Option(min=1, help="Of rows of --length; or give --stage.")] = 2000,
        length: Annotated[int, typer.Option(min=8, help="Tokens of a row.")] = 1024,
        stage: Annotated[list[str], typer.Option(help="LENGTH:STEPS, repeated, in place of both.")] = [],  # noqa: B006
        step_tokens: Annotated[int, typer.Option(help="Tokens of a step, at least one row.", min=8)] = 4096,
        matrix_rate: Annotated[float, typer.Option(help="Muon's learning rate.")] = 0.02,
        other_rate: Annotated[float, typer.Option(help="AdamW's learning rate.")] = 0.003,
        decay: Annotated[float, typer.Option(help="Last share of tokens, its rate falling.", min=0.001, max=1)] = 0.5,
        accumulate: Annotated[int, typer.Option(min=1, help="Parts of a step; processes share them.")] = 1,
        start: Annotated[Path | None, typer.Option(help="A drafter of this kind whose weights to begin with.")] = None,
        shared: Annotated[bool, typer.Option("--spread", help="Processes share the target's layers.")] = False,
        resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")] = False,
        stop_at: Annotated[int, typer.Option(help="Stop after this step, to resume later; 0: never.", min=0)] = 0,
        export_only: Annotated[bool, typer.Option(help="No training: the newest checkpoint to --out.")] = False,
        code: Annotated[float, typer.Option(help="Share of rows that are code.", min=0, max=1)] = 0.65,
        patience: Annotated[int, typer.Option(min=0, help="Looks without a better acceptance; 0: to the end.")] = 0,
        probe_every: Annotated[int, typer.Option(min=1)] = 200,
        log_every: Annotated[int, typer.Option(min=1)] = 10,
        save_seconds: Annotated[float, typer.Option(help="Between checkpoints.")] = 300,
        seed: Annotated[int, typer.Option(min=0)] = 0,
        bf16: Annotated[bool, typer.Option(help="Multiply in bfloat16; weights stay float32.")] = True,
        threads: Annotated[int, typer.Option(help="0: torch's choice.", min=0)] = 0,
    ) -> None:
        quiet(threads or None)
        team = joined()
        target, tokenizer = load(model, "bfloat16" if bf16 else "float32", "cpu" if shared else None)
        if shared:
            spread(target, team)
        plan = Plan(parse_stages(stage or [f"{length}:{steps}"], target.positions), step_tokens, decay)
        frozen, folder = Frozen(target), work or out.with_name(out.name + ".run")
        run = Run(
            plan,
            folder,
            trainer.command_line(),
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
            team.wait()  # for the first to tokenise the text
        corpus, heldout = corpora(frozen, tokenizer, sources, folder)
        if team.first:
            team.wait()
        torch.manual_seed(seed)
        learns, taken = objective(kind, frozen, corpus, pairs(option))
        if start is not None:
            fill(learns.part, read_weights(start / WEIGHTS), str(start))
        if not export_only:
            state = run.train(learns, corpus, heldout, {"options": taken})
            if stop_at and state["step"] < plan.steps:
                typer.echo(f"stopped at step {state['step']} of {plan.steps}: --resume goes on, --export-only exports")
                return
        if not team.first:
            return
        facts = {f"{name}_tokens": corpus.count(name) for name in TEXT_KINDS} | {"documents": len(corpus.names)}
        record = run.export(KINDS[kind][1], learns.part, frozen, out, facts, tokenizer)
        typer.echo(f"step {record['step']}, {record['parameters']} parameters -> {out}")

    train.__doc__ = f"{HELP[kind]}\n\n-o takes: {', '.join(KINDS[kind][0].options)}."
    return train


def write_text(
    out: Annotated[Path, typer.Option(help="JSON lines go here; what is there already stays.")],
    model: Annotated[str, typer.Option("-m", "--model", help="'bundled', a folder, a Hub id.")] = "bundled",
    work: Annotated[Path | None, typer.Option(help="Tokenised text [OUT.run].")] = None,
    text: Annotated[list[str], typer.Option(help="Folder or glob of files to take beginnings from, repeated.")] = [],  # noqa: B006
    environment: Annotated[bool | None, typer.Option(help="This Python's library and packages.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Texts.")] = 1000,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of each beginning.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 448,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy: small models then go in circles.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    threads: Annotated[int, typer.Option(help="0: torch's choice.", min=0)] = 0,
) -> None:
    """Continue pieces of a text by the target: its own words, to train drafters on. Run again, it goes on."""
    quiet(threads or None)
    target, tokenizer = load(model, dtype)
    sources = Sources(text, environment if environment is not None else not text)
    corpus, _ = corpora(Frozen(target), tokenizer, sources, work or out.with_name(out.name + ".run"))
    with trainer.bar("{task.completed}/{task.total} texts") as shown:
        task = shown.add_task("text", total=count)
        before = generations.write(
            target, tokenizer, corpus, out, count, prompt_tokens, max_new_tokens, temperature, seed,
            lambda: shown.advance(task),
        )  # fmt: skip
    typer.echo(f"{max(count - before, 0)} texts written, {max(before, count)} in {out}")
