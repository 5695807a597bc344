"""A frozen target run on whole rows: its hidden states, the keys of one layer, its predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.training import losses
from longdraft.training.rows import IGNORE
from longdraft.training.turns import Turns

# what a drafter is trained to predict: the target's predictions, or the text
Labels = Literal["target", "text"]


@dataclass
class TargetStates:
    """The target's states of rows [B,S].

    states: {after n layers: [B,S,d]}. keys, values [B,K,S,D]: of one layer.
    predicted: its most likely next tokens [B,S].
    """

    states: dict[int, Tensor] = field(default_factory=dict)
    keys: Tensor | None = None
    values: Tensor | None = None
    predicted: Any = None  # a tensor, if it was asked for


@contextmanager
def whole_rows(lm: LM) -> Iterator[None]:
    """Use Transformers' own attention, which needs no cache of longdraft and supports gradients."""
    # sdpa has none, whatever a class of Transformers says
    capped = getattr(lm.config, "attn_logit_softcapping", None)
    lm.architecture.use("sdpa" if lm.hf._supports_sdpa and not capped else "eager")
    try:
        yield
    finally:
        lm.architecture.use(lm.architecture.implementation)


class Frozen:
    """A target whose weights never change; gradients pass through its head only.

    turns: predictions of tokens that are not in an answer are IGNORE; None: all predictions count.
    """

    def __init__(self, lm: LM, turns: Turns | None = None):
        self.lm = lm
        self.last = lm.depth
        self.turns = turns
        lm.hf.requires_grad_(False)
        self.matrix = self._plain_head()

    @torch.no_grad()
    def _plain_head(self) -> Tensor | None:
        """The head [V,d] if it is one matrix without scaling or soft cap, else None."""
        head = self.lm.hf.get_output_embeddings().weight
        d = self.lm.config.hidden_size
        some = torch.randn(4, d, generator=torch.Generator().manual_seed(0)).to(
            head.device, head.dtype
        )
        plain = F.linear(some, head).float()
        same = torch.allclose(self.lm.project(some).float(), plain, rtol=0.02, atol=1e-4)
        return head if same else None

    def read(
        self,
        tokens: Tensor,
        position: Tensor | None = None,
        states: Sequence[int] = (),
        layer: int | None = None,
        predict: bool = False,
    ) -> TargetStates:
        """The target's states and keys of rows of tokens, at position [B,S].

        states: after these numbers of layers (as CaptureSpec.hidden). layer: the one whose keys are
        returned.
        predict: its predictions too.
        """
        seen = self.compute(tokens, position, states, layer, predict)
        if predict and self.turns is not None:
            seen.predicted = seen.predicted.where(self.turns.answers(tokens), IGNORE)
        return seen

    @torch.no_grad()
    def compute(
        self,
        tokens: Tensor,
        position: Tensor | None,
        states: Sequence[int],
        layer: int | None,
        predict: bool,
    ) -> TargetStates:
        """Compute the states of `read`, with all predictions."""
        wanted = sorted({*states, self.last} if predict else states)
        captured = Captures(CaptureSpec(hidden=tuple(wanted)))
        cache = DynamicCache()
        with whole_rows(self.lm), self.lm.architecture.capturing(captured):
            self.lm.architecture.layout.body(
                input_ids=tokens,
                position_ids=position,
                # without a mask a jump in positions is taken for another sequence
                attention_mask=torch.ones_like(tokens),
                past_key_values=cache if layer is not None else None,
                use_cache=layer is not None,
            )
        seen = TargetStates({n: captured.states[n] for n in states})
        if predict:
            seen.predicted = self.predictions(captured.states[self.last])
        if layer is not None:
            held: Any = cache.layers[layer]
            seen.keys = held.keys
            seen.values = held.values
        return seen

    @torch.no_grad()
    def predictions(self, state: Tensor) -> Tensor:
        """The target's most likely next tokens [B,S].

        state [B,S,d]: its last states, before the final norm.
        """
        flat = state.reshape(-1, state.shape[-1])  # max is several times faster than argmax
        size = losses.chunk_rows(self.lm.vocab, flat.device)
        tokens = [self.lm.head(chunk).max(-1).indices for chunk in flat.split(size)]
        return torch.cat(tokens).view(state.shape[:-1])

    def head_loss(self, normed: Tensor, labels: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of the target's head on normed [N,d] with labels [N], except IGNORE.

        tokens: those that the drafter can draft; other labels are ignored too.
        """
        normed = normed[labels != IGNORE]
        labels = labels[labels != IGNORE]
        if tokens is not None:
            ids = losses.draft_ids(labels, tokens, self.lm.vocab)
            return losses.by_matrix(normed, self._rows(tokens), ids)
        if self.matrix is not None:
            return losses.by_matrix(normed, self.matrix, labels)
        return losses.by_function(normed, self.lm.project, labels, self.lm.vocab)

    def distribution_loss(
        self, normed: Tensor, targets: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """Mean cross-entropy of the head on normed [N,d] with its distribution on `targets`.

        targets [N,d]: the target's normed states.
        tokens: those that the drafter can draft; both distributions are over these.
        """
        if tokens is not None:
            return losses.distribution_by_matrix(normed, self._rows(tokens), targets)
        if self.matrix is not None:
            return losses.distribution_by_matrix(normed, self.matrix, targets)
        return losses.distribution_by_function(normed, self.lm.project, targets, self.lm.vocab)

    def _rows(self, tokens: Tensor) -> Tensor:
        """The head's rows [count,d] for these tokens.

        Raises InputError if the head is not one matrix.
        """
        if self.matrix is None:
            raise InputError(
                "this model scales or caps its output, so a drafter needs all its tokens: "
                "leave out vocab"
            )
        return self.matrix[tokens]


def matches(predicted: Tensor, wanted: Tensor) -> float:
    """The share of equal tokens where one is wanted (not IGNORE); 0 if there are none."""
    return float((predicted == wanted).float().sum() / (wanted != IGNORE).sum().clamp(min=1))


def implied_length(shares: Sequence[float]) -> float:
    """Mean acceptance length, bonus token included, of chains of drafts.

    shares: how often drafts of each depth are accepted.
    """
    length = 1.0
    alive = 1.0
    for share in shares:
        alive *= share
        length += alive
    return length
