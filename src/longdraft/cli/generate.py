"""`longdraft generate`: its options. job.py does the work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from longdraft.cli import common
from longdraft.cli.constraint_options import ConstraintOptions
from longdraft.cli.option_groups import DrafterOptions, MethodOptions, TargetOptions, expand
from longdraft.cli.sampling_options import (
    Eta,
    MinP,
    Penalty,
    Temperature,
    TopK,
    TopP,
    Window,
    sampling_option,
)
from longdraft.sampling_parameters import ETA, MIN_P, SEED, TEMPERATURE, TOP_K, TOP_P, WINDOW


@expand
def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The text to continue.")
    ] = None,
    prompt_file: Annotated[
        list[Path],
        typer.Option(
            help="A text file to continue (-: standard input); repeat it to decode several rows "
            "in a batch."
        ),
    ] = [],  # noqa: B006
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N tokens of each file.")
    ] = None,
    model: common.Model = "bundled",
    method_options: MethodOptions = MethodOptions(),
    max_new_tokens: common.NewTokens = 256,
    target_options: TargetOptions = TargetOptions(),
    temperature: Temperature = TEMPERATURE.default,
    top_k: TopK = TOP_K.default,
    top_p: TopP = TOP_P.default,
    min_p: MinP = MIN_P.default,
    eta: Eta = ETA.default,
    penalty: Penalty = None,
    penalty_window: Window = WINDOW.default,
    seed: Annotated[
        int, sampling_option(SEED, "Seed of random numbers; row b uses row_seed(seed, b).")
    ] = SEED.default,
    drafter_options: DrafterOptions = DrafterOptions(),
    constraint_options: ConstraintOptions = ConstraintOptions(),
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after end tokens.")
    ] = False,
    control_tokens: Annotated[
        bool,
        typer.Option(
            "--control-tokens",
            help="Parse special tokens in the prompt, such as <|im_end|>, instead of reading "
            "them as text.",
        ),
    ] = False,
    accept: common.Accept = None,
    as_json: common.Json = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Also run plain decoding: report the speedup and compare the outputs."
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace of every step to this file: .json, or .html to see it in a browser."
        ),
    ] = None,
    prompt_cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the prompt's keys and values in this file; a cached beginning is not "
            "prefilled again.",
        ),
    ] = None,
    threads: common.Threads = None,
) -> None:
    """Continue a prompt with any method. The output is the same as that of plain decoding."""
    from longdraft.cli import prompts, trace_file
    from longdraft.cli.job import Job, Printer
    from longdraft.cli.show import summary
    from longdraft.core.sampling import Sampler
    from longdraft.errors import InputError
    from longdraft.prompts.prompt_file import PromptFile

    if trace is not None:
        trace_file.check(trace, len(prompt_file))
    if prompt_cache is not None and len(prompt_file) > 1:
        raise InputError(
            "--prompt-cache keeps one prompt: give one --prompt-file, or leave --prompt-cache out"
        )
    kept_in = common.check_prompt_cache(prompt_cache, folder=False)
    texts = prompts.gather(prompt, prompt_file, prompt_tokens)
    constraint_options.check()
    sampler = Sampler(temperature, top_k, top_p, min_p, eta, penalty, penalty_window)
    spec = method_options.spec(drafter_options, target_options.trained(model), seed)
    target, tokenizer = common.load_target(model, target_options, threads)
    rows = prompts.encode(texts, tokenizer, prompt_tokens, control_tokens)
    sampler = replace(sampler, constraint=constraint_options.constraint(target, tokenizer))
    kept = None if kept_in is None else PromptFile(kept_in, target)
    job = Job(target, tokenizer, spec, sampler, seed, accept, trace is not None, kept)
    printer = None if as_json else Printer(tokenizer, texts)
    record = job.run(rows, max_new_tokens, () if ignore_eos else None, compare, printer)
    if trace is not None and job.trace is not None and target.team.first:
        trace_file.write(trace, job.trace.model_dump_json())
    if kept is not None:
        common.say(kept.note)
    if as_json:
        print(json.dumps(record))
    else:
        typer.echo(summary(record), err=True)
    if "interrupted" in record:
        raise typer.Exit(130)
    if "damage" in record or (record["exact"] and record.get("equal") is False):
        raise typer.Exit(1)
