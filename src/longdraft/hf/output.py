"""The output of `generate` as it grows, one position of all rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdraft.errors import InputError


class GenerateOutput:
    """The output of `generate`: ids [B,length] equal plain decoding's after as many passes.

    Single rows may have been decoded further ahead. So stopping criteria see the same as there, and
    tokens beyond the point where they end a row are dropped.
    """

    def __init__(
        self, prompt: Tensor, limit: int, criteria: Any, pad: Tensor | None, streamer: Any = None
    ):
        self._ids = torch.cat([prompt, prompt.new_zeros(len(prompt), limit)], 1)
        self.begin = prompt.shape[1]
        self.length = self.begin
        self.criteria = criteria
        self.streamer = streamer
        self.unfinished = torch.ones(len(prompt), dtype=torch.bool, device=prompt.device)
        # Without an end token, Transformers decodes all rows until the last of them is finished.
        self.pads = any(hasattr(c, "eos_token_id") for c in criteria)
        if self.pads and pad is None:
            raise InputError(
                "a batch that ends at end tokens needs something to fill its rows with: "
                "give pad_token_id"
            )
        self.pad = 0 if pad is None else int(pad)

    @property
    def ids(self) -> Tensor:
        return self._ids[:, : self.length]

    def take(self, rows: list[list[int]]) -> bool:
        """Append the positions that all rows have reached.

        Returns whether there is more to decode.
        """
        while bool(self.unfinished.any()):
            position = self.length - self.begin
            live = self.unfinished.tolist()
            decoded = [bool(row_live) or not self.pads for row_live in live]
            if any(need and len(row) <= position for need, row in zip(decoded, rows, strict=True)):
                return True
            column = list[int]()
            for need, row in zip(decoded, rows, strict=True):
                column.append(row[position] if need else self.pad)
            self._append(self._ids.new_tensor(column))
        return False

    def _append(self, column: Tensor) -> None:
        self._ids[:, self.length] = column
        self.length += 1
        self.unfinished &= ~self.criteria(self.ids, None)
        if self.streamer is not None:
            self.streamer.put(column.cpu())
