"""Whatever is drafted and accepted: a commit leaves each row one token ahead of its cache, and the
right keys in it.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tree_cache import trees

from longdraft import Sampler
from longdraft.core.cache import KVCache
from longdraft.core.sequences import Sequences
from longdraft.core.tree import PAD, Tree
from longdraft.core.verify import Verdict

ROWS = 3


def spelled(tree: Tree, b: int, node: int) -> list[int]:
    """The nodes from the root down to one of row b."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parent[b, node])
    return path[::-1]


@st.composite
def rounds(draw) -> list[tuple[Tree, list[int], list[int]]]:
    """Trees, with the last accepted node of each row and its bonus token."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        tree = draw(trees(rows=ROWS))
        real = [[n for n, p in enumerate(row) if p != PAD] for row in tree.parent.tolist()]
        found.append(
            (
                tree,
                [draw(st.sampled_from(r)) for r in real],
                draw(st.lists(st.integers(3, 95), min_size=ROWS, max_size=ROWS)),
            )
        )
    return found


def write(cache: KVCache, tree: Tree) -> None:
    """Keys that name their tokens."""
    k = tree.tokens[:, None, :, None].float()
    cache.write(0, k, -k, cache.length.tolist())


def verdict_of(tree: Tree, ends: list[int], bonus: list[int]) -> Verdict:
    paths = [spelled(tree, b, end) for b, end in enumerate(ends)]
    most = max(map(len, paths))
    path = torch.tensor([p + [p[-1]] * (most - len(p)) for p in paths])
    emitted = torch.full_like(path, 0)
    for b, p in enumerate(paths):
        emitted[b, : len(p)] = torch.tensor([*tree.tokens[b, p[1:]].tolist(), bonus[b]])
    return Verdict(path, torch.tensor([len(p) for p in paths]), emitted)


@given(
    rounds(),
    st.lists(st.integers(1, 12), min_size=ROWS, max_size=ROWS),
    st.lists(st.integers(3, 95), max_size=2),
)
@settings(max_examples=120)
def test_any_trees_and_acceptances_keep_the_invariants(found, limits, eos):
    prompts = [[3, 4, 5], [6], [7, 8]]
    cache = KVCache(ROWS, 1)
    for b, prompt in enumerate(prompts):
        k = torch.tensor(prompt[:-1]).float().view(1, 1, -1, 1)
        if k.numel():
            cache.row(b).write(0, k, -k, [0])
            cache.row(b).length += k.shape[2]
    seqs = Sequences.of(prompts, max(limits), cache, Sampler(), eos=tuple(eos))
    seqs.limit = torch.tensor(limits)
    texts = [list(p) for p in prompts]
    done = [False] * ROWS
    for tree, ends, bonus in found:
        tree.tokens[:, 0] = seqs.last
        write(cache, tree)
        verdict = verdict_of(tree, ends, bonus)
        count = seqs.commit(verdict).tolist()
        for b in range(ROWS):
            new = [] if done[b] else verdict.emitted[b, : verdict.count[b]].tolist()
            new = new[: limits[b] - (len(texts[b]) - len(prompts[b]))]
            stop = next((i + 1 for i, t in enumerate(new) if t in eos), len(new))
            texts[b] += new[:stop]
            done[b] |= len(texts[b]) - len(prompts[b]) == limits[b] or (
                bool(new) and new[stop - 1] in eos
            )
            assert count[b] == len(new[:stop])
        assert torch.equal(seqs.length, cache.length + 1)
        assert seqs.done.tolist() == done
        for b, text in enumerate(texts):
            assert seqs.tokens[b, : int(seqs.length[b])].tolist() == text
            k, v = cache.read(0, b)
            assert k[0, : len(text) - 1, 0].tolist() == text[:-1] and torch.equal(v, -k)
