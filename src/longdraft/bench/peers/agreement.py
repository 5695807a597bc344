"""Whether another engine computes the same model: its first greedy tokens beside plain decoding's.

Arithmetic differs, so outputs may part where two tokens tie. After that an engine that read the
file correctly still chooses nearly always what the target would choose after the same tokens; one
that misread it does not.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from longdraft.bench.peers.base import CannotRun
from longdraft.core import DraftLimits, Rows, Sampler, Sampling, Sequences, Tree, Verdict, match
from longdraft.drafters import Drafter
from longdraft.engine.decode_session import DecodeSession

FIRST = 32  # tokens that are compared
EQUAL = 8  # an output with as many equal tokens at its start is the same model's
CHOSEN = 0.75  # else, of its tokens at least this share must be the target's own choice


class FirstTokens:
    """The first greedy tokens of plain decoding, and of each engine that was compared with it."""

    def __init__(self) -> None:
        self.plain: list[list[int]] | None = None
        self.others: dict[str, list[list[int]]] = {}

    def compare(self, session: DecodeSession, label: str, rows: list[list[int]]) -> dict[str, Any]:
        """The agreement that the engine's records show for the row that agrees least. Raises
        CannotRun if it misreads the model.

        compared: tokens; equal: how many at the start equal plain decoding's; chosen: how many are
        the target's greedy choice after the engine's own tokens; with: how many at the start equal
        those of each earlier engine.
        """
        greedy = copy(session)  # the same prompts and cache
        greedy.sampler = Sampler().under(session.target.rules())
        if self.plain is None:
            self.plain = greedy.rows(limit=min(FIRST, session.limit))
        count = min(len(row) for row in [*self.plain, *rows])
        rows = [row[:count] for row in rows]
        equal = leading(rows, self.plain)
        chosen = _chosen(greedy, rows)
        if equal < min(EQUAL, count) and chosen < CHOSEN * count:
            raise CannotRun(
                f"it does not compute this model: of its first {count} tokens {equal} "
                "equal plain decoding's, "
                f"and {chosen} are the model's choice after the same tokens"
            )
        beside = {other: leading(rows, theirs) for other, theirs in self.others.items()}
        self.others[label] = rows
        return {"compared": count, "equal": equal, "chosen": chosen, "with": beside}


def _chosen(session: DecodeSession, rows: list[list[int]]) -> int:
    """How many tokens of each row the target would choose after those before them; the minimum of
    all rows.
    """
    if any(not 0 <= token < session.target.vocab for row in rows for token in row):
        return 0
    given = torch.tensor(rows, device=session.target.device)
    best: list[Tensor] = []

    def look(tree: Tree, logits: Tensor, sampler: Sampling, of: Rows) -> Verdict:
        best.append(sampler.processed(logits, tree, of).argmax(-1))
        if len(best) > 1:
            return match(tree, logits, sampler, of)
        # the first step does not draft: it takes the engine's token
        first = torch.zeros_like(given[:, :1])
        return Verdict(first, first[:, 0] + 1, given[:, :1])

    for _ in session.decode(_Given(given), limit=given.shape[1], verify=look):
        if len(best) == 2:
            break
    return int((torch.cat(best, 1) == given).sum(1).min())


class _Given(Drafter):
    """Drafts, after the first of the given tokens [B,N], all others but the last, whose successor
    does not matter.
    """

    def __init__(self, given: Tensor):
        self.given = given

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        return Tree.chain(self.given[:, :-1])


def leading(rows: list[list[int]], others: list[list[int]]) -> int:
    """How many tokens at the start are equal, in the rows that agree least."""
    return min(_leading(a, b) for a, b in zip(rows, others, strict=True))


def _leading(a: list[int], b: list[int]) -> int:
    size = min(len(a), len(b))
    return next((i for i in range(size) if a[i] != b[i]), size)
