"""One run of a drafter for a frozen target: its text, the loop, held-out acceptance, export."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from longdraft.core.files import read_json
from longdraft.drafters import checkpoint as saved
from longdraft.errors import InputError
from longdraft.training import checkpoint, data, rows, trainer
from longdraft.training.frozen import Frozen, implied_length
from longdraft.training.processes import Team
from longdraft.training.schedule import Plan
from longdraft.training.trainer import ALONE

HELD_OUT_ROWS, HELD_OUT_LENGTH = 4, 1024  # of each kind of text
SHARE = 50  # one document of so many is held out where the target does not say which were kept from it


class Objective(Protocol):
    """What a kind of drafter learns: `loss` is a function of weights, tokens and generator alone; `part` is trained."""

    @property
    def part(self) -> nn.Module: ...

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        """tokens [B,S+1] -> a scalar."""
        ...

    def shares(self, tokens: Tensor) -> list[float]:
        """By depth, how often the drafter's first choice is the target's, given tokens [B,S+1] of a text before."""
        ...


def corpora(frozen: Frozen, tokenizer: Any, sources: data.Sources, folder: Path) -> tuple[data.Corpus, data.Corpus]:
    """(training, held-out) tokens under folder/data, made once. What the target never saw stays held out."""
    home, words = folder / "data", _words(tokenizer)
    if not (home / "done").exists():
        found = data.collect(sources)
        seen, unseen = _parted(found, Path(str(frozen.lm.hf.name_or_path)) / "holdout.json")
        fast, eos = tokenizer.backend_tokenizer, tokenizer.eos_token_id
        if eos is None:
            raise InputError("the target's tokenizer has no end token, which must stand between documents")
        fast.no_truncation()
        for name, documents in (("train", seen), ("heldout", unseen)):
            data.tokenise(documents, fast, eos, frozen.lm.vocab).save(home / name)
        (home / "done").write_text(words)
    if (home / "done").read_text() not in ("", words):
        raise InputError(f"{home} was made by another tokenizer: give another --work, or delete it")
    return data.load(home)


def _words(tokenizer: Any) -> str:
    """A digest of the tokenizer's entries."""
    return sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def _parted(documents: list[data.Document], listed: Path) -> tuple[list[data.Document], list[data.Document]]:
    """-> (training, held-out) documents: as the target's own list says, else each SHARE-th, else the end of each."""
    if listed.is_file():
        return data.split(documents, read_json(listed)["patterns"])
    if len(documents) >= SHARE:
        return data.split(documents, [d.name for d in documents[SHARE - 1 :: SHARE]])
    ends = [len(d.text) * 19 // 20 for d in documents]
    seen = [replace(d, text=d.text[:end]) for d, end in zip(documents, ends, strict=True)]
    return seen, [replace(d, text=d.text[end:]) for d, end in zip(documents, ends, strict=True)]


def held_out_rows(corpus: data.Corpus, longest: int, seed: int = 0) -> dict[str, Tensor]:
    """{kind: [rows, length + 1]} of the held-out text, the same at every call; kinds without text are left out."""
    found = {}
    for kind in data.KINDS:
        sizes = [n for n, k in zip(np.diff(corpus.groups), corpus.kinds, strict=True) if k == kind]
        length = min(longest, HELD_OUT_LENGTH, max(sizes, default=0) - 1)
        if length >= 16:
            rng = np.random.default_rng([seed, 7])
            code = float(kind == "code")
            selected = [rows.cut(corpus, length + 1, rng, code).astype(np.int64) for _ in range(HELD_OUT_ROWS)]
            found[kind] = torch.from_numpy(np.stack(selected))
    return found


@torch.no_grad()
def acceptance(objective: Objective, texts: dict[str, Tensor], bf16: bool) -> dict[str, Any]:
    """Held-out shares by depth and the mean acceptance length they imply, by kind of text; their mean is followed."""
    found: dict[str, Any] = {}
    objective.part.eval()
    for kind, text in texts.items():
        tokens = text.to(_device(objective))
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
            shares = objective.shares(tokens)
        found[kind] = {"by_depth": [round(s, 4) for s in shares], "implied_length": round(implied_length(shares), 4)}
    objective.part.train()
    lengths = [f["implied_length"] for f in found.values()]
    return found | {"acceptance": sum(lengths) / len(lengths)} if found else {}


def _device(objective: Objective) -> torch.device:
    return next(objective.part.parameters()).device


@dataclass(frozen=True)
class Run:
    """How a run goes: its plan, seed, mixture of text, and when it looks at held-out text and writes a checkpoint."""

    plan: Plan
    work: Path
    command: str
    rates: tuple[float, float]  # matrices by Muon, the rest by AdamW
    seed: int = 0
    code: float = 0.65
    bf16: bool = True
    resume: bool = False
    stop_at: int = 0
    probe_every: int = 200
    patience: int = 0
    save_seconds: float = 300
    log_every: int = 10
    parts: int = 1
    team: Team = ALONE

    def train(self, objective: Objective, corpus: data.Corpus, heldout: data.Corpus, settings: dict) -> dict:
        """-> the state of the trainer; it ends early after `patience` looks at held-out text without a better one."""
        texts = held_out_rows(heldout, max(length for length, _ in self.plan.stages))

        def loss_of(unit: int) -> Tensor:
            count, length = self.plan.shape(unit // self.parts)
            rng = np.random.default_rng([self.seed, unit, 1])
            tokens, _, _ = rows.batch(corpus, count, length, self.seed, unit, code=self.code, copies=0.0, vocab=2)
            tokens = tokens.to(_device(objective))
            with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self.bf16):
                return objective.loss(tokens, rng)

        return trainer.train(
            objective.part,
            loss_of,
            self.plan,
            self.work,
            command=self.command,
            rates=self.rates,
            settings={"code": self.code, "seed": self.seed, "bf16": self.bf16, "parts": self.parts, **settings},
            resume=self.resume,
            probe=lambda: acceptance(objective, texts, self.bf16),
            probe_every=self.probe_every,
            log_every=self.log_every,
            save_seconds=self.save_seconds,
            stop_at=self.stop_at or None,
            enough=lambda probes: stale(probes, self.patience),
            best=lambda probes: self.patience > 0 and not stale(probes, 1),
            parts=self.parts,
            team=self.team,
        )

    def export(self, kind: str, part: nn.Module, frozen: Frozen, out: Path, facts: dict, tokenizer: Any) -> dict:
        """Newest checkpoint (with patience: the best on held-out text) -> a drafter's folder in bfloat16, or a whole
        small model's; -> what training.json says."""
        kept = self.work / "best" if self.patience and checkpoint.listed(self.work / "best") else None
        state = checkpoint.load(checkpoint.latest(kept or self.work / "checkpoints"), part, [])
        record = {"parameters": sum(p.numel() for p in part.parameters()), **facts, **state}
        part = part.to(torch.bfloat16)
        if kind in saved.KINDS:
            saved.save(part, kind, out, frozen.lm, record)
        else:
            saved.save_model(part, tokenizer, out, record)
        return record


def stale(probes: list[dict], patience: int) -> bool:
    """Whether the best acceptance lies `patience` looks back (0: never)."""
    found = [p.get("acceptance", 0.0) for p in probes]
    return patience > 0 and len(found) > patience and max(found[:-patience]) >= max(found[-patience:])
