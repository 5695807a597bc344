"""`longdraft generate`: what its options are. The work is in cli/job.py."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from longdraft.core.options import pairs

app = typer.Typer(add_completion=False)
MOST_SEED = 1 << 62


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The text to continue.")] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(help="A text file to continue (-: standard input); repeated: rows side by side."),
    ] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Only the first N tokens of each file.")] = None,
    model: Annotated[str, typer.Option("-m", "--model", help="'bundled', a folder, or a Hub id.")] = "bundled",
    method: Annotated[str, typer.Option(help="See `longdraft methods`.")] = "vegas",
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", help="The method's key=value; pace=off: draft as deep as it says."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 is off.")] = 0.0,
    eta: Annotated[float, typer.Option(help="Eta sampling; 0 is off.")] = 0.0,
    penalty: Annotated[float, typer.Option(help="Divides the logits of tokens used lately; 1 is off.")] = 1.0,
    penalty_window: Annotated[int, typer.Option(min=1, help="How many tokens are lately.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Row b draws with longdraft.row_seed(seed, b).")] = 0,
    drafter: Annotated[str | None, typer.Option(help="Folder of the drafter that the method needs.")] = None,
    random_drafter: Annotated[
        bool, typer.Option("--random-drafter", help="One with random weights in its place, drawn from --seed.")
    ] = False,
    any_target: Annotated[
        bool, typer.Option("--any-target", help="Also a --drafter that was trained for another target.")
    ] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Decode past end tokens.")] = False,
    control_tokens: Annotated[
        bool, typer.Option("--control-tokens", help="Read special tokens in the prompt, like <|im_end|>, as such.")
    ] = False,
    accept: Annotated[
        float | None, typer.Option(help="An oracle accepts this many drafts a step: a figure of cost alone.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Plain decoding too: speedup, and whether equal.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Of the CPU; torch's choice if unset.")] = None,
) -> None:
    """Continue a prompt with any method; the text is plain decoding's own, whatever drafts it."""
    from longdraft.cli import prompts
    from longdraft.cli.job import Job, Printer
    from longdraft.core.sampling import Sampler
    from longdraft.methods import find
    from longdraft.methods.drafter_weights import DrafterWeights
    from longdraft.methods.spec import MethodSpec
    from longdraft.models.loading import load, quiet
    from longdraft.ops.threads import pin

    texts = prompts.gather(prompt, prompt_file or [], prompt_tokens)
    given = pairs(option or [])
    sampler = Sampler(temperature, top_k, top_p, min_p, eta, penalty, penalty_window)
    find(method)
    parts = DrafterWeights(drafter, random_drafter, seed, model, any_target)
    quiet(threads)
    target, tokenizer = load(model, dtype)
    pin()
    gc.freeze()  # what is loaded stays: to look through it again takes the collector 0.2 s
    rows = prompts.encode(texts, tokenizer, prompt_tokens, control_tokens)
    job = Job(target, tokenizer, MethodSpec(method, method, given, parts), sampler, seed, accept)
    outcome = job.run(
        rows, max_new_tokens, () if ignore_eos else None, compare, None if as_json else Printer(tokenizer, texts)
    )
    if as_json:
        import json

        print(json.dumps(outcome.record))
    else:
        from longdraft.cli.show import figures

        typer.echo(figures(outcome.record), err=True)
    if outcome.interrupted or outcome.failed:
        raise typer.Exit(130 if outcome.interrupted else 1)
