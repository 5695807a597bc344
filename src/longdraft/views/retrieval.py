"""SpecExtend: the target's attention at the last accepted token selects chunks for drafts."""

from __future__ import annotations

from torch import Tensor, arange, minimum, stack

from longdraft.core import Captures, CaptureSpec, KVCache
from longdraft.models.lm import LM
from longdraft.views.base import Policy, View, budget_of, pad_rows


def last_layer(model: LM) -> int | None:
    """The last layer with full attention and its own keys.

    None if every layer has a sliding window.
    """
    layers = set(model.architecture.with_keys) - set(model.windows) - set(model.sources)
    return max(layers, default=None)


class Retrieval(Policy):
    """Selects the chunks to which the last accepted node gives most weight.

    Every `every` steps; a chunk has `chunk` slots. Weights are means over heads (SpecExtend sec.
    4.2). Slots after the last full chunk are shown, so new tokens are always seen. only: the layer
    whose weights select for all layers, even in the cache of another model (cross-model retrieval);
    None: each layer selects for itself.
    """

    def __init__(
        self,
        keep_ratio: float = 0.07,
        min_budget: int = 256,
        chunk: int = 32,
        every: int = 4,
        only: int | None = None,
    ):
        self.keep_ratio = keep_ratio
        self.min_budget = min_budget
        self.chunk = chunk
        self.every = every
        self.lasts = every
        self.only = only
        self._steps = 0

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._view = None
        self._steps = 0

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Remove a row; the other rows keep their selection.

        (When a row enters, the next step selects for all rows.)
        """
        self._view = self._view and self._view.without(row)

    def captures(self) -> CaptureSpec:
        """Request the weights of all nodes.

        The last accepted one is known only after the pass.
        """
        return self.choosing() if self._steps % self.every == 0 else CaptureSpec()

    def choosing(self) -> CaptureSpec:
        return CaptureSpec(rows="all", of="weights", only=self.only)

    def seen(self, lengths: list[int]) -> list[int]:
        if self._view is None:
            return [budget_of(n, self.keep_ratio, self.min_budget) for n in lengths]
        return self._view.seen(lengths)

    def update(self, cache: KVCache, captured: Captures) -> None:
        due = self._steps % self.every == 0
        self._steps = self._steps + 1
        if (
            due
            and captured.scores
            and captured.covered is not None
            and captured.accepted is not None
        ):
            # a row that is done has not committed its root
            covered = minimum(captured.covered, cache.length).tolist()
            self._view = self._select(captured.scores, captured.accepted, covered)

    def _select(self, scores: dict[int, Tensor], accepted: Tensor, covered: list[int]) -> View:
        """The slots of the best full chunks among the first covered[b] slots of row b.

        scores {layer: [B,T,1,S]}.
        """
        layers = list(scores) if self.only is None else [self.only]
        rows = []
        tail_start = []
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
        entries = {layer: i for i, layer in enumerate(layers)} if self.only is None else None
        return pad_rows(rows, tail_start, entries)
