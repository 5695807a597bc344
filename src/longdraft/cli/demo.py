"""`longdraft demo`: three methods side by side, on a prompt that every machine has."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from longdraft.cli import common

METHODS = ("plain", "vegas", "lookup")
DRAFTED, OWN = "green", "bold"


def demo(
    model: common.Model = "bundled",
    context: Annotated[int, typer.Option(min=16, help="Number of prompt tokens.")] = 16384,
    max_new_tokens: common.NewTokens = 256,
    dtype: common.Dtype = "bfloat16",
    rope: common.Rope = None,
    weights: common.Weights = None,
    kv: common.KeysAndValues = None,
    temperature: common.Temperature = 0.0,
    seed: common.Seed = 0,
    threads: common.Threads = None,
) -> None:
    """Continue source code of the standard library by plain decoding, vegas and lookup, and compare them."""
    from rich.console import Console

    from longdraft.bench.inputs import stdlib_prompt
    from longdraft.bench.notes import LOOPS
    from longdraft.cli.job import WARM
    from longdraft.cli.show import Detokenizer
    from longdraft.core.sampling import Sampler
    from longdraft.core.verify import match
    from longdraft.drafters import Drafter
    from longdraft.engine.decode_session import DecodeSession, first_difference
    from longdraft.engine.generate import check
    from longdraft.engine.measure import Output, distinct, traffic
    from longdraft.methods import build

    console, sampler = Console(highlight=False), Sampler(temperature)
    target, tokenizer = common.load_target(model, dtype, threads, rope, weights, kv)
    ids, files = stdlib_prompt(tokenizer, context)
    check(target, [ids], max_new_tokens, Drafter(), match)
    how = f"sampled at temperature {temperature:g}, seed {seed}" if temperature else "greedy"
    console.print(f"[bold]Prompt[/]: {context} tokens of source code of this Python's standard library:")
    console.print(f"  {', '.join(files)}")
    console.print(f"[bold]Target[/]: {target.name}, {dtype}, {how}.", soft_wrap=True)
    with common.reading([ids]) as tick:
        session = DecodeSession(target, [ids], max_new_tokens, sampler, seed, eos=(), report=tick)
    session.seal()
    console.print(f"Reading the prompt took {session.prefill_s:.1f} s.")

    console.print(f"[{DRAFTED}]This colour[/]: accepted drafts. [{OWN}]This one[/]: tokens that the target added.")
    found: dict[str, Any] = {}
    for name in METHODS:
        console.rule(name, align="left")
        session.rows(build(name, target, adaptive=True), limit=WARM)  # plain decoding finishes first
        found[name] = Output([[]])
        text = Detokenizer(tokenizer)
        for step in session.decode(build(name, target, adaptive=True), found[name].stats):
            found[name].take(step)
            for token in step.tokens[0][:-1]:
                paint(console, text.push([token]), DRAFTED)
            paint(console, text.push(step.tokens[0][-1:]), OWN)
        paint(console, text.flush() + "\n", OWN)
        if damage := session.altered():  # every later method would read it
            break
    differences = {name: first_difference(session, found["plain"].rows, run.rows) for name, run in found.items()}
    console.print(table(found, differences, target.exact, damage))
    if damage:
        raise typer.Exit(1)
    moved, new = traffic(session, found["plain"]), distinct(found["plain"].rows)
    console.print(
        f"Plain decoding reads {moved['bytes_per_step'] / 1e6:.0f} MB per step"
        f" at {moved['bandwidth_share']:.0%} of this machine's {moved['bandwidth_gb_s']:.0f} GB/s."
    )
    if new < LOOPS:
        console.print(f"Only {new:.0%} of the output's 3-grams are distinct: it is repetitive, which favours lookup.")


def paint(console: Any, piece: str, style: str) -> None:
    """Print a piece of text as it is, without a line end."""
    if piece:
        console.print(piece, style=style, end="", soft_wrap=True, markup=False, emoji=False)


def table(found: dict[str, Any], differences: dict[str, Any], exact: bool, damage: str | None) -> Any:
    """A rich table with a row per method. damage: what the last one changed that it must not change."""
    from rich.table import Table

    from longdraft.cli.show import verdict
    from longdraft.engine.measure import timings

    shown = Table("method")
    for column in ("tokens/s", "mean acceptance length", "speedup"):
        shown.add_column(column, justify="right")
    shown.add_column("equal")
    speeds = {name: timings(run.stats)["tokens_per_s"] for name, run in found.items()}
    last = list(found)[-1]
    for name, run in found.items():
        length = f"{run.stats.mean_acceptance_length:.2f}"
        equal = verdict(differences[name], exact, damage if name == last else None)
        shown.add_row(name, f"{speeds[name]:.1f}", length, f"{speeds[name] / speeds['plain']:.2f}", equal)
    return shown
