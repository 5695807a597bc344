"""Drafters that know how many of their tokens are right."""

from __future__ import annotations

import torch
from support import tiny
from support.checks import SAMPLERS, SEED, plain

from longdraft import Stats, generate
from longdraft.core import CaptureSpec
from longdraft.drafters import Drafter
from longdraft.drafters.price import DraftPrice

NEW = 400


class Prophet(Drafter):
    """Chains of `gamma` tokens at most; the first good(n) of the n-th are plain decoding's. Counts
    captures.
    """

    finds = 1.0

    def __init__(self, rows: list[list[int]], gamma: int, good, usual: float = 0.8):
        self.rows = rows
        self.max_depth = gamma
        self.good = good
        self.usual = (usual, usual)
        self.drafts = 0
        self.captured = 0
        self.depths = []
        self.steps = []

    def price(self):
        return DraftPrice(max_depth=self.max_depth, usual=self.usual, finds=self.finds)

    def captures(self):
        self.captured += 1
        return self.choosing()

    def choosing(self):
        return CaptureSpec(hidden=(1,))

    def grow(self, tree, seqs, limits):
        for d in range(min(self.max_depth, limits.depth)):
            n = int(seqs.length[0] - seqs.prompt[0]) + d
            right = self.rows[0][n] if n < len(self.rows[0]) else 0
            token = right if d < self.good(self.drafts) else (right + 1) % 96
            tree = tree.grow(torch.tensor([[tree.size - 1]]), torch.tensor([[token]]))
        self.drafts += 1
        self.depths.append(tree.size - 1)
        self.steps.append(int(seqs.length[0] - seqs.prompt[0]))
        return tree


def text(new: int = NEW) -> list[int]:
    return plain("llama-loops", SAMPLERS["T=1"], (70,), new)[0]


def decode(drafter: Drafter, new: int = NEW) -> Stats:
    stats = Stats()
    options = {"max_new_tokens": new, "sampler": SAMPLERS["T=1"], "seed": SEED, "stats": stats}
    assert generate(tiny.target("llama-loops"), tiny.prompts(70), drafter, **options) == [text(new)]
    return stats
