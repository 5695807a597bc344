"""A target's own words as training text: short pieces of a text, continued by the target (what EAGLE is trained on)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from longdraft.core.sampling import Sampler
from longdraft.engine.generate import generate
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.training import rows
from longdraft.training.data import Corpus


def write(
    target: LM,
    tokenizer: Any,
    corpus: Corpus,
    out: Path,
    count: int,
    prompt: int,
    new: int,
    temperature: float,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> int:
    """Append to `out` until it has `count` lines {"text": ...}, each a function of the seed and its number alone.

    -> the lines that were there before. A line is `prompt` tokens of the corpus and up to `new` ones of the target's,
    decoded plainly: at such lengths a view of the cache saves nothing. Raises InputError.
    """
    before = _lines(out)
    eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as file:
            for i in range(before, count):
                tokens = rows.cut(corpus, prompt, np.random.default_rng([seed, i]), 0.65).astype(int).tolist()
                options = {"max_new_tokens": new, "sampler": Sampler(temperature), "seed": seed + i, "eos": eos}
                [found] = generate(target, [tokens], **options)
                line = json.dumps({"text": tokenizer.decode(tokens + found, skip_special_tokens=True)})
                file.write(line + "\n")
                file.flush()
                tick()
    except OSError as error:
        raise InputError(f"could not write {out}: {error}; make room, then run the same command again") from None
    return before


def _lines(out: Path) -> int:
    """Whole lines of a file that such a run has begun; a line that was cut short is taken off."""
    if not out.exists():
        return 0
    kept = out.read_text(encoding="utf-8").split("\n")[:-1]
    if any(not line.startswith('{"text": ') for line in kept):
        raise InputError(f"{out} holds something else: give another --out")
    out.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    return len(kept)
