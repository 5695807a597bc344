"""`longdraft train text`: writes text that the target generates, on which drafters are trained (as
EAGLE is).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from longdraft.cli import common
from longdraft.cli import train_options as o
from longdraft.cli.option_groups import TargetOptions, expand
from longdraft.cli.sampling_options import Seed, sampling_option
from longdraft.core.places import new_file
from longdraft.core.sampling import Sampler
from longdraft.engine.scheduler import Finished, serve
from longdraft.errors import InputError
from longdraft.models.chat import chat_tokens
from longdraft.models.loading import load, quiet
from longdraft.sampling_parameters import SEED, TEMPERATURE
from longdraft.training import rows, trainer
from longdraft.training.frozen import Frozen
from longdraft.training.instructions import ask
from longdraft.training.run import corpora
from longdraft.training.writing import by_generate

CODE = 0.65  # share of prompts made of source code


@expand
def write_text(
    out: Annotated[Path, typer.Option(help="JSON lines are appended to this file.")],
    model: common.Model = "bundled",
    corpus_options: o.CorpusOptions = o.CorpusOptions(),
    count: Annotated[int, typer.Option(min=1, max=1 << 20, help="Number of texts.")] = 1000,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Ask a question about each piece, in the model's chat template."
        ),
    ] = False,
    turns: Annotated[
        int,
        typer.Option(
            min=1, max=1024, help="Number of prompts per text, each with its continuation."
        ),
    ] = 1,
    batch: Annotated[
        int,
        typer.Option(
            min=1, max=4096, help="Number of prompts decoded side by side; hundreds on a GPU."
        ),
    ] = 8,
    prompt_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of tokens of each piece; with --chat, the maximum of varied lengths.",
        ),
    ] = 64,
    max_new_tokens: common.NewTokens = 448,
    temperature: Annotated[
        float, sampling_option(TEMPERATURE, "0 is greedy; small models then repeat themselves.")
    ] = 1.0,
    seed: Seed = SEED.default,
    target_options: TargetOptions = TargetOptions(),
    threads: o.Threads = 0,
) -> None:
    """Let the target continue pieces of text, or answer questions about them, to train drafters on
    its own output.

    A second run continues the file.
    """
    quiet(threads or None)
    out = new_file(out)
    before = _lines(out)
    done = 0
    target, tokenizer = load(model, **asdict(target_options))
    corpus, _ = corpora(
        Frozen(target), tokenizer, corpus_options.sources(), corpus_options.folder(out)
    )

    def prompt(i: int) -> list[int]:
        """Prompt i, determined by seed and i."""
        rng = rows.generator(seed, i)
        if not chat:
            return rows.cut(corpus, prompt_tokens, rng, CODE).astype(int).tolist()
        code = bool(rng.random() < CODE)
        size = int(np.exp(rng.uniform(0, np.log(max(prompt_tokens, 16) / 16)))) * 16
        piece = tokenizer.decode(
            rows.cut(corpus, min(size, prompt_tokens), rng, float(code)).astype(int).tolist()
        )
        return chat_tokens(tokenizer, [{"role": "user", "content": ask(piece, code, rng)}])

    prompts = [prompt(i) for i in range(before * turns, count * turns)]
    room = max(map(len, prompts), default=0) + max_new_tokens
    eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    if target.device.type == "cpu":
        # Decoding is plain: at such lengths a view of the cache saves nothing.
        given = {
            "max_new_tokens": max_new_tokens,
            "sampler": Sampler(temperature),
            "seed": seed,
            "eos": eos,
        }
        served = serve(target, prompts, None, batch, room + 128, **given, first=before * turns)
        answers = (done.tokens for done in _ordered(served, before * turns))
    else:
        answers = by_generate(
            target, prompts, batch, max_new_tokens, temperature, seed + before * turns, eos
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        bar = trainer.bar("{task.completed}/{task.total} texts")
        with out.open("a", encoding="utf-8", buffering=1) as file, bar:
            for i in bar.track(
                range(before, count), total=count, completed=before, description="text"
            ):
                first = (i - before) * turns
                pieces = [
                    p + new for p, new in zip(prompts[first : first + turns], answers, strict=False)
                ]
                file.write(
                    json.dumps({"text": "".join(_decoded(tokenizer, p, chat) for p in pieces)})
                    + "\n"
                )
                done = i + 1 - before
    except OSError as error:
        raise InputError(
            f"could not write {out}: {error}; make room, then run the same command again"
        ) from None
    typer.echo(f"{done} texts written, {max(count, before)} in {out}")


def _decoded(tokenizer: Any, tokens: list[int], chat: bool) -> str:
    """Tokens as text. What a chat template writes is kept: a drafter meets it again when it
    drafts.
    """
    return tokenizer.decode(tokens, skip_special_tokens=not chat) + ("\n" if chat else "")


def _ordered(finished: Iterator[Finished], wanted: int) -> Iterator[Finished]:
    """The results of `serve`, in the order of the prompts from `wanted` on. Raises InputError for
    one that failed.
    """
    waiting: dict[int, Finished] = {}
    for each in finished:
        if each.error is not None:
            raise InputError(f"prompt {each.index} failed: {each.error}")
        waiting[each.index] = each
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted += 1


def _lines(out: Path) -> int:
    """The number of complete lines in a file that an earlier run wrote; an incomplete last line is
    removed.
    """
    if not out.exists():
        return 0
    try:
        kept = out.read_text(encoding="utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        kept = [""]
    if any(not line.startswith('{"text": ') for line in kept):
        raise InputError(f"{out} was not written by this command: give another --out")
    out.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    return len(kept)
