"""One row's pass through modules that attend by themselves: what it gives them in place of
Transformers' own cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdraft.backends.features.span import Span
from longdraft.core import Captures, IndexView, KVCache, Tree
from longdraft.errors import InputError

# names of the arguments of layers that add a number by a key's position
BIASES = (
    "alibi",
    "position_bias",
)


class DensePass:
    """Transformers' cache protocol for nodes [start, size) of row b of a tree, over committed slots
    and scratch.

    A layer reads selected slots [K|1,P], copied side by side, and then slots [low, end). Its mask
    and biases have these columns, and follow the tree and the positions of tokens, whatever slots
    they are in.
    Models are told that there are as many keys as their biases need columns, which is one for each
    position.
    Scores of the kind "logits" are logarithms of weights, which differ from logits by a constant of
    each query and head and so rank keys alike, down to the smallest weight that float32 has.
    """

    def __init__(
        self,
        cache: KVCache,
        b: int,
        tree: Tree,
        start: int,
        view: IndexView | None,
        captured: Captures,
        spans: dict[int, Span],
        reach: int,
        dtype: torch.dtype,
    ):
        self.cache = cache
        self.b = b
        self.view = view
        self.captured = captured
        self.spans = spans
        self.dtype = dtype
        self.lengths = cache.length.tolist()
        self.start = start
        self.tree = tree
        self.n = self.lengths[b]
        self.end = self.n + tree.size
        self.count = tree.size - start
        slots = torch.arange(self.n, device=tree.depth.device)
        self.position = torch.cat([slots, self.n + tree.depth[b]])  # [end] of each slot's token
        self.reach = reach
        self.updated = set[int]()
        self._columns = max(min(int(self.position.max()) + 1, reach), self.count)
        self._masks = dict[tuple[int, int, Span | None], Tensor]()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._columns - self.count

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._columns - self.count

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._columns, 0

    def update(
        self, k: Tensor, v: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """k, v [1,K,W,D] of the new nodes -> those that the layer reads, [1,K,S,D]."""
        self.cache.row(self.b).write(layer_idx, k, v, [self.n + self.start])
        self.updated.add(layer_idx)
        row = self.cache.stored_row(layer_idx, self.b)
        pair = row.part(self._low(layer_idx), self.end).numbers()
        if self.view is not None and layer_idx not in self.spans:
            selected = self.view.compact(layer_idx, self.b, row)
            if selected is not None:
                pair = torch.cat([selected[0], pair[0]], 1), torch.cat([selected[1], pair[1]], 1)
        return pair[0][None], pair[1][None]

    def arguments(self, layer: int, given: dict[str, Any]) -> dict[str, Tensor]:
        """The arguments that replace the mask and the biases that a layer is `given`. Raises
        InputError without a mask.
        """
        if "attention_mask" not in given:
            raise InputError(
                "this model's layers take no attention_mask, which longdraft needs: use "
                "another model"
            )
        selected = self._selected(layer)
        mask = given["attention_mask"]
        added = self._mask(layer, selected)
        # a mask of bools says which keys are hidden: MPT casts one that is added to logits
        new = {
            "attention_mask": added.bool()
            if mask is not None and mask.dtype == torch.bool
            else added
        }
        biases = {name: given[name] for name in BIASES if given.get(name) is not None}
        return new | {name: self._bias(layer, selected, bias) for name, bias in biases.items()}

    def see(self, layer: int, outputs: tuple[Any, ...]) -> None:
        """Keep the scores that are requested of the attention weights [1,H,W,S] among a module's
        further outputs.
        """
        spec = self.captured.spec
        if spec.rows is None or layer in self.spans or spec.only not in (None, layer):
            return
        for weights in outputs:
            if (
                isinstance(weights, Tensor)
                and weights.dim() == 4
                and weights.shape[2] == self.count
            ):
                self._store(layer, weights[0])
                return

    def _store(self, layer: int, weights: Tensor) -> None:
        """weights [H,W,S] -> captured.scores [B,R,K|1,S] of this row, for the slots up to the
        root.
        """
        spec = self.captured.spec
        scores = self.captured.scores
        kept = weights[:, spec.kept(self.tree)[self.b], : self.n + 1].float()
        kept = kept.clamp(min=torch.finfo(kept.dtype).tiny).log() if spec.of == "logits" else kept
        columns = self.cache.stored_row(layer, self.b).heads if spec.split else 1
        mean = kept.view(columns, -1, *kept.shape[1:]).mean(1).transpose(0, 1)
        mean = mean.mean(0, keepdim=True) if spec.rows == "mean" else mean
        if layer not in scores:
            most = max(self.lengths) + 1
            scores[layer] = mean.new_full((len(self.lengths), *mean.shape[:2], most), float("-inf"))
        scores[layer][self.b, ..., : self.n + 1] = mean

    def _low(self, layer: int) -> int:
        """The first of the slots that are read side by side up to the last."""
        if (span := self.spans.get(layer)) is not None:
            return max(0, span.low(self.n))
        return 0 if self.view is None else int(self.view.tail_start[self.b])

    def _selected(self, layer: int) -> Tensor | None:
        """[K|1,P] the slots below `_low` that are read; None for none."""
        if self.view is None or layer in self.spans:
            return None
        slots = self.view.slots(layer, self.b)
        if not slots.shape[-1]:
            return None
        return slots if slots.dim() == 2 else slots[None]

    def _mask(self, layer: int, selected: Tensor | None) -> Tensor:
        """[1,1,W,S] that is added to logits."""
        low = self._low(layer)
        span = self.spans.get(layer)
        key = low, 0 if selected is None else selected.shape[1], span
        if key not in self._masks:
            seen = torch.ones(
                self.count, self.end - low, dtype=torch.bool, device=self.position.device
            )
            seen[:, self.n - low :] = self.tree.mask[self.b, self.start :]
            if span is not None:
                seen &= (
                    self.position[low:] >= span.low(self.position[self.n + self.start :])[:, None]
                )
            seen = torch.cat([seen.new_ones(self.count, key[1]), seen], 1)
            lowest = torch.finfo(self.dtype).min
            self._masks[key] = torch.zeros_like(seen, dtype=self.dtype).masked_fill(~seen, lowest)[
                None, None
            ]
        return self._masks[key]

    def _bias(self, layer: int, selected: Tensor | None, given: Tensor) -> Tensor:
        """given [..,H,1,N], whose last columns are those of positions 0, 1 and on -> [..,H,1,S].

        Raises InputError for biases of another shape.
        """
        position = self.position[self._low(layer) :][None]
        if selected is not None:
            position = torch.cat([selected, position.expand(len(selected), -1)], 1)
        before = given.shape[-1] - self._columns
        heads = given.shape[-3]
        if given.shape[-2] != 1 or before < 0 or heads % len(position):
            raise InputError(
                f"this model has biases of shape {list(given.shape)}, which longdraft does not know"
            )
        position = before + position.clamp(max=self.reach - 1)
        if len(position) == 1:
            return given[..., position[0]]
        index = position.repeat_interleave(heads // len(position), 0)[:, None]
        return given.gather(-1, index.expand(*given.shape[:-1], -1))
