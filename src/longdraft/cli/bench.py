"""`longdraft bench` and `longdraft report`: arguments in, calls out."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from longdraft.bench import inputs, report, shapes
from longdraft.bench.run import Speed, speed
from longdraft.bench.steps import Steps, steps
from longdraft.bench.teacher_forced import TeacherForced, teacher_forced
from longdraft.core.sampling import Sampler
from longdraft.engine import records as record
from longdraft.errors import InputError
from longdraft.methods import spec as entries
from longdraft.methods.drafter_weights import Parts
from longdraft.models.loading import load
from longdraft.ops.threads import pin

app = typer.Typer(no_args_is_help=True, help="Measure, and make tables of what was measured.")


@app.command("bench")
def bench(
    methods: Annotated[
        str, typer.Option(help="Comma list; name@key=value is a variant; hf-dynamic, hf-static too.")
    ] = "plain,vegas",
    task: Annotated[
        str, typer.Option(help="speed; anchored: acceptance at many places; steps: their costs.")
    ] = "speed",
    model: Annotated[str, typer.Option("-m", "--model", help="bundled, a folder, or a Hub id.")] = "bundled",
    text: Annotated[str, typer.Option(help="code, book or code,book: held out from the bundled model.")] = "code",
    prompt_file: Annotated[list[Path], typer.Option(help="A text of your own instead; repeat for more.")] = [],  # noqa: B006
    context: Annotated[str, typer.Option(help="Prompt tokens; a comma list measures each.")] = "4096",
    max_new_tokens: Annotated[int, typer.Option()] = 256,
    batch: Annotated[int, typer.Option(help="Rows decoded side by side.")] = 1,
    repeat: Annotated[int, typer.Option(help="Turns of every method.")] = 5,
    anchors: Annotated[int, typer.Option(help="Places of task anchored, per text and context.")] = 200,
    warmup_rounds: Annotated[int, typer.Option("--settle", help="Task anchored: steps before the measured one.")] = 0,
    shape: Annotated[str, typer.Option(help="LAYERSxHIDDEN: random weights and tokens, for cost alone.")] = "",
    accept: Annotated[float | None, typer.Option(help="Accept so many drafts a step, by an oracle.")] = None,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    drafter: Annotated[str | None, typer.Option(help="Folder of the drafter that methods need.")] = None,
    random_drafter: Annotated[
        bool, typer.Option("--random-drafter", help="Random weights for whatever drafter a method needs.")
    ] = False,
    any_target: Annotated[
        bool, typer.Option("--any-target", help="Also a --drafter that was trained for another target.")
    ] = False,
    seed: Annotated[int, typer.Option()] = 0,
    option: Annotated[list[str], typer.Option("-o", help="METHOD.KEY=VALUE; repeat for more.")] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Append the records here, as JSON lines.")] = None,
) -> None:
    """Measure methods side by side; prints medians, and appends one record per measurement to --out."""
    _at_least(1, anchors=anchors, batch=batch, repeat=repeat, **{"max-new-tokens": max_new_tokens})
    _at_least(0, warmup_rounds=warmup_rounds, seed=seed)
    parts = Parts(drafter, random_drafter, seed, "" if shape else model, any_target)
    chosen, contexts, sampler = entries.parse(methods, option, parts), _contexts(context), Sampler(temperature)
    if task not in ("speed", "anchored", "steps"):
        raise InputError(f"unknown task {task!r}: choose speed, anchored or steps")
    if task == "anchored" and (shape or accept is not None or batch > 1):
        raise InputError("task anchored measures real acceptance, row by row: leave --shape, --accept, --batch out")
    if shape and task == "speed" and accept is None and any(e.speculative for e in chosen):
        raise InputError("--shape has random weights, whose acceptance means nothing: add --accept K")
    if shape:
        target, tokenizer = shapes.random_model(shape, dtype, seed), None
        texts = [inputs.random_text(max(contexts) + batch, target.vocab, seed)]
    else:
        target, tokenizer = load(model, dtype)
        texts = inputs.texts([t.strip() for t in text.split(",")], prompt_file, tokenizer)
    pin()
    gc.freeze()  # what is loaded stays: to look through it again takes the collector 0.2 s
    entries.check(chosen, target, accept)
    if task == "steps":
        costs = Steps(texts, contexts, repeat, seed)
        costs.check(target)
        _run(lambda log, tick: steps(costs, target, log, tick), costs.steps, out)
    elif task == "anchored":
        job = TeacherForced(chosen, texts, contexts, anchors, sampler, seed, warmup_rounds)
        job.check(target)
        _run(lambda log, tick: teacher_forced(job, target, log, tick), job.steps, out)
    else:
        plan = Speed(chosen, texts, contexts, max_new_tokens, batch, repeat, sampler, seed, accept)
        plan.check(target)
        _run(lambda log, tick: speed(plan, target, tokenizer, log, tick), plan.steps, out)


@app.command("report")
def make_report(
    files: Annotated[list[Path], typer.Argument(help="What bench --out wrote.")],
    out: Annotated[Path, typer.Option(help="Folder of report.md.")],
) -> None:
    """Rebuild every table from records alone."""
    typer.echo(f"{report.write(record.load(files), out)}")


def _run(work: Callable[[record.Log, Callable[[str], None]], Iterator[dict[str, Any]]], steps: int, out: Path | None):
    """Show progress, then tables; what was measured before an interruption stays."""
    log, found, stopped = record.Log(out), [], False
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    quiet = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as progress:
        bar = progress.add_task("", total=steps)

        def tick(what: str) -> None:
            progress.update(bar, advance=1, description=what)

        try:
            for r in work(log, tick):
                found.append(r)
        except KeyboardInterrupt:
            stopped = True
    console = Console(width=None if sys.stdout.isatty() else 160)
    for section in report.sections(found):
        console.print(report.rich_table(section))
        for note in section.notes[:-1]:
            console.print(note, highlight=False)
    if stopped:
        typer.echo(f"interrupted; what was measured is {'in ' + str(out) if out else 'shown above'}", err=True)
        raise typer.Exit(130)
    if any("damage" in r for r in found):
        raise typer.Exit(1)


def _contexts(text: str) -> list[int]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(p.isdecimal() and int(p) for p in parts):
        raise InputError(f"context is {text!r}: give token counts of 1 or more, like 4096 or 4096,8192")
    return [int(p) for p in parts]


def _at_least(low: int, **values: int) -> None:
    for name, value in values.items():
        if value < low:
            raise InputError(f"{name} is {value}: give {low} or more")


def main() -> None:
    try:
        app()
    except InputError as error:
        typer.echo(f"longdraft: {error}", err=True)
        raise SystemExit(2) from None
