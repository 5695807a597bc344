"""`longdraft demo`: three methods side by side, on a text that every machine has."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from longdraft.cli import common
from longdraft.cli.option_groups import TargetOptions, expand
from longdraft.cli.sampling_options import Seed, sampling_option
from longdraft.sampling_parameters import SEED, TEMPERATURE

CODER = "qwen2.5-coder-0.5b"
REAL = "smollm2"
FALLBACK = "bundled"
DRAFTED = "green"
OWN = "bold"


@expand
def demo(
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="The target (default: smollm2, else the bundled model; qwen2.5-coder-0.5b if "
            "it was fetched).",
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=16, help="Number of tokens of text in the prompt.")
    ] = None,
    max_new_tokens: common.NewTokens = 256,
    target_options: TargetOptions = TargetOptions(),
    temperature: Annotated[
        float | None,
        sampling_option(
            TEMPERATURE, "Sampling temperature (default: 0.3 for an answer, 0 for source code)."
        ),
    ] = None,
    seed: Seed = SEED.default,
    threads: common.Threads = None,
) -> None:
    """Ask a model about a long text, and compare plain decoding with two methods while they answer.

    The text is Python's documentation; for a model whose name has "coder" in it, a source file of
    which it changes a method. A model without a chat template continues source code.
    """
    from rich.console import Console

    from longdraft.bench.notes import LOOPS
    from longdraft.cli.demo_scene import scene
    from longdraft.cli.job import WARM
    from longdraft.core.sampling import Sampler
    from longdraft.core.verify import match
    from longdraft.drafters import PlainDecoding
    from longdraft.engine.decode_session import DecodeSession, first_difference
    from longdraft.engine.generate import check
    from longdraft.methods import build
    from longdraft.models.text import Detokenizer
    from longdraft.recording.decode_figures import DecodedRows, distinct, traffic

    console = Console(highlight=False)
    target, tokenizer = common.load_target(model or real_model(), target_options, threads)
    shown = scene(tokenizer, context, coder="coder" in target.name.lower())
    sampling: dict[str, Any] = shown.sampling | (
        {} if temperature is None else {"temperature": temperature}
    )
    sampler = Sampler(**sampling)
    check(target, [shown.prompt], max_new_tokens, PlainDecoding(), match)
    console.print(f"[bold]Prompt[/]: {shown.about}", soft_wrap=True)
    how = ", ".join(f"{name} {value:g}" for name, value in sampling.items()) + f", seed {seed}"
    console.print(f"[bold]Target[/]: {target.name}, {target_options.dtype}, {how}.", soft_wrap=True)
    with common.reading([shown.prompt]) as tick:
        eos = None if shown.ends else ()
        session = DecodeSession(
            target, [shown.prompt], max_new_tokens, sampler, seed, eos, report=tick
        )
    session.seal()
    console.print(f"Reading the prompt took {session.prefill_s:.1f} s.")

    console.print(
        f"[{DRAFTED}]This color[/]: accepted drafts. [{OWN}]This one[/]: tokens that the "
        "target added."
    )
    runs: dict[str, Any] = {}
    for name in ("plain", *shown.methods):
        console.rule(name, align="left")
        # plain decoding finishes first
        session.rows(build(name, target, adaptive=True), limit=WARM)
        runs[name] = DecodedRows([[]])
        text = Detokenizer(tokenizer)
        for step in session.decode(build(name, target, adaptive=True), runs[name].stats):
            runs[name].take(step)
            for token in step.tokens[0][:-1]:
                paint(console, text.push([token]), DRAFTED)
            paint(console, text.push(step.tokens[0][-1:]), OWN)
        paint(console, text.flush() + "\n", OWN)
        if damage := session.altered():  # every later method would read it
            break
    differences = {
        name: first_difference(session, runs["plain"].rows, run.rows) for name, run in runs.items()
    }
    others = {} if damage else llama_cpp(target, shown.prompt, len(runs["plain"].rows[0]), console)
    console.print(table(runs, differences, target.exact, damage, others))
    if damage:
        raise typer.Exit(1)
    moved = traffic(session, runs["plain"])
    new = distinct(runs["plain"].rows)
    console.print(
        f"Plain decoding reads {moved['bytes_per_step'] / 1e6:.0f} MB per step"
        f" at {moved['bandwidth_share']:.0%} of this machine's {moved['bandwidth_gb_s']:.0f} GB/s."
    )
    if new < LOOPS:
        console.print(
            f"Only {new:.0%} of the output's 3-grams are distinct: it is repetitive, which "
            "favors n-grams."
        )


def real_model() -> str:
    """CODER if it was fetched before; else the small real model, which is fetched; else the bundled
    one, and why.
    """
    from longdraft.errors import InputError
    from longdraft.models.fetch import fetch, is_there

    if is_there(CODER):
        return CODER
    try:
        with common.fetching(REAL) as tick:
            fetch(REAL, tick, common.announce)
    except InputError as error:
        print(f"longdraft: note: {error}; the small bundled model is used instead", file=sys.stderr)
        return FALLBACK
    return REAL


def llama_cpp(target: Any, prompt: list[int], new_tokens: int, console: Any) -> dict[str, float]:
    """{label: tokens per second} of llama.cpp on the same file and prompt, greedily; empty if it is
    not installed.

    It is the wheel, which is not built for this processor: the label says so.
    """
    from longdraft.bench.peers.base import CannotRun, Work
    from longdraft.bench.peers.choice import gguf_of
    from longdraft.bench.peers.llama_cpp import LlamaCpp
    from longdraft.bench.peers.llama_wheel import WHEEL, Wheel
    from longdraft.core.sampling import Sampler

    file = gguf_of(target)
    if file is None:
        return {}
    try:
        peer = LlamaCpp(f"{WHEEL}, greedy", Wheel(), file)
        console.print("[dim]llama.cpp reads the same prompt...[/]")
        reading = peer.read(Work(target, [prompt], new_tokens, Sampler(), 0))
        try:
            stats = reading.decode(new_tokens).stats
        finally:
            reading.close()
    except CannotRun:  # the package is missing, or cannot do this
        return {}
    return {peer.label: stats.emitted / stats.decode_s}


def paint(console: Any, piece: str, style: str) -> None:
    """Print a piece of text verbatim, without a line end."""
    if piece:
        console.print(piece, style=style, end="", soft_wrap=True, markup=False, emoji=False)


def table(
    runs: dict[str, Any],
    differences: dict[str, Any],
    exact: bool,
    damage: str | None,
    others: dict[str, float],
) -> Any:
    """A rich table with a row per method, and one per other engine.

    damage: what the last method changed that it must not change. others: {engine: tokens per
    second}.
    """
    from rich.table import Table

    from longdraft.cli.show import verdict
    from longdraft.recording.decode_figures import timings

    shown = Table("method")
    for column in ("tokens/s", "mean acceptance length", "speedup"):
        shown.add_column(column, justify="right")
    shown.add_column("equal")
    speeds = {name: timings(run.stats)["tokens_per_s"] for name, run in runs.items()}
    last = list(runs)[-1]
    for name, run in runs.items():
        length = f"{run.stats.mean_acceptance_length:.2f}"
        equal = verdict(differences[name], exact, damage if name == last else None)
        shown.add_row(
            name, f"{speeds[name]:.1f}", length, f"{speeds[name] / speeds['plain']:.2f}", equal
        )
    for label, speed in others.items():
        shown.add_row(label, f"{speed:.1f}", "", f"{speed / speeds['plain']:.2f}", "")
    return shown
