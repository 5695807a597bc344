"""What may be excused as rounding: how close two scores must be to tie, and how many ties are too many.

Where rounding depends on how many tokens a pass computes, a choice between two tokens that score almost the same may
fall otherwise. Whatever favours drafts by less than the tolerance hides behind such ties; what gives it away is their
number, beside that of plain decoding compared with itself in passes of another shape (the control).
"""

from __future__ import annotations

from math import exp, lgamma, log

import torch

from longdraft.core.limits import DraftLimits
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.drafters import Drafter
from longdraft.models.lm import LM

# Scores this close are a tie. In bfloat16 neighbouring numbers between 16 and 32, where logits lie, are 0.125 apart.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
WIDTH = 8  # tokens of a control's pass: what a chain of seven drafts takes, for an eighth of plain decoding's passes
FALSE_ALARM = 1e-6  # how often at most an audit is failed for ties that are as rare as the control's
TIMES = 2  # so many times the control's rate is no reason for alarm: another shape of pass may round a little worse


def default_tolerance(target: LM) -> float:
    """0 where passes are exact: equality to the bit is promised there, and a tolerance would only hide faults."""
    return 0.0 if target.exact else TOLERANCE[str(target.dtype).removeprefix("torch.")]


class Replay(Drafter):
    """Drafts the row's known text, so that each verify pass computes `width` of its tokens at once."""

    def __init__(self, text: list[int], width: int = WIDTH):
        self.text, self.width = text, width

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        at = int(seqs.length[0])
        known = self.text[at : at + min(self.width - 1, limits.depth)]
        return Tree.chain(torch.cat([tree.tokens, tree.tokens.new_tensor([known])], 1))


def most_ties(tokens: int, control_ties: int, control_tokens: int) -> int:
    """The most ties in so many tokens that are no reason for alarm.

    More are an alarm if their rate is above TIMES the control's, and so many would be seen with a probability below
    FALSE_ALARM if the two rates were equal. Then, of all ties together, the method's are a binomial share by the number
    of tokens: a one-sided exact test, which allows for a control that had few by luck.
    """
    share = control_tokens / (tokens + control_tokens)
    low, high = int(TIMES * control_ties * tokens / control_tokens), tokens
    if low >= high or chance(low + 1, control_ties, share) < FALSE_ALARM:
        return min(low, tokens)
    while low < high:  # `low` passes
        middle = (low + high + 1) // 2
        if chance(middle, control_ties, share) < FALSE_ALARM:
            high = middle - 1
        else:
            low = middle
    return low


def chance(ties: int, others: int, share: float) -> float:
    """How likely `others` or fewer of ties + others fall to the control, if each does with probability `share`."""
    total = ties + others
    logs = [
        lgamma(total + 1) - lgamma(i + 1) - lgamma(total - i + 1) + i * log(share) + (total - i) * log(1 - share)
        for i in range(others + 1)
    ]
    return sum(map(exp, logs))
