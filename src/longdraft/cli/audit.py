"""`longdraft audit`: is a method lossless on this model and these texts?"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from longdraft.cli.generate import MOST_SEED
from longdraft.core.options import pairs

app = typer.Typer(add_completion=False)


@app.command()
def audit(
    prompt_file: Annotated[list[Path], typer.Option(help="A text file; repeat for more.")],
    model: Annotated[str, typer.Option("-m", "--model", help="'bundled', a folder, or a Hub id.")] = "bundled",
    method: Annotated[str, typer.Option(help="See `longdraft methods`.")] = "vegas",
    option: Annotated[list[str] | None, typer.Option("-o", "--option", help="The method's key=value.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Folder of the drafter that the method needs.")] = None,
    random_drafter: Annotated[
        bool, typer.Option("--random-drafter", help="One with random weights in its place, drawn from --seed.")
    ] = False,
    any_target: Annotated[
        bool, typer.Option("--any-target", help="Also a --drafter that was trained for another target.")
    ] = False,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens per file and way of decoding.")] = 256,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Of each prompt; a file gives several where it can.")
    ] = 2048,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="How close two scores tie; 0: none do. Unset: 0 where the native step runs, which promises the same"
            " bits; elsewhere 0.001 in float32 and 0.25 in bfloat16."
        ),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; unset: both greedy and 1.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds a sampled text is decoded with.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="The first of them.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the record here, after every run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the audit in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Of the CPU; torch's choice if unset.")] = None,
) -> None:
    """Decode each text plainly and by the method, and explain every difference: a tie within rounding, or a failure.

    Exit status 1 if there is a failure, or if there are more ties than plain decoding has with itself in wider passes.
    What follows a tie is compared too: the method goes on from the plain text.
    """
    from hashlib import sha256

    from longdraft.audit.audit import Audit, ways, windows
    from longdraft.audit.log import AuditLog, sentences, table
    from longdraft.audit.ties import WIDTH, default_tolerance
    from longdraft.cli import prompts
    from longdraft.engine.records import provenance, relative
    from longdraft.methods import find
    from longdraft.methods.drafter_weights import DrafterWeights
    from longdraft.methods.spec import MethodSpec
    from longdraft.models.loading import load, quiet
    from longdraft.ops.threads import pin

    find(method)
    entry = MethodSpec(
        method, method, pairs(option or []), DrafterWeights(drafter, random_drafter, seed, model, any_target)
    )
    texts = prompts.gather(None, prompt_file, None)
    chosen = ways(temperature, seeds, seed)
    quiet(threads)
    target, tokenizer = load(model, dtype)
    pin()
    gc.freeze()  # what is loaded stays: to look through it again takes the collector 0.2 s
    rows = prompts.encode(texts, tokenizer, None)
    cut = [
        windows(relative(t.name), row, prompt_tokens, tokens, target.positions)
        for t, row in zip(texts, rows, strict=True)
    ]
    limit = default_tolerance(target) if tolerance is None else tolerance
    job = Audit(target, lambda: entry.build(target), [p for found in cut for p in found], chosen, limit)
    job.check()
    shared = provenance(target, seed)
    digest = sha256(json.dumps([(p.tokens, p.new) for p in job.prompts]).encode()).hexdigest()
    settings = {"model": shared["model"], "weights_sha256": shared["weights_sha256"], "dtype": dtype, "method": method}
    settings |= {"options": entry.options, **entry.origin, "tolerance": limit, "ways": [str(w) for w in chosen]}
    settings["control_width"] = WIDTH if limit else None
    log = AuditLog(out, settings | {"prompts_sha256": digest}, len(job.prompts) * len(chosen), resume)
    log.shared = {"method": method, "options": entry.options, **entry.origin, "tolerance": limit, **shared}
    interrupted = watch(job, log)
    record: dict[str, Any] = log.record() | ({"interrupted": True} if interrupted else {})
    if as_json:
        print(json.dumps(record))
    else:
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
        console.print(table(record["runs"]))
        for line in sentences(record, limit):
            console.print(line, soft_wrap=True, markup=False)
        if interrupted:
            console.print("Interrupted: this is what there is" + (f"; --resume goes on from {out}." if out else "."))
    wrong = record["failures"] or record["too_many_ties"]
    if interrupted or wrong:
        raise typer.Exit(1 if wrong else 130)


def watch(job: Any, log: Any) -> bool:
    """Run it under a progress bar; whether it was interrupted."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()]
    silent = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as progress:
        bar = progress.add_task("", total=job.steps)

        def tick(count: int, what: str) -> None:
            progress.update(bar, advance=count, description=what or None)

        log.write()
        try:
            for run in job.run(tick, log.known):
                log.add(run)
        except KeyboardInterrupt:
            return True
    return False
