"""Tells which differences rounding explains: the gap of a tie, and how many ties are too many.

Where rounding depends on the number of tokens in a pass, a choice between two tokens with almost
equal scores can change. A fault that favors drafts by less than the tolerance looks like such ties,
but it produces more of them than a control: plain decoding compared with itself in passes of
another size.
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, lgamma, log

import torch

from longdraft.core import DraftLimits, Sequences, Tree
from longdraft.drafters import Drafter
from longdraft.models.lm import LM

# Scores this close are a tie. Logits lie between 16 and 32, where neighboring bfloat16 numbers are
# 0.125 apart.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
WIDTH = 8  # tokens per pass of the control: as many as when a chain of seven drafts is verified
FALSE_ALARM = 1e-6  # probability that an audit fails although its ties are as rare as the control's
# this many times the control's tie rate is accepted: other passes may round a little worse
TIMES = 2


def default_tolerance(target: LM) -> float:
    """The tolerance for a target: 0 for an exact backend.

    Its bits are guaranteed to be equal, so a tolerance would only hide faults.
    """
    return 0.0 if target.exact else TOLERANCE[str(target.dtype).removeprefix("torch.")]


class Replay(Drafter):
    """Drafts the known output of the only row: each verify pass computes `width` of its tokens."""

    def __init__(self, text: list[int], width: int = WIDTH):
        self.text = text
        self.width = width

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        length = int(seqs.length[0])
        known = self.text[length : length + min(self.width - 1, limits.depth)]
        return Tree.chain(torch.cat([tree.tokens, tree.tokens.new_tensor([known])], 1))


def most_ties(tokens: int, control_ties: int, control_tokens: int) -> int:
    """The largest number of ties in `tokens` tokens that does not fail an audit.

    More ties fail it if their rate exceeds TIMES the control's and if as many would occur with a
    probability below FALSE_ALARM at equal rates: the method's part of all ties is then binomial,
    with its part of all tokens.
    """
    share = control_tokens / (tokens + control_tokens)
    low = min(int(TIMES * control_ties * tokens / control_tokens), tokens)
    more = range(low + 1, tokens + 1)
    return low + bisect_left(
        more, True, key=lambda ties: tail_probability(ties, control_ties, share) < FALSE_ALARM
    )


def tail_probability(ties: int, others: int, share: float) -> float:
    """The probability that at most `others` of ties + others belong to the control.

    share: the share of all ties that do.
    """
    total = ties + others
    logs = [
        lgamma(total + 1)
        - lgamma(i + 1)
        - lgamma(total - i + 1)
        + i * log(share)
        + (total - i) * log(1 - share)
        for i in range(others + 1)
    ]
    return sum(map(exp, logs))
