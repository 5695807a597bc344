"""What AdaptiveDraft loses against the best fixed depth and an oracle, at known costs.

    python benchmarks/adaptive_simulation.py
    python benchmarks/adaptive_simulation.py --trace runs/vegas.json --trace runs/suffix.json

Only the controller is real; no model runs, so the figures say how good its decisions are and
nothing about a machine. Costs are in plain decoding steps. Of each text it is drawn before which
tokens a drafter gets right, so all policies decode the same text: the controller, each fixed depth,
plain decoding, and an oracle that knows what will be accepted and takes the shortest way through
the text. Regret is the time beyond another policy's, in percent. --trace replays a recording
instead (`longdraft generate --trace FILE -o pace=off`): what was accepted there is what can be
accepted here; its costs are those of the case "usual". Prints Markdown tables.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from arguments import Arguments, at_least, status

from longdraft.core import UNBOUNDED, Captures, CaptureSpec, DraftLimits, Tree, Verdict
from longdraft.drafters import AdaptiveDraft, Drafter
from longdraft.drafters.price import DraftPrice, Lengths
from longdraft.recording.trace import Trace

LENGTHS = (96, 512)
LOOKING = CaptureSpec(rows="mean")


@dataclass(frozen=True)
class Case:
    """accept: probability that a token is drafted right, given the number of tokens so far. found:
    share of tokens before which there is anything to draft. capture, fixed, level, node: cost of
    captures, of a draft, of each level, and of verifying each node. usual: what the drafter says of
    its acceptance. wrong: draft costs are predicted to be so many times what they are.
    """

    accept: Callable[[int], float]
    gamma: int = 7
    capture: float = 0.2
    fixed: float = 0.1
    level: float = 0.2
    node: float = 0.08
    found: float = 1.0
    usual: float = 0.85
    wrong: float = 1.0

    def drafted(self, depth: int) -> float:
        return self.fixed + self.level * depth if depth else 0.0

    def verified(self, depth: int) -> float:
        return 1 + self.node * depth

    def step(self, depth: int) -> float:
        """A step that drafts, and captures what the next draft needs."""
        return self.drafted(depth) + self.verified(depth) + self.capture


def ngrams(accept: float, found: float) -> Case:
    return Case(lambda n: accept, 16, 0.0, 0.02, 0.01, 0.08, found, usual=0.6)


CASES = {
    "acceptance 0.95": Case(lambda n: 0.95),
    "acceptance 0.85": Case(lambda n: 0.85),
    "acceptance 0.7": Case(lambda n: 0.7),
    "acceptance 0.5": Case(lambda n: 0.5),
    "acceptance 0.2": Case(lambda n: 0.2),
    "acceptance 0": Case(lambda n: 0.0),
    "drafts cost half a plain step, acceptance 0.9": Case(lambda n: 0.9, level=0.5),
    "drafts cost half a plain step, acceptance 0.3": Case(lambda n: 0.3, level=0.5),
    "verifying is expensive, acceptance 0.8": Case(lambda n: 0.8, 7, 0.1, 0.1, 0.1, 0.3),
    "verifying is expensive, acceptance 0": Case(lambda n: 0.0, 7, 0.1, 0.1, 0.1, 0.3),
    "n-grams in 20% of the steps, acceptance 0.8": ngrams(0.8, 0.2),
    "n-grams in 20% of the steps, acceptance 0": ngrams(0.0, 0.2),
    "acceptance 0.3 for 40 tokens, then 0.95": Case(lambda n: 0.3 if n < 40 else 0.95),
    "acceptance 0.95 for 40 tokens, then 0": Case(lambda n: 0.95 if n < 40 else 0.0),
    "an answer: acceptance 0.4 for 12 tokens, then 0.93": Case(lambda n: 0.4 if n < 12 else 0.93),
    "32K: choosing costs 0.4, acceptance 0.85": Case(lambda n: 0.85, 7, 0.4, 0.1, 0.15, 0.15),
    "drafts predicted at half their cost, acceptance 0": Case(lambda n: 0.0, wrong=0.5),
    "drafts predicted at half their cost, acceptance 0.85": Case(lambda n: 0.85, wrong=0.5),
}


class Text:
    """right[t]: how many of the tokens from t on a draft gets right; found[t]: whether there is
    anything to draft.
    """

    def __init__(self, right: list[int], found: list[bool]):
        self.right = right
        self.found = found

    def __len__(self) -> int:
        return len(self.right)

    def gained(self, t: int, depth: int) -> int:
        return min(self.right[t], depth) if self.found[t] else 0

    @staticmethod
    def drawn(case: Case, tokens: int, seed: int) -> Text:
        rng = random.Random(seed)
        right = [0] * tokens
        run = 0
        for t in reversed(range(tokens)):
            right[t] = run = run + 1 if rng.random() < case.accept(t) else 0
        return Text(right, [rng.random() < case.found for _ in range(tokens)])

    @staticmethod
    def recorded(path: Path) -> Text:
        """Raises InputError or OSError for a file that is no trace."""
        lane = Trace.model_validate_json(path.read_text(encoding="utf-8")).lanes[-1]
        # of each token: whether it was or would have been drafted right
        predicted = list[bool]()
        found = list[bool]()
        for r in lane.rounds:
            depths = [0]
            for node in r.nodes:
                depths.append(depths[node.parent + 1] + 1)
            # nothing was refused: the next token counts as right
            whole = bool(r.nodes) and r.accepted == max(depths)
            predicted += [i < r.accepted or whole for i in range(len(r.tokens))]
            found += [bool(r.nodes)] * len(r.tokens)
        right = [0] * len(predicted)
        run = 0
        for t in reversed(range(len(predicted))):
            right[t] = run = run + 1 if predicted[t] else 0
        return Text(right, found)


class Simulated(Drafter):
    is_chain = True

    def __init__(self, case: Case, text: Text):
        self.case = case
        self.text = text
        self.at = 0
        self.max_depth = case.gamma

    def price(self) -> DraftPrice:
        return DraftPrice(
            max_depth=self.max_depth,
            usual=(self.case.usual, self.case.usual),
            finds=1.0 if self.case.found == 1 else 0.5,
        )

    def captures(self) -> CaptureSpec:
        return LOOKING if self.case.capture else CaptureSpec()

    def grow(self, tree: Tree, seqs: Any, limits: DraftLimits) -> Tree:
        depth = min(limits.depth, self.case.gamma) if self.text.found[self.at] else 0
        return Tree.chain(torch.zeros(1, depth + 1, dtype=torch.long))


class Known:
    """The prices of a case."""

    corrects = False

    def __init__(self, case: Case):
        self.case = case

    def plain(self, lengths: Lengths) -> float:
        return 1.0

    def verify(self, lengths: Lengths, nodes: int, spec: CaptureSpec) -> float:
        return self.case.verified(nodes - 1) + (self.case.capture if spec.rows else 0.0)

    def draft(self, drafter: Drafter, lengths: Lengths, depth: int, width: int) -> float:
        return self.case.drafted(depth) * self.case.wrong

    def ready(self, passes: Any) -> float:
        return 0.0

    anchored = True

    def handling(self, nodes: float) -> float:
        return 0.0

    def scale(self, part: Any, nodes: int = 1) -> float:
        return 1.0

    def observe(self, part: Any, predicted: float, measured: float, nodes: int = 1) -> None: ...


def adaptive(case: Case, text: Text) -> float:
    """Plain steps that the real controller takes."""
    inner = Simulated(case, text)
    drafter = AdaptiveDraft(inner, Known(case))
    length = torch.tensor([1000])
    seqs: Any = SimpleNamespace(
        length=length,
        cache=SimpleNamespace(length=length),
        prompt=length.clone(),
        limit=torch.tensor([len(text)]),
        done=torch.tensor([False]),
        deepest=[UNBOUNDED],
        sampler=SimpleNamespace(greedy=True),
    )
    drafter.start(seqs)
    tokens = 0
    cost = 0.0
    root = Tree.root(torch.zeros(1, dtype=torch.long))
    while tokens < len(text):
        inner.at = tokens
        tree = drafter.grow(root, seqs, DraftLimits(len(text) - tokens - 1)) if tokens else root
        depth = tree.size - 1
        spec = drafter.captures()
        cost += case.drafted(depth) + case.verified(depth) + (case.capture if spec.rows else 0.0)
        accepted = text.gained(tokens, depth)
        path = torch.arange(accepted + 1)[None]
        tokens += accepted + 1
        length += accepted + 1
        verdict = Verdict(path, torch.tensor([accepted + 1]), torch.zeros_like(path))
        drafter.update(seqs, tree, verdict, Captures(spec))
    return cost


def fixed(case: Case, text: Text, depth: int) -> float:
    """Plain steps that drafts of one depth take; 0: plain decoding."""
    t = 1
    cost = 1.0 + (case.capture if depth else 0.0)
    while t < len(text):
        d = min(depth, len(text) - t - 1) if text.found[t] else 0
        cost += case.step(d) if depth else 1.0
        t += text.gained(t, d) + 1
    return cost


def oracle(case: Case, text: Text) -> float:
    """Plain steps of the shortest way: it drafts exactly what is accepted, or nothing."""
    left = [0.0] * (len(text) + 1)
    for t in reversed(range(1, len(text))):
        ways = [1 + left[t + 1]]
        ways += [
            case.step(d) + left[t + d + 1]
            for d in range(1, text.gained(t, case.gamma) + 1)
            if t + d < len(text)
        ]
        left[t] = min(ways)
    return 1 + left[1]


def speedup(case: Case, seed: int, tokens: int = 256) -> float:
    """The controller's over plain decoding, on one text."""
    return tokens / adaptive(case, Text.drawn(case, tokens, seed))


