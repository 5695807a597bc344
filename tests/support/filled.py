"""What must hold of `Fill`, as functions that raise AssertionError."""

from __future__ import annotations

from dataclasses import replace

import torch
from support import tiny
from support.checks import SAMPLERS, SEED
from support.listed import BUILD, EAGLE, FULL_BUDGET, make
from support.prices import Stated

from longdraft import Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.tree import UNBOUNDED, DraftLimits, Tree
from longdraft.drafters import Drafter, Fill, Suffix
from longdraft.drafters.adaptive.constants import DEFAULTS
from longdraft.drafters.fill.calibration import Calibration, Guess
from longdraft.drafters.fill.continuations import Continuations
from longdraft.drafters.fill.filled_rows import FilledRows
from longdraft.drafters.fill.growth import FilledNode, Growth
from longdraft.drafters.ngram.suffix import SuffixRow
from longdraft.drafters.step import speculative_step
from longdraft.engine.generate import prefill

CHEAP = {"each": 0.005, "node": 0.002}
# a window moves once for all pairs that are fed together, so EAGLE has none here
BY_NAME = (
    BUILD
    | FULL_BUDGET
    | {
        "eagle2": lambda t: make("eagle2", t, **EAGLE, window=0),
        "eagle3": lambda t: make("eagle3", t, **EAGLE, window=0),
    }
)


def growth(text: list[int], depth: int = 8, width: int = UNBOUNDED) -> Growth:
    """The tree of a row with this text."""
    suffix = Suffix(48)
    suffix.rows = [SuffixRow(1 << 16)]
    suffix.rows[0].extend(text)
    return Growth(Continuations(suffix), 0, DraftLimits(depth, width), Calibration(), Calibration())


def spelled(nodes: list[FilledNode]) -> list[tuple[int, ...]]:
    """The tokens of each node's path."""
    paths: list[tuple[int, ...]] = [()]
    for node in nodes[1:]:
        paths.append((*paths[node.parent], node.token) if node.parent >= 0 else ())
    return paths


def check_chances_are_learned() -> None:
    """A source is believed as far as it was right, also in a bucket that was never used."""
    for right in (False, True):
        source = Calibration()
        used, other = Guess("used", 0.5), Guess("other", 0.5)
        for _ in range(20):
            source.add(used, right)
        if right:
            assert source.chance(used) > 0.85 and source.chance(other) > 0.6
        else:
            assert source.chance(used) < 0.1 and source.chance(other) < 0.3


def check_no_source_is_certain() -> None:
    """A source that was always right is believed more in a bucket that was never used, too, but
    each of its tokens may still be refused.
    """
    source = Calibration()
    for _ in range(20):
        source.add(Guess("used", 0.5), True)
    assert 0.85 < source.chance(Guess("other", 0.75)) < 0.95


def check_sources_are_told_apart() -> None:
    """The text is always right and the drafter always wrong: each is believed accordingly."""
    copying, drafting = Calibration(), Calibration()
    text = [5, 6, 7, 8, 5, 6]
    for _ in range(12):
        tree = growth(text)
        tree.copying = copying
        tree.drafting = drafting
        rows = FilledRows([tree.fill([(0, 3)], [Guess((1, 0), 0.6)], 2, 0.01)], [True])
        paths = spelled(rows.nodes[0])
        accepted = [0, paths.index((7,)), paths.index((7, 8))]
        rows.observe(rows.plant(Tree.root(torch.tensor([6]))), [accepted])
    [drafted, copied] = rows.nodes[0][1:3]
    assert (drafted.token, copied.token) == (3, 7)
    assert copying.chance(copied.votes[0].guess) > 0.7
    assert drafting.chance(drafted.votes[0].guess) < 0.2


def begun(drafter: Drafter, model: str, prompts: list[list[int]], new: int) -> Sequences:
    """After a first step, whose captures the drafter was given."""
    target = tiny.target(model)
    seqs = prefill(target, prompts, new, Sampler(), SEED)
    drafter.start(seqs)
    speculative_step(target, drafter, seqs, draft=False)
    return seqs


def check_caught_up(name: str = "medusa") -> None:
    """After copied drafts the inner drafter drafts as one that has seen every token."""
    with torch.inference_mode():
        fill = Fill([BY_NAME[name](tiny.target("llama-loops"))], Stated(**CHEAP))
        seqs = begun(fill, "llama-loops", tiny.prompts(70), 120)
        copied = 0  # tokens since the inner drafter drafted
        root = int(seqs.last)
        while copied < 4 or int(seqs.last) == root:  # the text repeats: a late state could be right
            assert not bool(seqs.done.any()), "nothing was copied for long enough"
            count = int(speculative_step(tiny.target("llama-loops"), fill, seqs).count[0])
            if fill._first > 1:
                copied = 0
                root = int(seqs.last)
            else:
                copied += count
        assert fill.now.fed
        compare_with_twin(fill.now.drafter, name, seqs)


def doubt_copies(fill: Fill) -> None:
    """Let it have seen copied tokens refused, so that it asks its drafter instead."""
    for _ in range(40):
        fill.copying.add(Guess("refused", 0.5), False)


def check_filled_draft_is_followed(name: str) -> None:
    """After a path that has left the inner drafter's nodes for copied ones, it drafts as one that
    has seen every token.
    """
    # text in circles is copied well: with a margin, or trusting copies, the inner drafter would not
    # be asked
    constants = replace(DEFAULTS, copy_margin=1.0)
    with torch.inference_mode():
        target = tiny.target("llama-loops")
        fill = Fill([BY_NAME[name](target)], Stated(**CHEAP), constants=constants)
        seqs = begun(fill, "llama-loops", tiny.prompts(70), 120)
        doubt_copies(fill)
        while True:
            assert not bool(seqs.done.any()), "no path has left the drafted nodes"
            path = speculative_step(target, fill, seqs).verdict.path[0].tolist()
            if 1 < fill._first <= path[-1]:
                break
        compare_with_twin(fill.now.drafter, name, seqs)


def compare_with_twin(inner: Drafter, name: str, seqs: Sequences) -> None:
    """Another drafter of this name that was given every token alone makes the same draft."""
    target = tiny.target("llama-loops")
    twin = BY_NAME[name](target)
    other = begun(twin, "llama-loops", tiny.prompts(70), 120)
    while int(other.length[0]) < int(seqs.length[0]):
        speculative_step(target, twin, other, draft=False)
    assert other.tokens.tolist() == seqs.tokens.tolist()
    found, want = (
        d.grow(Tree.root(rows.last), rows, DraftLimits(4))
        for d, rows in ((inner, seqs), (twin, other))
    )
    assert want.size > 1
    assert found.tokens.tolist() == want.tokens.tolist()
    assert found.parent.tolist() == want.parent.tolist()


SOME = {name: SAMPLERS[name] for name in ("greedy", "T=1 min-p penalty")}
