"""What `fill` loses by its decisions about copied tokens, on recorded answers and at known costs.

    python benchmarks/copying_simulation.py --model smollm2 --write runs/texts.jsonl
    python benchmarks/copying_simulation.py runs/texts.jsonl

--write decodes answers to the tasks of `longdraft bench tasks` and appends their tokens to a file;
after that no model runs. The drafters are the real ones: `fill` without a model drafter, and
`suffix` with its adaptive depth, read the same answer and draft. A step with n nodes costs 1 + n
times --node plain steps, and both know it, so the figures say how good their decisions are and
nothing about a machine. An oracle drafts exactly what the text offers and the target accepts, by
the cheapest way through the answer. Prints a Markdown table: speedups over plain decoding, and
fill's over the better of suffix and plain decoding, in the median, in nine of ten answers, and in
the worst.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from adaptive_simulation import Case, Known, Text, oracle
from arguments import Arguments, at_least, several, status

import longdraft
from longdraft.bench.tasks.fitting import Fitting
from longdraft.bench.tasks.suites import Suite
from longdraft.core import UNBOUNDED, Captures, CaptureSpec, DraftLimits, Sampler, Tree, Verdict
from longdraft.drafters import AdaptiveDraft, Drafter, Fill, Suffix
from longdraft.drafters.fill.continuations import Continuations
from longdraft.errors import InputError

TASKS = ("copy", "code", "edit", "quote", "summary", "qa", "question", "repo")
SHORTEST = 24  # tokens of an answer: shorter ones say little


@dataclass(frozen=True)
class Answer:
    """The tokens that a target has read and, from `prompt` on, those that it has written."""

    model: str
    task: str
    temperature: float
    prompt: int
    tokens: list[int]

    @property
    def length(self) -> int:
        return len(self.tokens) - self.prompt


def answers(given: Any) -> Iterator[Answer]:
    """The target's answers to the tasks, decoded plainly."""
    lm, tokenizer = longdraft.load(given.model)
    sampler = Sampler(temperature=given.temperature, top_p=0.9) if given.temperature else None
    fitting = Fitting(tokenizer)
    for name in given.tasks:
        suite = Suite(name, [given.context], given.instances)
        for task, _ in suite.tasks(fitting):
            prompt = fitting.tokens(task.messages([]))
            new = longdraft.generate(
                lm, [prompt], max_new_tokens=given.max_new_tokens, sampler=sampler, seed=given.seed
            )[0]
            yield Answer(given.model, name, given.temperature, len(prompt), [*prompt, *new])


def write(given: Any) -> None:
    given.write.parent.mkdir(parents=True, exist_ok=True)
    with given.write.open("a", encoding="utf-8") as file:
        for answer in answers(given):
            print(f"{answer.task}: {answer.length} tokens", file=sys.stderr)
            file.write(json.dumps(asdict(answer)) + "\n")


def read(paths: Sequence[Path]) -> list[Answer]:
    """The answers of all files that are long enough. Raises InputError."""
    found = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(Answer(**json.loads(line)))
            except (TypeError, ValueError):
                raise InputError(f"{path} is not a file that --write has made") from None
    return [answer for answer in found if answer.length >= SHORTEST]


def plain_steps(drafter: Drafter, case: Case, answer: Answer) -> float:
    """Plain steps that the answer takes with this drafter."""
    tokens = answer.tokens
    length = torch.tensor([answer.prompt])
    seqs: Any = SimpleNamespace(
        tokens=torch.tensor([tokens]),
        length=length,
        cache=SimpleNamespace(length=length),
        prompt=length.clone(),
        limit=torch.tensor([answer.length]),
        done=torch.tensor([False]),
        deepest=[UNBOUNDED],
        sampler=SimpleNamespace(greedy=True),
    )
    drafter.start(seqs)
    cost = 0.0
    at = answer.prompt
    while at < len(tokens):
        root = Tree.root(seqs.tokens[:, at - 1])
        left = len(tokens) - at - 1
        tree = drafter.grow(root, seqs, DraftLimits(left)) if at > answer.prompt else root
        cost += case.verified(tree.size - 1)
        path = followed(tree, tokens[at:])
        at += len(path)
        length += len(path)
        verdict = Verdict(
            torch.tensor([path]), torch.tensor([len(path)]), torch.zeros(1, len(path)).long()
        )
        drafter.update(seqs, tree, verdict, Captures(CaptureSpec()))
    return cost