def row(name: str, case: Case, texts: list[Text]) -> str:
    """One line of a table: speedups over plain decoding, and regrets."""
    took = [adaptive(case, text) for text in texts]
    plain = [float(len(text)) for text in texts]
    each = {d: [fixed(case, text, d) for text in texts] for d in range(case.gamma + 1)}
    depth = min(each, key=lambda d: sum(each[d]))
    best = sum(each[depth])
    ideal = sum(oracle(case, text) for text in texts)
    gains = sorted(p / c for p, c in zip(plain, took, strict=True))
    total = sum(took)
    cells = [
        f"{sum(plain) / best:.2f} ({depth or 'off'})",
        f"{statistics.mean(gains):.2f}",
        f"{gains[0]:.2f}",
    ]
    cells += [f"{total / best - 1:.1%}", f"{total / ideal - 1:.1%}", f"{best / ideal - 1:.1%}"]
    return f"| {name} | {' | '.join(cells)} |"


def table(title: str, rows: list[str]) -> None:
    print(f"\n{title}\n")
    columns = ["drafter", "best fixed depth", "adaptive, mean", "worst"]
    columns += [
        f"regret: {pair}"
        for pair in ("adaptive, best fixed", "adaptive, oracle", "best fixed, oracle")
    ]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    print("\n".join(rows))


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.change("repeat", 40, "a run takes milliseconds")
    parser.add_argument(
        "--trace", type=Path, action="append", default=[], help="replay this recording; repeatable"
    )
    parser.add_argument(
        "--level",
        type=at_least(0.0),
        default=0.2,
        help="plain steps per drafted level of a recording",
    )
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    torch.set_num_threads(1)
    if given.trace:
        case = replace(CASES["acceptance 0.85"], level=given.level)
        table("Recordings", [row(path.name, case, [Text.recorded(path)]) for path in given.trace])
        return
    for tokens in LENGTHS:
        rows = []
        for name, case in CASES.items():
            rows.append(
                row(name, case, [Text.drawn(case, tokens, seed) for seed in range(given.repeat)])
            )
        table(f"{tokens} tokens, {given.repeat} texts", rows)


if __name__ == "__main__":
    sys.exit(status(main))
