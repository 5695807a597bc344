"""`longdraft train text`: writes text that the target generates, on which drafters are trained (as EAGLE is)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from longdraft.cli import common
from longdraft.cli import train_options as o
from longdraft.core.sampling import Sampler
from longdraft.engine.generate import generate
from longdraft.errors import InputError
from longdraft.models.loading import load, quiet
from longdraft.training import rows, trainer
from longdraft.training.data import Sources
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
    rope: common.Rope = None,
    weights: common.Weights = None,
    kv: common.KeysAndValues = None,
    threads: o.Threads = 0,
) -> None:
    """Let the target continue pieces of text, to train drafters on its own output. A second run continues the file."""
    quiet(threads or None)
    target, tokenizer = load(model, dtype, rope=rope, weights=weights, kv=kv)
    sources = Sources(text, environment if environment is not None else not text)
    corpus, _ = corpora(Frozen(target), tokenizer, sources, work or out.with_name(out.name + ".run"))
    sampler, before = Sampler(temperature), _lines(out)
    eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)

    def written(i: int) -> str:
        """Line i, determined by seed and i. Decoding is plain: at such lengths a view of the cache saves nothing."""
        tokens = rows.cut(corpus, prompt_tokens, np.random.default_rng([seed, i]), 0.65).astype(int).tolist()
        [new] = generate(target, [tokens], max_new_tokens=max_new_tokens, sampler=sampler, seed=seed + i, eos=eos)
        return json.dumps({"text": tokenizer.decode(tokens + new, skip_special_tokens=True)}) + "\n"

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        bar = trainer.bar("{task.completed}/{task.total} texts")
        with out.open("a", encoding="utf-8", buffering=1) as file, bar:
            for i in bar.track(range(before, count), total=count, description="text"):
                file.write(written(i))
    except OSError as error:
        raise InputError(f"could not write {out}: {error}; make room, then run the same command again") from None
    typer.echo(f"{max(count - before, 0)} texts written, {max(before, count)} in {out}")


def _lines(out: Path) -> int:
    """The number of complete lines in a file that an earlier run wrote; an incomplete last line is removed."""
    if not out.exists():
        return 0
    kept = out.read_text(encoding="utf-8").split("\n")[:-1]
    if any(not line.startswith('{"text": ') for line in kept):
        raise InputError(f"{out} was not written by this command: give another --out")
    out.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    return len(kept)
