"""SpecExtend: the last accepted token's attention in the target says which chunks the next drafts should read."""

from __future__ import annotations

from torch import Tensor, arange, minimum, stack

from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.models.lm import LM
from longdraft.views.base import Policy, View, budget_of, pad_rows


def last_layer(model: LM) -> int | None:
    """The last layer that sees the whole text; None if every layer has a window."""
    return max(set(range(model.config.num_hidden_layers)) - set(model.windows), default=None)


class Retrieval(Policy):
    """Chunks of `chunk` slots ranked by the mean weight that the last accepted node gave them, chosen every n rounds.

    Weights are means over heads (SpecExtend sec. 4.2). Chunks that were not full then, and all later ones, are seen
    too, so new text joins of itself. only: the one layer whose weights are asked for and choose for all layers, of
    another model's cache if need be (cross-model retrieval); None: each layer chooses for itself.
    """

    def __init__(
        self, keep_ratio: float = 0.07, min_budget: int = 256, chunk: int = 32, every: int = 4, only: int | None = None
    ):
        self.keep_ratio, self.min_budget, self.chunk, self.every, self.only = keep_ratio, min_budget, chunk, every, only
        self._forget()

    def _forget(self) -> None:
        self._view: View | None = None
        self._rounds = 0

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._forget()

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """A row that enters makes the next round choose for all; one that leaves takes only its own choice away."""
        self._view = self._view and self._view.without(row)

    def captures(self) -> CaptureSpec:
        """All rows: which node is the last accepted one is known only afterwards. Nothing between two choices."""
        return (
            CaptureSpec(rows="all", of="weights", only=self.only) if self._rounds % self.every == 0 else CaptureSpec()
        )

    def update(self, cache: KVCache, captured: Captures) -> None:
        due, self._rounds = self._rounds % self.every == 0, self._rounds + 1
        if due and captured.scores and captured.covered is not None and captured.accepted is not None:
            # a row that is done committed nothing: its root is still scratch
            self._view = self._choose(
                captured.scores, captured.accepted, minimum(captured.covered, cache.length).tolist()
            )

    def _choose(self, scores: dict[int, Tensor], accepted: Tensor, covered: list[int]) -> View:
        """scores {layer: [B,T,1,S]} -> the slots of the best full chunks among the first covered[b] of each row."""
        layers = list(scores) if self.only is None else [self.only]
        rows, tail_start = [], []
        for b, n in enumerate(covered):
            weights = stack([scores[layer][b, int(accepted[b]), 0] for layer in layers])
            full = n // self.chunk
            budget = budget_of(n, self.keep_ratio, self.min_budget)
            everything = budget >= n
            wanted = 0 if everything else min(max(1, budget // self.chunk), full)
            means = weights[:, : full * self.chunk].unflatten(1, (full, self.chunk)).mean(2)
            first = means.topk(wanted).indices.sort().values * self.chunk
            rows.append((first[..., None] + arange(self.chunk, device=first.device)).flatten(1))
            tail_start.append(0 if everything else full * self.chunk)
        places = {layer: i for i, layer in enumerate(layers)} if self.only is None else None
        return pad_rows(rows, tail_start, weights.device, places)

    def seen(self, lengths: list[int]) -> list[int]:
        return lengths if self._view is None else self._view.seen(lengths)

    def view(self, cache: KVCache) -> View | None:
        return self._view
