"""How close AdaptiveDraft comes to the best fixed depth, on simulated drafters of known cost and acceptance.

    python benchmarks/adaptive_simulation.py

Only the controller is real. Costs are in plain decoding steps, with random noise; no model runs, so the figures say how
good the decisions are and nothing about any machine. Prints a Markdown table.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from arguments import Arguments, status

from longdraft.core import Captures, DraftLimits, Tree, Verdict
from longdraft.drafters import AdaptiveDraft, Drafter
from longdraft.drafters.adaptive.step_costs import Measured

TOKENS = 256
HICCUP = 4.0  # cost of a step that the machine disturbs, in usual steps


@dataclass(frozen=True)
class Case:
    """accept: probability that a draft is accepted, given the number of tokens so far. found: share of steps in which
    there is anything to draft. capture, fixed, level: cost of captures, of any draft and of each level of it."""

    accept: Callable[[int], float]
    gamma: int = 7
    capture: float = 0.3
    fixed: float = 0.4
    level: float = 0.2
    found: float = 1.0
    noise: float = 0.1
    hiccups: float = 0.01

    def best(self) -> float:
        """The speedup of the best fixed depth, at the acceptance of the first token."""
        p = self.accept(0)
        costs = [1 + self.capture + self.fixed + self.level * d for d in range(1, self.gamma + 1)]
        return max(1.0, *(sum(p**i for i in range(d + 2)) / cost for d, cost in enumerate(costs)))


def ngrams(accept: float, found: float) -> Case:
    return Case(lambda n: accept, 16, 0.0, 0.1, 0.07, found)


CASES = {
    "acceptance 0.95": Case(lambda n: 0.95),
    "acceptance 0.85": Case(lambda n: 0.85),
    "acceptance 0.7": Case(lambda n: 0.7),
    "acceptance 0.2": Case(lambda n: 0.2),
    "acceptance 0": Case(lambda n: 0.0),
    "acceptance 0.5": Case(lambda n: 0.5),
    "verifying is dear, acceptance 0.8": Case(lambda n: 0.8, 7, 0.1, 0.1, 0.45),
    "verifying is dear, acceptance 0": Case(lambda n: 0.0, 7, 0.1, 0.1, 0.6),
    "n-grams in 20% of the steps, acceptance 0.8": ngrams(0.8, 0.2),
    "acceptance 0.3 for 40 tokens, then 0.95": Case(lambda n: 0.3 if n < 40 else 0.95),
    "an answer: acceptance 0.4 for 12 tokens, then 0.93": Case(lambda n: 0.4 if n < 12 else 0.93, 7, 0.15, 0.35, 0.37),
    "acceptance 0.9, large outliers": Case(lambda n: 0.9, noise=0.2, hiccups=0.1),
}


class Simulated(Drafter):
    is_chain = True

    def __init__(self, case: Case, rng: random.Random):
        self.case, self.rng, self.max_depth = case, rng, case.gamma

    def grow(self, tree: Tree, seqs: Any, limits: DraftLimits) -> Tree:
        depth = min(limits.depth, self.case.gamma) if self.rng.random() < self.case.found else 0
        return Tree.chain(torch.zeros(1, depth + 1, dtype=torch.long))


def speedup(case: Case, seed: int) -> float:
    """Of one run of TOKENS tokens over plain decoding."""
    rng, now = random.Random(seed), 0.0
    adaptive = AdaptiveDraft(Simulated(case, rng), Measured(lambda: now))
    seqs: Any = SimpleNamespace(length=torch.zeros(1), done=torch.tensor([False]))
    adaptive.start(seqs)
    tokens, root = 0, Tree.root(torch.zeros(1, dtype=torch.long))
    while tokens < TOKENS:
        tree = adaptive.grow(root, seqs, DraftLimits(TOKENS - tokens))
        depth, accepted = tree.size - 1, 0
        while accepted < depth and rng.random() < case.accept(tokens):
            accepted += 1
        cost = 1 + (case.fixed + case.level * depth if depth else 0) + (case.capture if adaptive.asked != 0 else 0)
        cost *= rng.lognormvariate(0, case.noise) * (HICCUP if rng.random() < case.hiccups else 1)
        now += cost
        captured = Captures(target=True)
        path = torch.arange(accepted + 1)[None]
        adaptive.update(seqs, tree, Verdict(path, torch.tensor([accepted + 1]), torch.zeros_like(path)), captured)
        tokens += accepted + 1
    usual = math.exp(case.noise**2 / 2) * (1 + (HICCUP - 1) * case.hiccups)
    return tokens * usual / now


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.change("repeat", 40, "a run takes milliseconds")
    return parser


def main(words: list[str] | None = None) -> None:
    runs = options().parse(words).repeat
    torch.set_num_threads(1)
    print(f"| drafter | best fixed depth | mean of {runs} runs | worst tenth |\n| --- | --- | --- | --- |")
    for name, case in CASES.items():
        found = sorted(speedup(case, seed) for seed in range(runs))
        varies = case.found < 1 or "then" in name
        best = "" if varies else f"{case.best():.2f}"
        print(f"| {name} | {best} | {statistics.mean(found):.2f} | {found[runs // 10]:.2f} |")


if __name__ == "__main__":
    sys.exit(status(main))
