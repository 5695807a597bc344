"""Passes of a model that can only run nodes that follow each other: each path of a tree is a
separate pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.backends.architecture import Architecture
from longdraft.backends.features.feature import Feature
from longdraft.core import Captures, CaptureSpec, KVCache, Tree
from longdraft.core.tree import PAD


def forward_by_path(
    model: Architecture,
    feature: Feature,
    tree: Tree,
    cache: KVCache,
    start: int,
    captured: Captures,
    logits: int,
) -> Tensor:
    """Backend.forward without scores, for models whose layers all have windows. Padding nodes get
    zeros.

    feature: the one for which passes run nodes that follow each other.
    """
    position = model.position(tree, start, cache)
    W = tree.size - start
    spec = captured.spec
    outputs = dict[tuple[int, int], Tensor]()
    states = dict[tuple[int, int], dict[int, Tensor]]()
    for b in range(len(tree.tokens)):
        for ancestors, nodes in new_paths(tree.row(b), start):
            path = feature.path(cache.row(b), ancestors, nodes, model.hf.dtype)
            part = Captures(CaptureSpec(hidden=spec.hidden))
            local = [n - start for n in nodes]
            few = logits if len(nodes) == W else 0
            tokens = tree.tokens[b : b + 1, nodes]
            where = position[b : b + 1, local]
            out = model.run(path, tokens, where, part, few, cache=cache.row(b))[0]
            outputs |= {(b, n): x for n, x in zip(local[-len(out) :], out, strict=True)}
            states |= {
                (b, n): {layer: s[0, i] for layer, s in part.states.items()}
                for i, n in enumerate(local)
            }
    places = [[(b, n) for n in range(W)] for b in range(len(tree.tokens))]
    for layer in spec.hidden:
        captured.states[layer] = _table(
            [[states.get(p, {}).get(layer) for p in row] for row in places]
        )
    return _table([[outputs.get(p) for p in row[-logits:]] for row in places])


def _table(rows: list[list[Tensor | None]]) -> Tensor:
    """[B,W,d] of vectors [d]; zeros where there is none."""
    like = next(x for row in rows for x in row if x is not None)
    none = torch.zeros_like(like)
    return torch.stack([torch.stack([none if x is None else x for x in row]) for row in rows])


def new_paths(tree: Tree, start: int) -> list[tuple[list[int], list[int]]]:
    """(ancestors, nodes) in the order of positions: each new node of a tree of one row is in one
    list of `nodes`.

    Nodes follow each other on one path, after all of their ancestors. Padding is in none of them.
    """
    parent = tree.parent[0].tolist()
    real = [i for i in range(start, len(parent)) if parent[i] != PAD]
    inner = {parent[i] for i in real}
    done = set[int]()
    paths = list[tuple[list[int], list[int]]]()
    for leaf in (i for i in real if i not in inner):
        path = [leaf]
        while parent[path[-1]] >= 0:
            path.append(parent[path[-1]])
        path.reverse()
        first = next(n for n, i in enumerate(path) if i >= start and i not in done)
        paths.append((path[:first], path[first:]))
        done.update(path[first:])
    return paths
