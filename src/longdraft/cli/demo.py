"""`longdraft demo`: the main job on a prompt that is on every machine."""

from __future__ import annotations

import gc
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)
METHODS = ("plain", "vegas", "lookup")
DRAFTED, OWN = "green", "bold"


@app.command()
def demo(
    model: Annotated[str, typer.Option("-m", "--model", help="'bundled', a folder, or a Hub id.")] = "bundled",
    context: Annotated[int, typer.Option(min=16, help="Tokens of the prompt.")] = 16384,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Of the CPU; torch's choice if unset.")] = None,
) -> None:
    """Continue 16K tokens of the standard library's source by plain decoding, vegas and lookup, and compare them."""
    from rich.console import Console

    from longdraft.bench.texts import stdlib_prompt
    from longdraft.cli.job import WARM, Run, traffic
    from longdraft.core.sampling import Sampler
    from longdraft.core.verify import match
    from longdraft.drafters import AdaptiveDraft, Drafter
    from longdraft.engine.decode_session import DecodeSession, first_difference
    from longdraft.engine.generate import check
    from longdraft.methods import build
    from longdraft.models.loading import load, quiet
    from longdraft.ops.threads import pin

    console = Console(highlight=False)
    sampler = Sampler(temperature)
    quiet(threads)
    target, tokenizer = load(model, dtype)
    pin()
    gc.freeze()  # what is loaded stays: to look through it again takes the collector 0.2 s
    ids, files = stdlib_prompt(tokenizer, context)
    check(target, [ids], max_new_tokens, Drafter(), match)
    how = f"sampled at temperature {temperature:g}, seed {seed}" if temperature else "greedy"
    console.print(f"[bold]Prompt[/]: {context} tokens of source code of this Python's standard library, cut there:")
    console.print(f"  {', '.join(files)}")
    console.print(f"[bold]Target[/]: {target.name}, {dtype}, {how}. Reading the prompt ...", end=" ", soft_wrap=True)
    runs = DecodeSession(target, [ids], max_new_tokens, sampler, seed, eos=())
    runs.seal()
    console.print(f"{runs.prefill_s:.1f} s")

    def paced(name: str) -> Drafter:
        return Drafter() if name == "plain" else AdaptiveDraft(build(name, target))

    console.print(f"[{DRAFTED}]This colour[/]: drafted, then accepted. [{OWN}]This one[/]: the target's own.")
    found: dict[str, Any] = {}
    for name in METHODS:
        console.rule(name, align="left")
        runs.rows(paced(name), limit=WARM)  # plain decoding is over before a drafter runs at all
        found[name] = Run([[]])
        printer = Painter(console, tokenizer)
        for step in runs.decode(paced(name), found[name].stats):
            found[name].take(step)
            printer.step(step.tokens[0])
        printer.end()
        if damage := runs.altered():  # what comes after reads it, plain decoding as well
            break
    differences = {name: first_difference(runs, found["plain"].rows, run.rows) for name, run in found.items()}
    console.print(table(found, differences, target.exact, damage))
    if damage:
        raise typer.Exit(1)
    footnotes(console, found["plain"], traffic(runs, found["plain"]))


class Painter:
    """Writes text as it comes: all but the last token of a step are accepted drafts."""

    def __init__(self, console: Any, tokenizer: Any):
        from longdraft.cli.show import Detokenizer

        self.console, self.text = console, Detokenizer(tokenizer)

    def step(self, tokens: list[int]) -> None:
        for i, token in enumerate(tokens):
            self._write(self.text.push([token]), OWN if i == len(tokens) - 1 else DRAFTED)

    def end(self) -> None:
        self._write(self.text.flush() + "\n", OWN)

    def _write(self, piece: str, style: str) -> None:
        if piece:
            self.console.print(piece, style=style, end="", soft_wrap=True, markup=False, emoji=False)


def table(found: dict[str, Any], differences: dict[str, Any], exact: bool, damage: str | None) -> Any:
    """damage: what the last of the methods changed that is not its own."""
    from rich.table import Table

    from longdraft.cli.show import verdict

    shown = Table("method")
    for column in ("tokens/s", "mean acceptance length", "speedup"):
        shown.add_column(column, justify="right")
    shown.add_column("equal")
    plain = found["plain"].tokens_per_s
    last = list(found)[-1]
    for name, run in found.items():
        speed = run.tokens_per_s
        length = f"{run.stats.mean_acceptance_length:.2f}"
        equal = verdict(differences[name], exact, damage if name == last else None)
        shown.add_row(name, f"{speed:.1f}", length, f"{speed / plain:.2f}", equal)
    return shown


def footnotes(console: Any, plain: Any, moved: dict[str, Any]) -> None:
    """What the figures stand on."""
    from longdraft.bench.report import LOOPS
    from longdraft.bench.run import distinct

    share, speed = moved["bandwidth_share"], moved["bandwidth_gb_s"]
    console.print(
        f"plain reads {moved['bytes_per_step'] / 1e6:.0f} MB a step: {share:.0%} of this machine's {speed:.0f} GB/s."
    )
    new = distinct(plain.rows)
    if new < LOOPS:
        console.print(f"Of the text's 3-grams {new:.0%} are new: it goes in circles, which flatters lookup above all.")
