"""`longdraft bench` measures methods side by side; `longdraft report` makes tables and plots from
its records.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from longdraft.cli import common, processes
from longdraft.cli.option_groups import DrafterOptions, TargetOptions, expand
from longdraft.cli.sampling_options import Penalty, Seed, Temperature, TopP
from longdraft.errors import InputError
from longdraft.sampling_parameters import SEED, TEMPERATURE, TOP_P


@expand
def bench(
    methods: Annotated[
        str,
        typer.Option(
            help="Methods with commas; vegas@gamma=4 sets an option; hf-dynamic and hf-static "
            "are baselines."
        ),
    ] = "plain,vegas",
    task: Annotated[
        str,
        typer.Option(
            help="speed; anchored: acceptance at many positions of a text; steps: cost of "
            "single operations."
        ),
    ] = "speed",
    model: common.Model = "bundled",
    text: Annotated[
        str,
        typer.Option(
            help="code, book or code,book: texts that the bundled model was not trained on."
        ),
    ] = "code",
    prompt_file: common.PromptFiles = [],  # noqa: B006
    ask: Annotated[
        str,
        typer.Option(
            help="Task speed: ask this about each text, in the model's chat template; answers "
            "may end."
        ),
    ] = "",
    suite: Annotated[
        str,
        typer.Option(
            help="edit, repo, question, summary, chat, long: built-in tasks; or a .jsonl file "
            "of tasks."
        ),
    ] = "",
    instances: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1 << 20,
            help="--suite: number of tasks of each kind (default: 3; from a file: all).",
        ),
    ] = None,
    context: Annotated[
        str,
        typer.Option(
            help="Number of prompt tokens; several with commas (default: 4096; a suite's file: "
            "its own lengths)."
        ),
    ] = "",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of new tokens per row (default: 256; --suite: the task's own).",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=1024, help="Number of rows decoded in a batch.")
    ] = 1,
    repeat: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 20, help="How often each method is measured (default: 5; --suite: 1)."
        ),
    ] = None,
    anchors: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Task anchored: positions per text and context.")
    ] = 200,
    warmup_rounds: Annotated[
        int, typer.Option(min=0, help="Task anchored: speculative steps before the measured one.")
    ] = 0,
    shape: Annotated[
        str,
        typer.Option(
            help="LAYERSxHIDDEN or hybrid:LAYERSxHIDDEN: random weights of this shape, to "
            "measure cost alone."
        ),
    ] = "",
    accept: common.Accept = None,
    temperature: Temperature = TEMPERATURE.default,
    top_p: TopP = TOP_P.default,
    penalty: Penalty = None,
    recommended: Annotated[
        bool,
        typer.Option(
            "--recommended", help="Sample as the model's makers recommend, instead of greedily."
        ),
    ] = False,
    target_options: TargetOptions = TargetOptions(),
    drafter_options: DrafterOptions = DrafterOptions(),
    seed: Seed = SEED.default,
    option: Annotated[
        list[str],
        typer.Option(
            "-o", "--option", help="METHOD.KEY=VALUE: an option of a method; may be repeated."
        ),
    ] = [],  # noqa: B006
    peers: Annotated[
        str,
        typer.Option(
            help="Other engines to compare with, in the same run: llama.cpp,openvino,transformers."
        ),
    ] = "",
    peer_model: Annotated[
        Path | None,
        typer.Option(
            help="The same model as a GGUF file, for other engines (default: the target's own)."
        ),
    ] = None,
    peer_draft: Annotated[
        list[Path],
        typer.Option(
            help="A small model for their draft speculation: a GGUF file, or a folder; may be "
            "repeated."
        ),
    ] = [],  # noqa: B006
    peer_llama_server: Annotated[
        Path | None,
        typer.Option(
            help="llama.cpp's llama-server, built for this machine (default: the wheel, which "
            "is not)."
        ),
    ] = None,
    peer_openvino: Annotated[
        Path | None,
        typer.Option(
            help="A Python interpreter that has openvino-genai (default: this one, if it has it)."
        ),
    ] = None,
    peer_only: Annotated[
        str,
        typer.Option(
            help="Measure only these rows of other engines, named as in tables: "
            "llama.cpp@fa=on,openvino."
        ),
    ] = "",
    prompt_cache: common.PromptCache = None,
    out: Annotated[
        Path | None, typer.Option(help="Append the records to this file, as JSON lines.")
    ] = None,
) -> None:
    """Measure methods side by side, print medians, and append one record per measurement to
    --out.
    """
    from longdraft.bench import inputs, shapes
    from longdraft.bench.peers.choice import Choice
    from longdraft.bench.selection import parse
    from longdraft.bench.speed import Speed
    from longdraft.bench.steps import Steps
    from longdraft.bench.suite import SuiteRun
    from longdraft.bench.tasks.suites import Suite
    from longdraft.bench.teacher_forced import TeacherForced
    from longdraft.core.sampling import Sampler
    from longdraft.models.recommended import recommended_sampler

    drafters = drafter_options.drafter_weights("" if shape else target_options.trained(model), seed)
    chosen = parse(methods, option, drafters)
    contexts = _contexts(context or "4096")
    sampler = Sampler(temperature, top_p=top_p, penalty=penalty)
    if task not in ("speed", "anchored", "steps"):
        raise InputError(f"unknown task {task!r}: choose speed, anchored or steps")
    if shape and target_options.rope:
        raise InputError(
            "--rope extends a model's trained positions, and --shape has no trained model: "
            "leave one out"
        )
    if shape and target_options.weights:
        raise InputError(
            "--weights quantizes a model as it is loaded, and --shape loads none: leave one out"
        )
    for name, given in (("--kv", target_options.kv), ("--activations", target_options.activations)):
        if shape and given:
            raise InputError(
                f"{name} is of a model that is loaded, and --shape loads none: leave one out"
            )
    if task == "anchored" and (shape or accept is not None or batch > 1):
        raise InputError(
            "task anchored measures real acceptance, row by row: leave --shape, --accept, "
            "--batch out"
        )
    if shape and task == "speed" and accept is None and any(e.speculative for e in chosen):
        raise InputError(
            "the acceptance with random weights of --shape means nothing: add --accept K"
        )
    if ask and (task != "speed" or shape):
        raise InputError("--ask is for task speed with a real model: leave it out")
    if processes.count() > 1 and (shape or task == "steps" or peers):
        raise InputError(
            "--shape, --peers and task steps are for one process: start it without torchrun"
        )
    if suite and (task != "speed" or shape or accept is not None or batch > 1 or ask):
        raise InputError(
            "--suite decodes its own tasks one by one: leave --task, --shape, --accept, "
            "--batch, --ask out"
        )
    if instances and not suite:
        raise InputError("--instances is of --suite: leave it out")
    if recommended and (shape or (temperature, top_p, penalty) != (0.0, 1.0, None)):
        raise InputError(
            "--recommended sets the sampling: leave --shape, --temperature, --top-p, --penalty out"
        )
    documents = tuple((f.name, inputs.read(f)) for f in prompt_file) if suite else ()
    of_suite = (
        Suite(suite, _contexts(context) if context else [], instances, seed, documents)
        if suite
        else None
    )
    others = Choice(peers, peer_model, peer_draft, peer_llama_server, peer_openvino, peer_only)
    if others.chosen and (task != "speed" or shape or accept is not None):
        raise InputError(
            "--peers decode real text by task speed: leave --task, --shape and --accept out"
        )
    if others.chosen and (ask or recommended or (sampler.top_p, sampler.divisor) != (1.0, 1.0)):
        raise InputError(
            "--peers decode plain texts with the temperature alone: leave --ask, "
            "--recommended, --top-p, --penalty out"
        )
    repeat = repeat or (1 if suite else 5)
    if prompt_cache is not None and shape:
        raise InputError(
            "--prompt-cache keeps prompts of a model that is loaded: leave --shape or "
            "--prompt-cache out"
        )
    kept_in = common.check_prompt_cache(prompt_cache, folder=True)
    if shape:
        target = shapes.random_model(shape, target_options.dtype, seed)
        tokenizer = None
        texts = [inputs.random_text(max(contexts) + batch, target.vocab, seed)]
        common.settle()
    else:
        target, tokenizer = common.load_target(model, target_options)
        sampler = recommended_sampler(target) if recommended else sampler
        texts = (
            []
            if suite
            else inputs.texts([t.strip() for t in text.split(",")], prompt_file, tokenizer)
        )
        texts = inputs.ask(texts, ask, tokenizer) if ask else texts
    kept = common.prompt_files(kept_in, target)
    if task == "steps":
        _run(Steps(target, texts, contexts, repeat, seed, kept=kept), out)
    elif task == "anchored":
        job = TeacherForced(
            target, chosen, texts, contexts, anchors, sampler, seed, warmup_rounds, kept=kept
        )
        _run(job, out if target.team.first else None)
    else:
        engines, left_out = others.find(target)
        for line in left_out:
            typer.echo(line, err=True)
        entries = [*chosen, *engines]
        if of_suite is not None:
            ends = not others.chosen
            job = SuiteRun(
                target,
                tokenizer,
                entries,
                of_suite,
                max_new_tokens,
                repeat,
                sampler,
                seed,
                ends,
                kept=kept,
            )
        else:
            job = Speed(
                target,
                tokenizer,
                entries,
                texts,
                contexts,
                new_tokens=max_new_tokens or 256,
                batch=batch,
                repeat=repeat,
                sampler=sampler,
                seed=seed,
                accept=accept,
                kept=kept,
            )
        _run(job, out if target.team.first else None)


def _run(job: Any, out: Path | None) -> None:
    """Do a task's work with a progress bar, then print tables; after an interrupt, of the records
    so far.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn

    from longdraft.bench.report import rich_table, sections
    from longdraft.recording.record_file import RecordFile

    job.check()
    log = RecordFile(out)
    records = []
    stopped = False
    with common.progress(job.steps, MofNCompleteColumn(), TimeElapsedColumn()) as tick:
        try:
            for record in job.run(log, lambda label: tick(1, label)):
                records.append(record)
        except KeyboardInterrupt:
            stopped = True
    console = Console(width=None if sys.stdout.isatty() else 160)
    for section in sections(
        [r for r in records if r["task"] != "left out"]
    ):  # why peers are left out is said below
        console.print(rich_table(section))
        for note in section.notes[:-1]:
            console.print(note, highlight=False)
    common.say("" if job.kept is None else job.kept.note)
    for line in getattr(job, "left_out", ()):
        typer.echo(line, err=True)
    if stopped:
        typer.echo(
            f"interrupted; the records so far are {'in ' + str(out) if out else 'shown above'}",
            err=True,
        )
        raise typer.Exit(130)
    if any("damage" in r for r in records):
        raise typer.Exit(1)


def _contexts(text: str) -> list[int]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(p.isdecimal() and int(p) for p in parts):
        raise InputError(
            f"context is {text!r}: give token counts of 1 or more, like 4096 or 4096,8192"
        )
    return [int(p) for p in parts]


def report(
    files: Annotated[list[Path], typer.Argument(help="Files that `longdraft bench --out` wrote.")],
    out: Annotated[Path, typer.Option(help="The folder for report.md, report.html and plots.")],
) -> None:
    """Make all tables and plots from records alone: Markdown, one self-contained HTML page, and SVG
    files.
    """
    from longdraft.bench.plots import MISSING, available
    from longdraft.bench.records import load
    from longdraft.bench.report_files import write

    markdown, page, *drawn = write(load(files), out)
    typer.echo(f"{markdown}\n{page}")
    if drawn:
        typer.echo(f"{len(drawn)} plots in {drawn[0].parent}")
    if not available():
        typer.echo(MISSING, err=True)
