"""Top-p without sorting the vocabulary.

On a CPU a full sort takes a quarter of a decoding step of a small model.
"""

from __future__ import annotations

import torch
from torch import Tensor

# how many of the most likely tokens are looked at first, and how many times as many next
FIRST = 64
MORE = 8


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """logits [N,V], with -inf for all but the fewest most likely tokens that reach top_p together.

    Equals Transformers' TopPLogitsWarper up to rounding, which sums the probabilities of the
    unlikely tokens. Of tokens with equal logits at the limit, those with the lowest ids are kept,
    as `ops.draw` does; Transformers leaves that to `torch.sort`. A row's result does not depend on
    the other rows.
    """
    filtered = torch.full_like(logits, float("-inf"))
    for row, kept in zip(logits, filtered, strict=True):
        tokens = _most_likely(row, top_p)
        kept[tokens] = row[tokens]
    return filtered


def _most_likely(logits: Tensor, top_p: float) -> Tensor:
    """The tokens before each of which the probabilities of likelier ones sum to less than top_p."""
    probs = logits.softmax(-1)
    count = min(FIRST, len(logits))
    while True:
        best = logits.topk(count)
        above = probs[best.indices].cumsum(0) - probs[best.indices]
        if count == len(logits) or above[-1] >= top_p:
            return _first(logits, best.values[above < top_p])
        count = min(MORE * count, len(logits))


def _first(logits: Tensor, kept: Tensor) -> Tensor:
    """The tokens of these largest logits, sorted.

    Of the tokens with the last logit, those with the lowest ids.
    """
    if not len(kept):  # no number is the largest: there are NaNs
        return torch.empty(0, dtype=torch.long, device=logits.device)
    likelier = (logits > kept[-1]).nonzero()[:, 0]
    equal = (logits == kept[-1]).nonzero()[:, 0]
    return torch.cat([likelier, equal[: len(kept) - len(likelier)]])
