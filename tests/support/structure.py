"""What must hold of trees, caches and views: functions that raise AssertionError, as in
checks.py.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from support import tiny
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.core.tree import PAD, Tree
from longdraft.views import View

# Trees and the cache ------------------------------------------------------------------------------


def branching(B: int, tokens: Tensor | None = None) -> Tree:
    """Two siblings under the root, two and one children under them, a grandchild: 7 nodes."""
    g = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, 96, (B, 7), generator=g) if tokens is None else tokens
    tree = Tree.root(tokens[:, 0])
    for parents, at in (([0, 0], 1), ([1, 1, 2], 3), ([4], 6)):
        new = torch.tensor([parents]).expand(B, -1)
        tree = tree.grow(new, tokens[:, at : at + len(parents)])
    return tree


def ancestors(parent: list[int], node: int) -> list[int]:
    """From the root (or a padding node itself) down to the node."""
    path = [node]
    while parent[path[0]] >= 0:
        path.insert(0, parent[path[0]])
    return path


def check_shape(tree: Tree) -> None:
    """mask is ancestor-or-self; depth counts the ancestors; padding sees itself alone."""
    for b, parent in enumerate(tree.parent.tolist()):
        for node in range(tree.size):
            path = ancestors(parent, node)
            assert tree.mask[b, node].nonzero()[:, 0].tolist() == sorted(path)
            assert int(tree.depth[b, node]) == len(path) - 1


def check_branching_shape() -> None:
    check_shape(branching(2))


@torch.no_grad()
def check_tree_pass(
    model: str, tree: Tree | None = None, lengths: tuple[int, ...] = (40, 27), chunk: int = 16
) -> None:
    """A pass over a tree gives each node the logits that stock attention gives the last token of
    its own path.
    """
    lm = tiny.target(model)
    eager = tiny.eager(model)
    prompts = tiny.prompts(*lengths)
    tree = branching(len(prompts)) if tree is None else tree
    cache = lm.new_cache(len(prompts), 64)
    for b, prompt in enumerate(prompts):
        lm.prefill(prompt, cache.row(b), chunk)
    found = lm(tree, cache)
    for b, prompt in enumerate(prompts):
        parent = tree.parent[b].tolist()
        paths = defaultdict[int, dict[int, list[int]]](dict)  # by depth: equally long, for one pass
        for node in range(tree.size):
            if parent[node] != PAD:
                path = ancestors(parent, node)
                paths[len(path)][node] = prompt + tree.tokens[b, path].tolist()
        for ids in paths.values():
            wanted = eager(input_ids=torch.tensor([*ids.values()]), use_cache=False).logits[:, -1]
            for node, want in zip(ids, wanted, strict=True):
                close(found[b, node], want)


def close(found: Tensor, want: Tensor, tolerance: float = 2e-5) -> None:
    """Equal up to a share of the largest value: what two orders of a float32 sum may differ by."""
    error = float((found - want).abs().max() / want.abs().max())
    assert error < tolerance, f"differs by {error:.1e} of the largest value"


@torch.no_grad()
def check_keep(tree: Tree, nodes: list[int], model: str = "llama") -> None:
    """After `keep` the cache is the one that plain decoding of the same tokens fills, and the next
    pass agrees.
    """
    lm = tiny.target(model)
    prompts = tiny.prompts(*(9, 5, 12)[: len(nodes)])
    cache = lm.new_cache(len(prompts), 32)
    want = lm.new_cache(len(prompts), 32)
    for b, prompt in enumerate(prompts):
        lm.prefill(prompt, cache.row(b))
    lm(tree, cache)
    paths = [ancestors(tree.parent[b].tolist(), node) for b, node in enumerate(nodes)]
    most = max(map(len, paths))
    cache.keep(
        torch.tensor([p + [p[-1]] * (most - len(p)) for p in paths]),
        torch.tensor([len(p) for p in paths]),
    )
    for b, (prompt, path) in enumerate(zip(prompts, paths, strict=True)):
        lm.prefill(prompt + tree.tokens[b, path].tolist(), want.row(b))
    assert cache.length.tolist() == want.length.tolist()
    for layer in want.layers:
        for b, n in enumerate(want.length.tolist()):
            for mine, theirs in zip(cache.read(layer, b), want.read(layer, b), strict=True):
                close(mine[:, :n], theirs[:, :n])
    root = Tree.root(torch.full_like(cache.length, 7))
    close(lm(root, cache), lm(root, want))


@torch.no_grad()
def check_rounds(
    rounds: list[tuple[Tree, list[list[int]], list[int]]], lengths: tuple, model: str = "llama"
) -> None:
    """After passes over trees, of which `counts` nodes of a path were kept each time, the cache is
    a plain one.
    """
    lm = tiny.target(model)
    text = [list(p) for p in tiny.prompts(*lengths)]
    cache = lm.new_cache(len(text), 4)
    for b, prompt in enumerate(text):
        lm.prefill(prompt, cache.row(b))
    for tree, paths, counts in rounds:
        lm(tree, cache)
        most = max(map(len, paths))
        cache.keep(
            torch.tensor([p + [p[-1]] * (most - len(p)) for p in paths]), torch.tensor(counts)
        )
        for b, (path, count) in enumerate(zip(paths, counts, strict=True)):
            text[b] += tree.tokens[b, path[:count]].tolist()
    assert cache.length.tolist() == [len(t) for t in text]
    for b, tokens in enumerate(text):
        want = lm.new_cache(1, 4)
        lm.prefill(tokens, want)
        for layer in want.layers:
            for mine, theirs in zip(cache.read(layer, b), want.read(layer, 0), strict=True):
                close(mine[:, : len(tokens)], theirs[:, : len(tokens)])


def check_branching_keep() -> None:
    check_keep(branching(2), [6, 5])


@torch.no_grad()
def check_rollback() -> None:
    """What is committed inside a rollback is scratch again after it, also when it ends in an
    exception.
    """
    lm = tiny.target("llama")
    prompt = tiny.prompts(12)[0]
    cache = lm.new_cache(1, 40)
    lm.prefill(prompt, cache)
    root = Tree.root(torch.tensor([5]))
    want = lm(root, cache)
    before = [x.clone() for x in cache.read(0, 0)]
    try:
        with cache.rollback():
            lm.prefill([9, 8, 7], cache)
            assert cache.length.tolist() == [15]
            raise KeyError
    except KeyError:
        pass
    assert cache.length.tolist() == [12]
    assert all(
        torch.equal(x[:, :12], y[:, :12]) for x, y in zip(cache.read(0, 0), before, strict=True)
    )
    assert torch.equal(lm(root, cache), want)


# Views --------------------------------------------------------------------------------------------


def check_view(view: View, cache: KVCache, budget: list[int] | None = None) -> None:
    """Picks are committed, below `since`, without repeats; with the slots from `since` on they are
    `budget` or more.
    """
    for b, n in enumerate(cache.length.tolist()):
        tail_start = int(view.tail_start[b])
        assert 0 <= tail_start <= n
        for indices in view.indices[:, b].flatten(0, -2):  # each layer's, or each of its key heads'
            indices = indices[indices >= 0].tolist()
            assert len(set(indices)) == len(indices)
            assert all(slot < tail_start for slot in indices)
            if budget is not None:
                assert len(indices) + n - tail_start >= budget[b]


@torch.no_grad()
def check_view_pass(view: View, seen: list[int], model: str = "llama") -> None:
    """A pass under a view of 30 committed slots equals stock attention whose mask shows those slots
    alone.
    """
    lm = tiny.target(model)
    eager = tiny.eager(model)
    prompt = tiny.prompts(30)[0]
    cache = lm.new_cache(1, 40)
    lm.prefill(prompt, cache)
    chain = Tree.chain(torch.tensor([[5, 17, 33]]))
    found = lm(chain, cache, view=view)
    T = 33
    shown = torch.ones(T, T, dtype=torch.bool).tril()
    shown[30:, :30] = False
    shown[30:, seen] = True
    mask = torch.zeros(T, T).masked_fill_(~shown, torch.finfo(torch.float32).min)
    ids = torch.tensor([prompt + chain.tokens[0].tolist()])
    want = eager(input_ids=ids, attention_mask=mask[None, None], use_cache=False).logits
    close(found[0], want[0, 30:])


def check_sink_window_pass() -> None:
    """Under a sink and a window nothing else is seen, and nothing twice."""
    view = View(torch.arange(4)[None, None], torch.tensor([20]))
    check_view_pass(view, [*range(4), *range(20, 30)])
