"""Methods whose drafter is a separate small model, which reads no more of a long prompt than pays."""

from __future__ import annotations

from longdraft.core.options import at_least, one_of
from longdraft.drafters import Drafter, Hierarchical, SmallModelDrafter
from longdraft.models.lm import LM
from longdraft.views import Chunks, Full, SinkWindow
from longdraft.views.prompt_selection import SCORERS


def sd(target: LM, small: LM, gamma: int = 7, reads: int = 2048) -> Drafter:
    """A small model drafts gamma tokens and sees all it reads: a prompt's first 16 and last `reads` tokens (0: all)."""
    at_least(1, gamma=gamma)
    at_least(0, reads=reads)
    return SmallModelDrafter(small, Full(), [1] * gamma, target.vocab, reads)


def budgetdraft(
    target: LM,
    small: LM,
    gamma: int = 7,
    budget: int = 256,
    chunk: int = 8,
    score: str = "obs_window",
    every: int = 0,
    reads: int = 2048,
) -> Drafter:
    """A small model drafts gamma tokens and sees `budget` slots of the prompt, the best chunks, and what came after.

    every: picks anew every so many rounds (0: never). reads: the chunks are of the prompt's first 16 tokens and so many
    last ones, at least the budget; the small model reads no others (0: all).
    """
    at_least(1, gamma=gamma, chunk=chunk)
    at_least(3 * chunk, budget=budget)
    at_least(0, every=every, reads=reads)
    one_of(tuple(SCORERS), score=score)
    policy = Chunks(budget, chunk, score, every=every)
    return SmallModelDrafter(small, policy, [1] * gamma, target.vocab, reads and max(reads, budget))


def triforce(
    target: LM,
    small: LM,
    gamma: int = 6,
    inner: int = 2,
    budget: int = 1024,
    sink: int = 16,
    window: int = 256,
    reads: int = 1024,
) -> Drafter:
    """The target drafts gamma tokens under `budget` slots of the prompt, `inner` at a time, which a small model drafts
    for it seeing `window` slots (published: budget 4096, 1 at a time).

    reads: the small model reads the prompt's first 16 tokens and so many last ones, at least what it may see (0: all).
    """
    at_least(1, gamma=gamma, inner=inner, window=window)
    at_least(0, sink=sink, reads=reads)
    at_least(24, budget=budget)
    policy = SinkWindow(sink, 0.0, window)
    drafter = SmallModelDrafter(small, policy, [1] * inner, target.vocab, reads and max(reads, window))
    return Hierarchical(target, Chunks(budget, 8, "last_query_mean_key"), drafter, gamma)
