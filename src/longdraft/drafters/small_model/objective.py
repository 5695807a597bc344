"""BudgetDraft: a small model learns to draft from any part of its own KV cache (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from longdraft.core.cache import KVCache
from longdraft.core.options import Positive
from longdraft.drafters.small_model.drafter import new_small
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm
from longdraft.training.data import Corpus
from longdraft.training.frozen import Frozen, Labels, matches, whole_rows
from longdraft.training.rows import IGNORE
from longdraft.views import Chunks

BUDGETS = (256, 512, 1024, 2048)
WEIGHTS = (0.4, 0.3, 0.2, 0.1)
POSITIONS_PER_LOSS = 8


@dataclass
class BudgetObjective:
    """The prefix is read without gradient; the last `tail` tokens attend to all of it, and to a
    budget of it.

    The budget's chunks are selected by the policy that is used when drafting. share: the weight of
    the sparse branch (0: the baseline without it). labels: the target's prediction after each of
    the last tokens, or the text's next.
    """

    frozen: Frozen
    small: LM
    labels: str = "target"
    share: float = 0.5
    tail: int = 256

    def __post_init__(self) -> None:
        if self.small.windows:
            raise InputError(
                "the small model has layers with sliding windows: use one with full attention"
            )
        if self.small.architecture.latents:
            raise InputError(
                "the small model caches latents in place of keys and values: use one that does not"
            )
        if self.small.architecture.indexed:
            raise InputError(
                "the small model selects the keys that it reads: use one that does not"
            )
        if self.small.architecture.longest is not None:
            raise InputError("the small model caches biases with its keys: use one that does not")
        self.module: nn.Module = self.small.hf

    @torch.no_grad()
    def _prefix(self, row: Tensor, length: int) -> KVCache:
        """The small model's cache of the row's first `length` tokens."""
        cache = self.small.new_cache(1, len(row) + 64)
        self.small.prefill(row[:length].tolist(), cache)
        return cache

    @torch.no_grad()
    def _seen(self, row: Tensor, cache: KVCache, budget: int) -> DynamicCache:
        """The prefix as a cache of Transformers: whole (budget 0), or the chunks that the policy
        selects.
        """
        length = int(cache.length[0])
        view = None
        if budget:
            policy = Chunks(budget, POSITIONS_PER_LOSS)
            policy.start(self.small, row[None, : length + 1], cache)
            view = policy.view(cache)
        seen = DynamicCache()
        for layer in cache.layers:
            held = cache.stored_row(layer, 0)
            parts = [held.part(0, length).numbers()]
            if view is not None:
                tail_start = int(view.tail_start[0])
                selected = view.compact(layer, 0, held)
                parts = [
                    *([selected] if selected else []),
                    held.part(tail_start, length).numbers(),
                ]
            k, v = (torch.cat(x, 1)[None] for x in zip(*parts, strict=True))
            seen.update(k.clone(), v.clone(), layer)
        return seen

    def _logits(self, row: Tensor, prefix: DynamicCache, length: int) -> Tensor:
        """Logits [C,V] of the tokens from `length` on, at their positions in the whole row."""
        hf = self.small.hf
        tokens = row[None, length:]
        position = torch.arange(length, len(row), device=row.device)[None]
        mask = torch.ones(
            1, prefix.get_seq_length() + tokens.shape[1], dtype=torch.long, device=row.device
        )
        with whole_rows(self.small):
            return hf(
                tokens, position_ids=position, attention_mask=mask, past_key_values=prefix
            ).logits[0]

    def _labels(self, row: Tensor, length: int) -> Tensor:
        """row [T+1] -> [C]: the label of each of tokens length..T-1."""
        if self.labels == "text":
            return row[length + 1 :]
        return self.frozen.read(row[None, :-1], predict=True).predicted[0, length:]

    def _branches(self, row: Tensor, budgets: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        """row [T+1] -> the logits [C,V] of its last tokens for each budget, and their labels
        [C].
        """
        length = max(len(row) - 1 - self.tail, 1)
        given = row[:-1]
        with torch.autocast(
            row.device.type, enabled=False
        ):  # the cached prefix is in the small model's own dtype
            wanted = self._labels(row, length)
            cache = self._prefix(given, length)
            return [
                self._logits(given, self._seen(given, cache, budget), length) for budget in budgets
            ], wanted

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        budget = int(rng.choice(BUDGETS, p=WEIGHTS))
        total = torch.zeros((), device=tokens.device)
        weights = {0: 1.0, budget: self.share} if self.share else {0: 1.0}
        for row in tokens:
            branches, wanted = self._branches(row, list(weights))
            for logits, weight in zip(branches, weights.values(), strict=True):
                loss = cross_entropy(logits.float(), wanted, ignore_index=IGNORE, reduction="sum")
                total = total + weight * loss / (wanted != IGNORE).sum().clamp(min=1) / len(tokens)
        return total

    def shares(self, tokens: Tensor) -> list[float]:
        """Not by depth: the first share is with the whole prefix, the second with the smallest
        budget.
        """
        rates = []
        for row in tokens:
            branches, wanted = self._branches(row, (0, BUDGETS[0]))
            rates.append([matches(logits.argmax(-1), wanted) for logits in branches])
        return [sum(f) / len(f) for f in zip(*rates, strict=True)]


@torch.no_grad()
def reduced(target: LM, corpus: Corpus, width: int, layers: int) -> LM:
    """A new small model whose embeddings are the target's, projected to their principal components
    in the text.

    It learns much faster than from random embeddings, which are most of its weights.
    """
    if width % 16:
        raise InputError(f"option width is {width}: give a multiple of 16")
    hf = new_small(target, width, layers, 0).float().to(target.device)
    table = target.hf.get_input_embeddings().weight.float()
    if width < table.shape[1]:
        count = np.bincount(np.asarray(corpus.tokens), minlength=len(table))[: len(table)]
        weighted = table * torch.from_numpy(count / max(count.sum(), 1)).to(table).sqrt()[:, None]
        table = table @ torch.linalg.eigh(weighted.T @ weighted).eigenvectors[:, -width:]
        hf.get_input_embeddings().weight.copy_(table / table.std() * 0.05)
    return LM(hf, "new")


def objective(
    frozen: Frozen,
    corpus: Corpus,
    small: str = "",
    labels: Labels = "target",
    share: Annotated[float, Field(ge=0)] = 0.5,
    tail: Positive = 256,
    width: Annotated[int, Field(ge=16, le=8192)] = 96,
    layers: Positive = 3,
) -> BudgetObjective:
    """small: the folder of the model to train; without it, a new one of this width with this many
    layers.

    share=0: without the sparse branch.
    """
    if not small:
        return BudgetObjective(
            frozen, reduced(frozen.lm, corpus, width, layers), labels, share, tail
        )
    lm = load_lm(small, "float32", str(frozen.lm.device))
    if lm.vocab != frozen.lm.vocab:
        fault = f"{small} has {lm.vocab} tokens and the target {frozen.lm.vocab}"
        raise InputError(f"{fault}: use a model with the target's tokenizer")
    return BudgetObjective(frozen, lm, labels, share, tail)
