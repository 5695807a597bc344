"""Differential attention: each layer attends twice with the same weights, to two halves of its
values (DiffLlama).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from longdraft.backends.current_pass import CurrentPass, current
from longdraft.backends.features.feature import Attend, Call, Feature, Groups
from longdraft.ops import Segment


class Differential(Feature):
    """Two calls of attention by each layer."""

    models = "DiffLlama"
    computed = "values are cached once, and each call reads one half of their heads"
    calls = 2
    undivided = "'s layers pair heads that processes would divide"

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        return cls() if is_differential(hf) else None

    @contextmanager
    def around(self, p: CurrentPass) -> Generator[None]:
        p.kept[self] = Halves()
        yield

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        halves: Halves | None = current().kept.get(self)
        if halves is not None:
            call.value = halves.stored(call.layer, call.value)
        return proceed(call)

    def groups(self, proceed: Groups, layer: int, b: int, q: Tensor) -> list[list[Segment]]:
        halves: Halves = current().kept[self]
        return [[halves.read(s) for s in segments] for segments in proceed(layer, b, q)]


def is_differential(hf: Any) -> bool:
    """Whether the model's layers call attention twice."""
    return any(
        hasattr(m, "lambda_q1") and hasattr(m, "groupnorm") for m in hf.get_decoder().modules()
    )


class Halves:
    """The cache holds each value head once; a call of a layer reads one half of them for all of its
    key heads.

    So key head j of the first call has value head j modulo K/2, and in the second call the one K/2
    after it. Belongs to one pass.
    """

    def __init__(self) -> None:
        self.first: dict[int, Tensor] = {}  # by layer between its calls, [B,K/2,W,D] of the first
        self.call = 0

    def stored(self, layer: int, v: Tensor) -> Tensor:
        """v [B,K,W,D]: the half of the value heads of this call, twice -> all value heads
        [B,K,W,D].

        In the first call the second half is not known yet, and not read.
        """
        half = v[:, : v.shape[1] // 2]
        first = self.first.pop(layer, None)
        self.call = 0 if first is None else 1
        if first is None:
            self.first[layer] = first = half
        return torch.cat([first, half], 1)

    def read(self, segment: Segment) -> Segment:
        """The keys of a segment with this call's half of the values, twice."""
        values = segment.v.chunk(2)[self.call]
        return Segment(segment.k, torch.cat([values, values]), segment.visible)
