"""`longdraft train text`: writes text that the target generates, on which drafters are trained (as EAGLE is)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from longdraft.cli import common
from longdraft.cli import train_options as o
from longdraft.core.sampling import Sampler
from longdraft.engine.generate import generate
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.loading import load, quiet
from longdraft.training import rows, trainer
from longdraft.training.data import Corpus, Sources
from longdraft.training.frozen import Frozen
from longdraft.training.run import corpora


def write_text(
    out: Annotated[Path, typer.Option(help="JSON lines are appended to this file.")],
    model: common.Model = "bundled",
    work: o.Work = None,
    text: o.Text = [],  # noqa: B006
    environment: o.Environment = None,
    count: Annotated[int, typer.Option(min=1, help="Number of texts.")] = 1000,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens of each prompt.")] = 64,
    max_new_tokens: common.NewTokens = 448,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy; small models then repeat themselves.")] = 1.0,
    seed: o.Seed = 0,
    dtype: common.Dtype = "bfloat16",
    threads: o.Threads = 0,
) -> None:
    """Let the target continue pieces of text, to train drafters on its own output. A second run continues the file."""
    quiet(threads or None)
    target, tokenizer = load(model, dtype)
    sources = Sources(text, environment if environment is not None else not text)
    corpus, _ = corpora(Frozen(target), tokenizer, sources, work or out.with_name(out.name + ".run"))
    sampler = Sampler(temperature)
    with trainer.bar("{task.completed}/{task.total} texts") as shown:
        task = shown.add_task("text", total=count)
        before = write(
            target, tokenizer, corpus, out, count, prompt_tokens, max_new_tokens, sampler, seed,
            lambda: shown.advance(task),
        )  # fmt: skip
    typer.echo(f"{max(count - before, 0)} texts written, {max(before, count)} in {out}")


def write(
    target: LM,
    tokenizer: Any,
    corpus: Corpus,
    out: Path,
    count: int,
    prompt: int,
    new: int,
    sampler: Sampler,
    seed: int,
    tick: Callable[[], None],
) -> int:
    """Append to `out` until it has `count` lines {"text": ...}; each is a function of the seed and its index.

    -> the number of lines that were there before. Decoding is plain, because a view of the cache saves nothing at such
    lengths. Raises InputError.
    """
    before = _lines(out)
    eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as file:
            for i in range(before, count):
                tokens = rows.cut(corpus, prompt, np.random.default_rng([seed, i]), 0.65).astype(int).tolist()
                [found] = generate(target, [tokens], max_new_tokens=new, sampler=sampler, seed=seed + i, eos=eos)
                line = json.dumps({"text": tokenizer.decode(tokens + found, skip_special_tokens=True)})
                file.write(line + "\n")
                file.flush()
                tick()
    except OSError as error:
        raise InputError(f"could not write {out}: {error}; make room, then run the same command again") from None
    return before


def _lines(out: Path) -> int:
    """The number of complete lines in a file that an earlier run wrote; an incomplete last line is removed."""
    if not out.exists():
        return 0
    kept = out.read_text(encoding="utf-8").split("\n")[:-1]
    if any(not line.startswith('{"text": ') for line in kept):
        raise InputError(f"{out} was not written by this command: give another --out")
    out.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    return len(kept)
