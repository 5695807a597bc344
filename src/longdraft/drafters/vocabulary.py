"""The tokens that a drafter can draft, where these are some of the target's: a few thousand are
nearly all it says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longdraft.models.lm import LM
from longdraft.models.memory_traffic import head_size
from longdraft.training.data import Corpus


class DraftVocabulary(nn.Module):
    """`tokens` [count] are different tokens of the target, ascending; all others have logits of
    -inf.

    Logits are computed with the target's own rows of its output matrix, in its own precision, so
    only `tokens` is stored. The matrix must be the whole output: no scaling, no soft cap.
    """

    tokens: Tensor

    def __init__(self, tokens: Tensor, size: int):
        super().__init__()
        self.size = size  # of the target's vocabulary
        self.register_buffer("tokens", tokens)
        self._rows: list[Any] = []  # not a submodule: these weights are the target's

    def __len__(self) -> int:
        return len(self.tokens)

    def linear(self, target: LM) -> Any:
        """The target's output layer for these tokens only."""
        if not self._rows:
            self._rows.append(target.head_rows(self.tokens))
        return self._rows[0]

    def logits(self, target: LM, normed: Tensor) -> Tensor:
        """normed [..,d] -> [..,V]."""
        return self.spread(self.known_logits(target, normed))

    def known_logits(self, target: LM, normed: Tensor) -> Tensor:
        """normed [..,d] -> [..,count], of these tokens."""
        linear = self.linear(target)
        if hasattr(linear, "unpack"):  # a packed one
            linear.unpack(target.dtype)
        return linear(normed.to(target.dtype))

    def spread(self, logits: Tensor) -> Tensor:
        """[..,count] -> [..,V]."""
        return logits.new_full((*logits.shape[:-1], self.size), float("-inf")).index_copy_(
            -1, self.tokens, logits
        )

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **options: Any
    ) -> None:
        self._check(state_dict[f"{prefix}tokens"])
        self._rows.clear()
        super()._load_from_state_dict(state_dict, prefix, *args, **options)

    def _check(self, tokens: Tensor) -> None:
        """Raises ValueError for tokens that are not the target's, or not ascending."""
        if tokens.min() < 0 or tokens.max() >= self.size or bool((tokens.diff() <= 0).any()):
            raise ValueError(
                f"its draft tokens are not different tokens of the target's {self.size}, in order"
            )


def draft_vocabulary(target: LM, count: int) -> DraftVocabulary | None:
    """The target's first `count` tokens, to be replaced by those of a training run or a file; None
    for 0 or for all.
    """
    return DraftVocabulary(torch.arange(count), target.vocab) if 0 < count < target.vocab else None


def choose_tokens(vocabulary: DraftVocabulary | None, corpus: Corpus) -> None:
    """Make it the most frequent tokens of a text."""
    if vocabulary is not None:
        vocabulary.tokens.copy_(torch.from_numpy(corpus.frequent(len(vocabulary), vocabulary.size)))


def known_tokens(vocabulary: DraftVocabulary | None) -> Tensor | None:
    """[count], the tokens that can be drafted; None: all of the target's."""
    return None if vocabulary is None else vocabulary.tokens


def known_count(target: LM, vocabulary: DraftVocabulary | None) -> int:
    """How many tokens can be drafted."""
    return target.vocab if vocabulary is None else len(vocabulary)


def known_logits(target: LM, vocabulary: DraftVocabulary | None, normed: Tensor) -> Tensor:
    """normed [..,d] -> logits [..,count] of the tokens that can be drafted."""
    return target.project(normed) if vocabulary is None else vocabulary.known_logits(target, normed)


def draft_logits(target: LM, vocabulary: DraftVocabulary | None, normed: Tensor) -> Tensor:
    """normed [..,d] -> logits [..,V], by the target's output matrix or by its rows for the draft
    vocabulary.
    """
    return target.project(normed) if vocabulary is None else vocabulary.logits(target, normed)


def read_for_logits(target: LM, vocabulary: DraftVocabulary | None) -> float:
    """Bytes of the output matrix that `draft_logits` reads."""
    return head_size(target) * known_count(target, vocabulary) / target.vocab
