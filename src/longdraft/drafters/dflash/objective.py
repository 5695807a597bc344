"""DFlash: blocks at random places of a text learn what the target says there (DFlash sec. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from longdraft.core.options import NotNegative, Positive
from longdraft.drafters.dflash.block import DFlashBlock, shape_of
from longdraft.drafters.vocabulary import choose_tokens, draft_logits, known_tokens
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.training.data import Corpus
from longdraft.training.frozen import Frozen, TargetStates, matches


@dataclass
class DFlashObjective:
    """A block whose root is token r sees the features of tokens before r; its slot j learns the
    token at r + j.

    labels: the "target"'s most likely token there, its distribution ("law"), or the "text"'s token.
    anchors: blocks in every row. decay: slot j has weight exp(-(j-1)/decay), because a draft counts
    only if those before it are right.
    """

    frozen: Frozen
    module: DFlashBlock
    labels: str = "target"
    anchors: int = 128
    decay: float = 4.0

    @property
    def _known(self) -> Tensor | None:
        """The tokens that the block can draft; None if it can draft all."""
        return known_tokens(self.module.vocabulary)

    def _places(self, length: int) -> int:
        """How many places there are for a block in a row of this length, from position 1 on."""
        places = length - self.module.slots
        if places < 1:
            raise InputError(
                f"rows of {length - 1} tokens have no room for a block: give --length "
                f"{self.module.slots}"
            )
        return places

    def _read(self, tokens: Tensor, predict: bool) -> TargetStates:
        last = [self.frozen.last] if self.labels == "law" else []
        return self.frozen.read(tokens, states=sorted({*self.module.taps, *last}), predict=predict)

    def hidden(self, tokens: Tensor, seen: TargetStates, roots: Tensor) -> Tensor:
        """tokens [B,S], the target's states of them, positions roots [A] -> normed states
        [B,A,slots,d].
        """
        block, (B, S) = self.module, tokens.shape
        everywhere = torch.arange(S, device=tokens.device)
        keys, values = block.keys(
            block.feature([seen.states[tap] for tap in block.taps]), everywhere.expand(B, S)
        )
        masks = {causal: self._mask(roots, S, causal) for causal in set(block.causal)}

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k = torch.cat([keys[:, layer], k], 2)
            v = torch.cat([values[:, layer], v], 2)
            shared = q.shape[1] != k.shape[1]
            out = F.scaled_dot_product_attention(
                q, k.to(q.dtype), v.to(q.dtype), masks[block.causal[layer]], enable_gqa=shared
            )
            return out.transpose(1, 2).flatten(2)

        embedded = self.frozen.lm.hf.get_input_embeddings()(tokens[:, roots])
        return block(embedded, roots.expand(B, -1), attend)

    def _mask(self, roots: Tensor, size: int, causal: bool) -> Tensor:
        """[A*slots, size + A*slots]: the features that each slot sees, and the slots of its own
        block.
        """
        slots = torch.arange(self.module.slots, device=roots.device)
        root = roots.repeat_interleave(len(slots))
        slot = slots.repeat(len(roots))
        block = torch.arange(len(root), device=roots.device) // len(slots)
        position = torch.arange(size, device=roots.device)
        near = position > (root + slot)[:, None] - self.module.window
        own = block[:, None] == block
        return torch.cat(
            [(position < root[:, None]) & near, own & (slot <= slot[:, None]) if causal else own], 1
        )

    def loss(self, tokens: Tensor, rng: np.random.Generator) -> Tensor:
        places = self._places(tokens.shape[1])
        chosen = np.sort(rng.permutation(places)[: self.anchors]) + 1
        roots = torch.from_numpy(chosen).to(tokens.device)
        seen = self._read(tokens, self.labels == "target")
        hidden = self.hidden(tokens, seen, roots)
        total = hidden.new_zeros((), dtype=torch.float32)
        weights = 0.0
        for j in range(1, self.module.slots):
            weight = exp(-(j - 1) / self.decay)
            slot_states = hidden[:, :, j].flatten(0, 1)
            total = total + weight * self._slot_loss(slot_states, tokens, seen, roots + j)
            weights = weights + weight
        return total / weights

    def _slot_loss(
        self, slot_states: Tensor, tokens: Tensor, seen: TargetStates, position: Tensor
    ) -> Tensor:
        """The loss of normed states [B*A,d] that predict the tokens at position [A]."""
        if self.labels == "law":
            before = seen.states[self.frozen.last][:, position - 1]
            return self.frozen.distribution_loss(
                slot_states, self.frozen.lm.norm(before).flatten(0, 1), self._known
            )
        wanted = seen.predicted[:, position - 1] if self.labels == "target" else tokens[:, position]
        return self.frozen.head_loss(slot_states, wanted.flatten(), self._known)

    def shares(self, tokens: Tensor) -> list[float]:
        """Matches per slot, where the target predicts the text up to the slot: greedy decoding
        never reaches the rest.
        """
        places = self._places(tokens.shape[1])
        roots = torch.arange(1, places + 1, max(1, places // self.anchors), device=tokens.device)
        seen = self._read(tokens, True)
        hidden = self.hidden(tokens, seen, roots)
        rates = []
        going = torch.ones_like(tokens[:, roots], dtype=torch.bool)
        for j in range(1, self.module.slots):
            wanted = seen.predicted[:, roots + j - 1]
            logits = draft_logits(self.frozen.lm, self.module.vocabulary, hidden[:, :, j])
            rates.append(matches(logits.argmax(-1)[going], wanted[going]))
            going = going & (tokens[:, roots + j] == wanted)
        return rates


def block_for(target: LM, **options: Any) -> DFlashBlock:
    """A new block that starts with the target's final norm, and a mask as large as its
    embeddings.
    """
    block = DFlashBlock(shape_of(target, **options))
    norm = target.architecture.layout.norm_weight()
    with torch.no_grad():
        if norm is not None and norm.shape == block.norm_out.weight.shape:
            block.norm_out.weight.copy_(norm)
        block.mask.normal_(std=float(target.hf.get_input_embeddings().weight.float().std()))
    return block


def objective(
    frozen: Frozen,
    corpus: Corpus,
    labels: Literal["target", "text", "law"] = "target",
    layers: Positive = 2,
    features: Positive = 3,
    slots: Annotated[int, Field(ge=2, le=64)] = 8,
    window: Positive = 512,
    causal: NotNegative = 0,
    anchors: Positive = 128,
    decay: Annotated[float, Field(gt=0)] = 4.0,
    vocab: NotNegative = 0,
) -> DFlashObjective:
    """labels=law: the target's distribution. causal=1: a slot sees only the slots up to its own.
    vocab: draft this many of the text's most frequent tokens only (0: all).
    """
    shape = {
        "layers": layers,
        "features": features,
        "slots": slots,
        "window": window,
        "vocab": vocab,
    }
    block = block_for(frozen.lm, **shape, causal=bool(causal))
    choose_tokens(block.vocabulary, corpus)
    return DFlashObjective(frozen, block, labels, anchors, decay)
