"""MTP's rings against recomputation from scratch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from support import tiny
from support.checks import SAMPLERS, check_lossless
from support.structure import check_shape, close

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.drafters import AdaptiveDraft, Mtp
from longdraft.drafters.mtp.block import MtpLayers, random_mtp
from longdraft.ops import Segment, attend


@dataclass
class Whole:
    """Attention of every pair to those that it sees, by a mask [N,N]; keeps the keys and values
    [K,N,D].
    """

    mask: torch.Tensor
    calls: int = 0

    def attend(self, layer, q, k, v, scale, softcap, sink):
        self.keys = k[0], v[0]
        return attend(q[0], [Segment(k[0], v[0], self.mask)], scale, softcap, sink).out[None]


def recomputed(
    module: MtpLayers, text: list[int], sink: int, window: int
) -> list[tuple[torch.Tensor, tuple]]:
    """Of each layer: the output [N,d] of every pair, and its key and value, from one pass over the
    text.
    """
    lm = module.target
    tokens = torch.tensor([text])
    captured = Captures(CaptureSpec(hidden=(lm.config.num_hidden_layers,)))
    lm(Tree.chain(tokens[:, :-1]), lm.new_cache(1, len(text)), captured=captured)
    feature = module.feature(captured.states[lm.config.num_hidden_layers])
    pair = torch.arange(len(text) - 1)
    behind = pair[:, None] - pair
    found = []
    for i in range(len(module)):
        seen = (behind >= 0) & ((behind < window) | (pair < sink)) & (pair >= i)
        whole = Whole(seen | (behind == 0))
        output = module.run(i, feature, tokens[:, 1:], pair[None] + 1, whole)
        found.append((output[0], whole.keys))
        feature = torch.cat([torch.zeros_like(output[:, :1]), output[:, :-1]], 1)
    return found


class Watched(Mtp):
    """Compares its rings with recomputation before every draft, and checks the shape of its
    trees.
    """

    checked = 0
    slots = 0

    def ready(self, seqs):
        super().ready(seqs)
        for b in (~seqs.done).nonzero()[:, 0].tolist():
            n = int(seqs.cache.length[b])
            assert int(self.fed[b]) == n
            if n:
                self.compare(
                    b,
                    recomputed(
                        self.module, seqs.tokens[b, : n + 1].tolist(), self.sink, self.window
                    ),
                )
        self.slots = max(ring.cache.read(0, 0)[0].shape[1] for ring in self.rings)

    def compare(self, b, want):
        since = int(self.since[b])
        n = int(self.fed[b])
        for i, (ring, (output, keys)) in enumerate(zip(self.rings, want, strict=True)):
            held = ring.held[b][ring.held[b] >= 0]
            first = max(since + i, n - self.window)
            assert sorted(held.tolist()) == sorted(
                {*range(i, min(self.sink, n)), *range(max(first, i), n)}
            )
            if n > i:
                for mine, theirs in zip(ring.cache.read(0, b), keys, strict=True):
                    close(mine[:, (ring.held[b] >= 0).nonzero()[:, 0]], theirs[:, held], 1e-4)
                close(self.outputs[i][b, 0], output[-1], 1e-4)
            self.checked += 1

    def grow(self, tree, seqs, limits):
        tree = super().grow(tree, seqs, limits)
        check_shape(tree)
        return tree


def watch(
    layers: int = 1,
    widths=(24, 4),
    sink: int = 3,
    window: int = 12,
    model: str = "llama",
    adaptive=False,
):
    """A run of rows of unequal lengths, one of a single token, that accept unequally and end at
    different times.
    """
    lm = tiny.target(model)
    drafter = Watched(random_mtp(lm, 0, layers), widths, sink, window)
    build = lambda t: AdaptiveDraft(drafter) if adaptive else drafter  # noqa: E731
    return drafter, check_lossless(build, model, SAMPLERS["T=1"], (30, 1, 12), 20)


def check_ring():
    """Whatever was drafted and refused, the ring is what recomputation from scratch gives."""
    drafter, stats = watch()
    assert sum(stats.accepted) > 3 and drafter.checked > 20
