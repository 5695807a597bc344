"""`longdraft audit`: checks that a method, or a server's speculation, is lossless on texts."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from longdraft.cli import common
from longdraft.cli.audit_url import UrlOptions, audit_url
from longdraft.cli.option_groups import DrafterOptions, MethodOptions, TargetOptions, expand
from longdraft.cli.sampling_options import sampling_option
from longdraft.errors import InputError
from longdraft.sampling_parameters import SEED, TEMPERATURE


@expand
def audit(
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(
            help="A UTF-8 text file; may be repeated (with --url, default: a novel in the package)."
        ),
    ] = None,
    url_options: UrlOptions = UrlOptions(),
    model: common.Model = "bundled",
    method_options: MethodOptions = MethodOptions(),
    drafter_options: DrafterOptions = DrafterOptions(),
    tokens: Annotated[
        int, typer.Option(min=1, help="New tokens per file, greedy and for each seed.")
    ] = 256,
    prompt_tokens: Annotated[
        int,
        typer.Option(min=1, help="Maximum tokens per prompt; a long file gives several prompts."),
    ] = 2048,
    target_options: TargetOptions = TargetOptions(dtype="float32"),
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest difference of two scores that counts as a tie; 0: there are no ties. "
            "Default: 0 for an exact"
            " backend, otherwise 0.001 in float32 and 0.25 in bfloat16."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        sampling_option(
            TEMPERATURE, "Sampling temperature; 0 is greedy (default: both greedy and 1)."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1 << 10, help="Number of seeds for sampled decoding.")
    ] = 1,
    seed: Annotated[int, sampling_option(SEED, "The first seed.")] = SEED.default,
    out: Annotated[
        Path | None, typer.Option(help="Write the record to this file, updated during the audit.")
    ] = None,
    prompt_cache: common.PromptCache = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the audit in --out.")] = False,
    as_json: common.Json = False,
    threads: common.Threads = None,
) -> None:
    """Decode texts plainly and by a method, and explain every difference: a tie within rounding, or
    a failure.

    The exit status is 1 if there is a failure, or if there are more ties than plain decoding has
    with itself in wider passes. After a tie, the method continues from plain decoding's output, so
    that all of it is compared.

    With --url, a server's answers with speculation are compared with its answers without.
    """
    if url_options.url is not None:
        audit_url(url_options, prompt_file or [], tokens, seed, tolerance, as_json)
        return
    from rich.console import Console

    from longdraft.audit.audit_log import AuditLog, sentences, table
    from longdraft.audit.audit_plan import ways, windows
    from longdraft.audit.lossless_audit import Audit
    from longdraft.audit.ties import WIDTH, default_tolerance
    from longdraft.cli import prompts
    from longdraft.recording.record_origin import provenance, relative

    spec = method_options.spec(drafter_options, target_options.trained(model), seed)
    kept_in = common.check_prompt_cache(prompt_cache, folder=True)
    texts = prompts.gather(None, prompt_file or [], None)
    chosen = ways(temperature, seeds, seed)
    target, tokenizer = common.load_target(model, target_options, threads)
    rows = prompts.encode(texts, tokenizer, None)
    per_text = [
        windows(relative(t.name), row, prompt_tokens, tokens, target.positions)
        for t, row in zip(texts, rows, strict=True)
    ]
    limit = default_tolerance(target) if tolerance is None else tolerance
    job = Audit(
        target,
        lambda: spec.build(target),
        [passage for passages in per_text for passage in passages],
        chosen,
        limit,
    )
    job.kept = common.prompt_files(kept_in, target)
    job.check()
    shared = provenance(target, seed)
    digest = sha256(json.dumps([(p.tokens, p.new) for p in job.prompts]).encode()).hexdigest()
    about = {"method": spec.name, "options": spec.options, **spec.origin, "tolerance": limit}
    settings = {
        "model": shared["model"],
        "weights_sha256": shared["weights_sha256"],
        "rope": target.rope,
        "weights": target.weights,
        "kv": target.kv,
        "activations": target.activations,
        "dtype": target_options.dtype,
        **about,
    }
    settings |= {
        "ways": [str(w) for w in chosen],
        "control_width": WIDTH if limit else None,
        "prompts_sha256": digest,
    }
    if resume and target.team.size > 1:
        raise InputError("--resume is for one process: start it without torchrun")
    log = AuditLog(
        out if target.team.first else None, settings, len(job.prompts) * len(chosen), resume
    )
    log.shared = about | shared
    interrupted = watch(job, log)
    common.say("" if job.kept is None else job.kept.note)
    record: dict[str, Any] = log.record() | ({"interrupted": True} if interrupted else {})
    if as_json:
        print(json.dumps(record))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
        console.print(table(record["runs"]))
        for line in sentences(record, limit):
            console.print(line, soft_wrap=True, markup=False)
        if interrupted:
            typer.echo(
                "Interrupted: these are the results so far"
                + (f"; --resume continues {out}." if out else ".")
            )
    wrong = record["failures"] or record["too_many_ties"]
    if interrupted or wrong:
        raise typer.Exit(1 if wrong else 130)


def watch(job: Any, log: Any) -> bool:
    """Run the audit with a progress bar; returns whether it was interrupted."""
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    with common.progress(job.steps, TaskProgressColumn(), TimeRemainingColumn()) as tick:
        log.write()
        try:
            for result in job.run(tick, log.known):
                log.add(result)
        except KeyboardInterrupt:
            return True
    return False
