"""Trains a module against a frozen target: its text, the loss of a step, held-out acceptance."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from longdraft.core.files import read_json
from longdraft.errors import InputError
from longdraft.training import checkpoint, data, rows, trainer
from longdraft.training.frozen import Frozen, implied_length

# of each kind of text
HELD_OUT_ROWS = 4
HELD_OUT_LENGTH = 1024
# one document in this many is held out if the target has no list of held-out files
HELD_OUT_EVERY = 50


class Objective(Protocol):
    """The training goal of `module`.

    `loss` is a function of weights, tokens and generator only.
    """

    @property
    def module(self) -> nn.Module: ...

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        """tokens [B,S+1] -> a scalar."""
        ...

    def shares(self, tokens: Tensor) -> list[float]:
        """The shares of each depth of first choices that equal the target's.

        tokens [B,S+1] of a text.
        """
        ...


def corpora(
    frozen: Frozen, tokenizer: Any, sources: data.Sources, folder: Path
) -> tuple[data.Corpus, data.Corpus]:
    """(training, held-out) tokens, stored under folder/data.

    Files held out from the target stay held out.
    """
    home = folder / "data"
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    digest = sha256(vocabulary.encode()).hexdigest()
    if not (home / "done").exists():
        holdout = Path(str(frozen.lm.hf.name_or_path)) / data.HOLDOUT
        seen, unseen = _split(data.collect(sources), holdout)
        fast = tokenizer.backend_tokenizer
        eos = tokenizer.eos_token_id
        if eos is None:
            raise InputError(
                "the target's tokenizer has no end token, which is needed between documents"
            )
        fast.no_truncation()
        for name, documents in (("train", seen), ("heldout", unseen)):
            data.tokenize(documents, fast, eos, frozen.lm.vocab).save(home / name)
        (home / "done").write_text(digest)
    if (home / "done").read_text() not in ("", digest):
        raise InputError(
            f"{home} was made with another tokenizer: give another --work, or delete it"
        )
    return data.load(home)


def _split(
    documents: list[data.Document], holdout: Path
) -> tuple[list[data.Document], list[data.Document]]:
    """Split documents into (training, held-out) ones.

    By the target's list, else every HELD_OUT_EVERY-th, else the end of each.
    """
    if holdout.is_file():
        return data.split(documents, read_json(holdout)["patterns"])
    if len(documents) >= HELD_OUT_EVERY:
        names = [d.name for d in documents[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]]
        return data.split(documents, names)
    ends = [len(d.text) * 19 // 20 for d in documents]
    seen = [replace(d, text=d.text[:end]) for d, end in zip(documents, ends, strict=True)]
    return seen, [replace(d, text=d.text[end:]) for d, end in zip(documents, ends, strict=True)]


def held_out_rows(corpus: data.Corpus, longest: int, seed: int = 0) -> dict[str, Tensor]:
    """{kind: [rows, length + 1]} of the held-out text by seed.

    Kinds of text that are too short are left out.
    """
    by_kind = {}
    for kind in data.TEXT_KINDS:
        sizes = [n for n, k in zip(np.diff(corpus.groups), corpus.kinds, strict=True) if k == kind]
        length = min(longest, HELD_OUT_LENGTH, max(sizes, default=0) - 1)
        if length >= 16:
            rng = rows.generator(seed, 7)
            code = float(kind == "code")
            selected = [
                rows.cut(corpus, length + 1, rng, code).astype(np.int64)
                for _ in range(HELD_OUT_ROWS)
            ]
            by_kind[kind] = torch.from_numpy(np.stack(selected))
    return by_kind


@torch.no_grad()
def acceptance(objective: Objective, texts: dict[str, Tensor], bf16: bool) -> dict[str, Any]:
    """Held-out shares of each kind of text by depth, with their mean acceptance length.

    And the mean length over kinds.
    """
    by_kind: dict[str, Any] = {}
    device = next(objective.module.parameters()).device
    objective.module.eval()
    for kind, text in texts.items():
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            shares = objective.shares(text.to(device))
        by_kind[kind] = {
            "by_depth": [round(s, 4) for s in shares],
            "implied_length": round(implied_length(shares), 4),
        }
    objective.module.train()
    lengths = [f["implied_length"] for f in by_kind.values()]
    return by_kind | {"acceptance": sum(lengths) / len(lengths)} if by_kind else {}


def train(
    objective: Objective,
    corpus: data.Corpus,
    heldout: data.Corpus,
    settings: trainer.TrainingSettings,
    options: dict,
    grid: bool = False,
) -> dict:
    """Train the objective's module -> the trainer's state.

    options: recorded with the run. Raises InputError.
    grid: rows begin at multiples of their length, so that cached states are reused.
    """
    s = settings
    texts = held_out_rows(heldout, max(length for length, _ in settings.plan.stages))
    device = next(objective.module.parameters()).device

    def loss_of(unit: int) -> Tensor:
        count, length = s.plan.shape(unit // s.parts)
        rng = rows.generator(s.seed, unit, 1)
        tokens, _, _ = rows.batch(
            corpus, count, length, s.seed, unit, code=s.code, copies=0.0, vocab=2, grid=grid
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=s.bf16):
            return objective.loss(tokens.to(device), rng)

    facts = {"options": options}
    return trainer.train(
        objective.module, loss_of, s, lambda: acceptance(objective, texts, s.bf16), facts
    )


def finish(module: nn.Module, settings: trainer.TrainingSettings) -> dict:
    """Load the newest checkpoint into the module -> its state.

    With patience, the best on held-out text.
    """
    best = settings.work / "best"
    kept = best if settings.patience and checkpoint.listed(best) else settings.work / "checkpoints"
    return checkpoint.load(checkpoint.latest(kept), module, [])
