"""DFlash's ring against one pass without it."""

from __future__ import annotations

from functools import partial

import torch
from support import tiny
from support.checks import SAMPLERS, check_lossless
from support.structure import check_shape, close

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.drafters import DFlash
from longdraft.drafters.dflash.block import DFlashBlock, random_dflash
from longdraft.models.lm import LM


def features(lm: LM, block: DFlashBlock, text: list[int]) -> torch.Tensor:
    """[1,N,d] of every token, from one pass over the text."""
    captured = Captures(CaptureSpec(hidden=tuple(block.taps)))
    lm(Tree.chain(torch.tensor([text])), lm.new_cache(1, len(text)), captured=captured)
    return block.feature([captured.states[tap] for tap in block.taps])


def states(
    lm: LM, block: DFlashBlock, text: list[int], first: int, window: int, shift: int = 0
) -> torch.Tensor:
    """[slots,d] of a block whose root is the text's last token, with the features of tokens first..
    at once.
    """
    n = len(text) - 1
    position = shift + torch.arange(first, n)[None]
    k, v = block.keys(
        features(lm, block, text[:-1])[:, first:] if n else torch.zeros(1, 0, 64), position
    )
    slots = torch.arange(block.slots)
    near = position > shift + n + slots[:, None] - window

    def attend(layer, q, own_k, own_v):
        own = (
            slots <= slots[:, None]
            if block.causal[layer]
            else torch.ones(block.slots, block.slots).bool()
        )
        keys = torch.cat([k[:, layer], own_k], 2)
        values = torch.cat([v[:, layer], own_v], 2)
        mask = torch.cat([near, own], 1)
        return (
            torch.nn.functional.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True)
            .transpose(1, 2)
            .flatten(2)
        )

    root = lm.hf.get_input_embeddings()(torch.tensor([text[-1:]]))
    return block(root, torch.tensor([[shift + n]]), attend)[0, 0]


class Watched(DFlash):
    """Compares its states with those of one pass without a ring before every draft, and checks its
    tree.

    So are logits, which the kernels compute where they can.
    """

    checked = 0

    def logits(self, roots, depth):
        found = super().logits(roots, depth)
        torchs = self.states(roots)
        known = self.block.vocabulary
        for b in (~self.done).nonzero()[:, 0].tolist():
            text = self.texts[b]
            first = max(0, len(text) - 1 - self.window)
            assert int(self.ring.end[b]) == len(text) - 1
            want = states(self.target, self.block, text, first, self.window)[1:]
            close(torchs[b], want, 1e-4)
            project = (
                self.target.project if known is None else partial(known.known_logits, self.target)
            )
            close(found[b], project(want[:depth]), 1e-4)
            self.checked += 1
        return found

    def grow(self, tree, seqs, limits):
        self.done, lengths = seqs.done, seqs.length.tolist()
        self.texts = [seqs.tokens[b, :n].tolist() for b, n in enumerate(lengths)]
        tree = super().grow(tree, seqs, limits)
        check_shape(tree)
        assert tree.size <= 1 + self.shape.nodes  # rows of a batch are padded to the largest alone
        assert int(tree.depth.max()) <= min(self.max_depth, limits.depth)
        return tree


def check_ring(window: int = 9, causal: bool = False) -> None:
    """Rows of unequal lengths, of one token too, that accept unequally and end at different
    times.
    """
    lm = tiny.target("llama")
    drafter = Watched(lm, random_dflash(lm, 0, slots=5, causal=causal), 60, window=window)
    stats = check_lossless(lambda t: drafter, "llama", SAMPLERS["T=1"], (30, 1, 12), 16)
    assert sum(stats.accepted) > 3 and drafter.checked > 20