def followed(tree: Tree, tokens: list[int]) -> list[int]:
    """The nodes of the tree that these tokens lead through, the root first."""
    path = [0]
    nodes = zip(tree.parent[0].tolist(), tree.tokens[0].tolist(), strict=True)
    for node, (parent, token) in enumerate(nodes):
        if node and parent == path[-1] and token == tokens[len(path) - 1]:
            path.append(node)
    return path


def offered(answer: Answer, most: int) -> Text:
    """Of each token of the answer: how many tokens from it on the text offers as copies."""
    suffix = Suffix()
    seqs: Any = SimpleNamespace(length=torch.tensor([answer.prompt]))
    seqs.tokens = torch.tensor([answer.tokens])
    suffix.start(seqs)
    text = Continuations(suffix)
    right = []
    for at in range(answer.prompt, len(answer.tokens)):
        seqs.length[0] = at
        suffix.ready(seqs)
        match = text.at_root(0)
        run = 0
        for token in answer.tokens[at : at + most]:
            found = {p.token: p.match for p in text.proposals(0, match)}
            if token not in found:
                break
            match = found[token]
            run += 1
        right.append(run)
    return Text(right, [True] * len(right))


def row(name: str, case: Case, texts: list[Answer]) -> str:
    """One line of the table."""
    fill = []
    suffix = []
    ideal = []
    for answer in texts:
        known = Known(case)
        fill.append(answer.length / plain_steps(Fill(prices=known), case, answer))
        suffix.append(answer.length / plain_steps(AdaptiveDraft(Suffix(), known), case, answer))
        ideal.append(answer.length / oracle(case, offered(answer, case.gamma)))
    ratios = sorted(f / max(s, 1.0) for f, s in zip(fill, suffix, strict=True))
    means = [statistics.geometric_mean(x) for x in (fill, suffix, ideal)]
    ends = [statistics.median(ratios), ratios[len(ratios) // 10], ratios[0], min(fill)]
    figures = " | ".join(f"{x:.2f}" for x in (*means, *ends))
    return f"| {name} | {len(texts)} | {figures} |"


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("texts", nargs="*", type=Path, help="files that --write has made")
    parser.add_argument(
        "--node", type=at_least(0.0), default=0.2, help="plain steps that a drafted node costs"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="append answers to this file")
    parser.share("model", "seed")
    parser.add_argument(
        "--tasks", type=several(), default=",".join(TASKS), help="tasks, with commas between"
    )
    parser.add_argument("--instances", type=at_least(1), default=3, help="of each task")
    parser.change("context", 1024, "answers differ little with the length")
    parser.change("max-new-tokens", 192, "chances are learned within an answer")
    parser.change("temperature", 0.0, "greedy answers repeat the most")
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    if bool(given.texts) == bool(given.write):
        raise InputError("give files of answers, or --write FILE")
    if given.write:
        write(given)
        return
    torch.set_num_threads(1)
    case = Case(lambda n: 0.0, gamma=48, capture=0.0, fixed=0.0, level=0.0, node=given.node)
    groups: dict[str, list[Answer]] = {}
    texts = read(given.texts)
    for answer in texts:
        groups.setdefault(f"{answer.model}, T={answer.temperature:g}", []).append(answer)
    print(f"\nA node costs {given.node:g} plain steps.\n")
    print(
        "| answers | number | fill | suffix | oracle | over the better | 1 of 10 | worst | ", end=""
    )
    print("fill's worst |\n|" + " --- |" * 9)
    for name, group in groups.items():
        print(row(name, case, group))
    if len(groups) > 1:
        print(row("all", case, texts))


if __name__ == "__main__":
    sys.exit(status(main))
