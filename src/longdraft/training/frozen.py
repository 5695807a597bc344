"""A frozen target read whole rows at a time: its states, the keys of one layer, what it would say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from longdraft.backends.attention import NAME
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.models.lm import LM
from longdraft.training import losses


@dataclass
class Seen:
    """What the target made of rows [B,S]: states {after n layers: [B,S,d]}, keys and values [B,K,S,D] of one layer."""

    states: dict[int, Tensor] = field(default_factory=dict)
    keys: Tensor | None = None
    values: Tensor | None = None


@contextmanager
def whole_rows(lm: LM) -> Iterator[None]:
    """Transformers' own attention, which needs no cache of ours and lets gradients through."""
    lm.hf.set_attn_implementation("sdpa" if lm.hf._supports_sdpa else "eager")
    try:
        yield
    finally:
        lm.hf.set_attn_implementation(NAME)


class Frozen:
    """No weight of the target changes, and nothing it computes is differentiated, but its head."""

    def __init__(self, lm: LM):
        self.lm, self.last = lm, lm.config.num_hidden_layers
        lm.hf.requires_grad_(False)
        self.matrix = self._plain_head()

    @torch.no_grad()
    def _plain_head(self) -> Tensor | None:
        """The head [V,d], where that is one matrix and nothing more: no scaling, no soft cap."""
        head, d = self.lm.hf.get_output_embeddings().weight, self.lm.config.hidden_size
        some = torch.randn(4, d, generator=torch.Generator().manual_seed(0)).to(head.device, head.dtype)
        plain = F.linear(some, head).float()
        return head if torch.allclose(self.lm.project(some).float(), plain, rtol=0.02, atol=1e-4) else None

    @torch.no_grad()
    def read(
        self, tokens: Tensor, position: Tensor | None = None, states: Sequence[int] = (), layer: int | None = None
    ) -> Seen:
        """tokens, position [B,S] -> the states after these many layers (as CaptureSpec.hidden), the keys of `layer`."""
        captured, cache = Captures(CaptureSpec(hidden=tuple(states))), DynamicCache()
        with whole_rows(self.lm), self.lm.architecture.capturing(captured):
            self.lm.hf.get_decoder()(
                input_ids=tokens,
                position_ids=position,
                attention_mask=torch.ones_like(tokens),  # without one, positions that jump are taken for packed texts
                past_key_values=cache if layer is not None else None,
                use_cache=layer is not None,
            )
        if layer is None:
            return Seen(captured.states)
        held: Any = cache.layers[layer]
        return Seen(captured.states, held.keys, held.values)

    @torch.no_grad()
    def says(self, state: Tensor) -> Tensor:
        """The target's likeliest next token, [B,S], after each of its last states [B,S,d] (before the final norm)."""
        flat = state.reshape(-1, state.shape[-1])  # max's indices come several times sooner than argmax
        found = [self.lm.head(part).max(-1).indices for part in flat.split(losses.parts(self.lm.vocab))]
        return torch.cat(found).view(state.shape[:-1])

    def head_loss(self, normed: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of the target's own head on normed [N,d] with labels [N] (IGNORE: left out)."""
        if self.matrix is not None:
            return losses.by_matrix(normed, self.matrix, labels)
        return losses.by_function(normed, self.lm.project, labels, self.lm.vocab)

    def law_loss(self, normed: Tensor, theirs: Tensor) -> Tensor:
        """Mean cross-entropy of the target's head on normed [N,d] with what it makes of its own normed states [N,d]."""
        if self.matrix is not None:
            return losses.law_by_matrix(normed, self.matrix, theirs)
        return losses.law_by_function(normed, self.lm.project, theirs, self.lm.vocab)


def matches(found: Tensor, wanted: Tensor) -> float:
    """The share of equal tokens; 0 where there are none."""
    return float((found == wanted).float().sum() / max(found.numel(), 1))


def implied_length(shares: Sequence[float]) -> float:
    """Mean acceptance length, bonus token included, of chains whose drafts are right with these shares by depth."""
    length, alive = 1.0, 1.0
    for share in shares:
        alive *= share
        length += alive
    return length
