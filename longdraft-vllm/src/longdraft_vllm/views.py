"""What the drafts of vegas and magicdec-stream read; their options are attributes (options.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from longdraft.views.guided import SHARE
from longdraft_vllm.options import options_of
from longdraft_vllm.pages import best_pages, kept, sink_and_latest


class SelfDraft:
    """Names a view for the model runner, which drafts by the target itself: it never proposes
    anything alone.
    """

    guided = False  # whether it selects by scores
    every: int | None = 1  # steps for which a request's view is used; None: the pace decides

    def __init__(self, vllm_config: Any):
        vars(self).update(options_of(vllm_config, type(self).__name__))

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """The target drafts: there is no model to load."""

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        raise RuntimeError(
            f"{type(self).__name__} needs the model runner of longdraft-vllm, which "
            "--worker-cls has replaced"
        )

    def select(self, covered: int, page: int, scores: Callable[[], Tensor]) -> Tensor:
        """[L|1,P] the whole pages among a row's first `covered` slots that its draft reads,
        ascending.

        scores(): [L,covered] what its verification attended to, in each layer.
        """
        raise NotImplementedError


class Vegas(SelfDraft):
    """vegas: in each layer, the pages that a recent verification attended to most."""

    guided = True
    keep_ratio: float
    min_budget: int
    reach: int

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        if self.every is not None and (type(self.every) is not int or self.every < 1):
            raise ValueError(f"every is {self.every!r}: give a number of steps, at least 1")

    def select(self, covered: int, page: int, scores: Callable[[], Tensor]) -> Tensor:
        count = kept(covered, page, self.keep_ratio, self.min_budget)
        if count == covered // page:
            return sink_and_latest(count, count, 0)
        return best_pages(scores(), page, count, self.reach, SHARE)


class MagicdecStream(SelfDraft):
    """magicdec-stream: the pages of the first `sink` slots, and the latest ones."""

    sink: int
    keep_ratio: float
    min_budget: int

    def select(self, covered: int, page: int, scores: Callable[[], Tensor]) -> Tensor:
        count = kept(covered, page, self.keep_ratio, self.min_budget)
        return sink_and_latest(covered // page, count, -(-self.sink // page))
