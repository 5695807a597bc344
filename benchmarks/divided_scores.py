"""Acceptance where each process selects keys by its own heads, or all by the mean.

    torchrun --nproc-per-node 2 benchmarks/divided_scores.py --contexts 4096 --texts 6

Prints one JSON line per passage and budget, and one with the means of each text and budget. vegas,
chains of 7, float32, T=1; the target is the bundled model.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

import torch
from arguments import Arguments, at_least, several, status

from longdraft.backends.divided import Divided
from longdraft.bench import inputs
from longdraft.core import Captures, KVCache, KVView, Sampler, Tree
from longdraft.core.processes import joined
from longdraft.drafters import SelfDrafter
from longdraft.engine.decode_session import DecodeSession
from longdraft.engine.generate import Stats
from longdraft.models.loading import load
from longdraft.views import Guided


class AllHeads(Divided):
    """Scores are means over the heads of all processes."""

    def forward(
        self,
        tree: Tree,
        cache: KVCache,
        start: int,
        view: KVView | None,
        captured: Captures,
        logits: int = 0,
    ) -> torch.Tensor:
        found = super().forward(tree, cache, start, view, captured, logits)
        for scores in captured.scores.values():
            scores /= self.team.size
        self.team.sum(captured.scores.values())
        return found


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("model", "contexts", "max-new-tokens")
    parser.change("texts", 6, "the two ways differ by less than passages do")
    parser.add_argument(
        "--budgets", type=several(at_least(1)), default="64,256", help="keys that a draft reads"
    )
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    team = joined(60.0)
    lm, tokenizer = load(given.model, "float32", team=team)
    backends = {"mean over all heads": AllHeads(lm.architecture, team), "own heads": lm.eager}
    totals = defaultdict(lambda: defaultdict(list))
    for text in inputs.texts(["code", "book"], [], tokenizer):
        for context in given.contexts:
            for passage, prompt in enumerate(text.prompts(context, given.texts)):
                session = DecodeSession(
                    lm, [prompt], given.max_new_tokens, Sampler(1.0), passage, ()
                )
                plain = session.rows()
                for budget in given.budgets:
                    found = {
                        "text": text.name,
                        "context": context,
                        "passage": passage,
                        "budget": budget,
                    }
                    for mode, backend in backends.items():
                        lm.eager = lm.backend = backend
                        stats = Stats()
                        rows = session.rows(SelfDrafter(lm, Guided(0.0, budget), [1] * 7), stats)
                        assert rows == plain, "drafts have changed the output"
                        found[mode] = round(stats.mean_acceptance_length, 3)
                        totals[text.name, budget][mode] += [sum(stats.accepted), stats.steps]
                    if team.first:
                        print(json.dumps(found), flush=True)
    for (name, budget), modes in totals.items():
        means = {
            mode: round(1 + sum(found[::2]) / sum(found[1::2]), 3) for mode, found in modes.items()
        }
        if team.first:
            print(
                json.dumps(
                    {"text": name, "budget": budget, "steps": sum(modes["own heads"][1::2])} | means
                )
            )


if __name__ == "__main__":
    sys.exit(status(main))
