"""Drafts for vLLM's newer model runner, which gets the same number of tokens for each request."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator


def filled(chains: dict[int, list[int]], roots: Tensor, count: int) -> Tensor:
    """[B,count] the chains of these rows, filled up with the row's last token, so that every number
    is a token.
    """
    drafts = torch.full((len(roots), count), -1)
    for row, chain in chains.items():
        drafts[row, : len(chain)] = torch.tensor(chain)
    drafts = drafts.to(roots)
    return torch.where(drafts < 0, roots[:, None], drafts)


class Proposing:
    """A mixin over a speculator: every row gets `count` tokens, of which the first `lengths` are
    its draft.

    lengths: by request, of the latest step. vLLM verifies no more than these (see `shortened`).
    """

    supports_mm_inputs = False
    draft_logits = None  # drafts are tokens without probabilities
    count: int
    lengths: dict[str, int]

    def chains(self, input_batch: Any, num_sampled: Tensor, roots: Tensor) -> dict[int, list[int]]:
        """{row of the batch: its draft} for rows that got tokens, the last of which is in roots
        [B].
        """
        raise NotImplementedError

    def meet(self, sampler: Any) -> None:
        """Called with the model runner's sampler, which is made after the speculator."""

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Drafts run without CUDA graphs."""

    def capture(self) -> None:
        """As above."""

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        *others: Any,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **named: Any,
    ) -> Tensor:
        roots = last_sampled[input_batch.idx_mapping, 0]
        if dummy_run:
            return filled({}, roots, self.count)
        chains = {} if num_speculative_tokens == 0 else self.chains(input_batch, num_sampled, roots)
        self.lengths = {
            request: len(chains.get(row, ())) for row, request in enumerate(input_batch.req_ids)
        }
        return filled(chains, roots, self.count)


def shortened(take: Callable[[Any], DraftTokenIds | None]) -> Callable[[Any], DraftTokenIds | None]:
    """The model runner's function that tells the scheduler what to verify, without what only fills
    drafts up.
    """

    @wraps(take)
    def take_draft_token_ids(self: Any) -> DraftTokenIds | None:
        found = take(self)
        if found is None or not isinstance(self.speculator, Proposing):
            return found
        lengths = self.speculator.lengths
        drafts = zip(found.req_ids, found.draft_token_ids, strict=True)
        return DraftTokenIds(
            found.req_ids, [tokens[: lengths[request]] for request, tokens in drafts]
        )

    take_draft_token_ids.by_longdraft = True  # type: ignore[attr-defined]
    return take_draft_token_ids


class TextSpeculator(Proposing, BaseSpeculator):
    """A request drafts from its own tokens, and is known to the method by its name."""

    def __init__(self, method: Any, req_states: Any):
        self.method = method
        self.states = req_states
        self.count = method.most

    def chains(self, input_batch: Any, num_sampled: Tensor, roots: Tensor) -> dict[int, list[int]]:
        rows = num_sampled.nonzero()[:, 0]
        numbers = input_batch.idx_mapping[rows]
        row_of = {input_batch.req_ids[row]: row for row in rows.tolist()}
        lengths = self.states.total_len.gpu[numbers].tolist()
        tokens = self.states.all_token_ids.gpu[numbers, : max(lengths, default=0)].cpu().numpy()
        texts = {
            name: text[:length] for name, text, length in zip(row_of, tokens, lengths, strict=True)
        }
        new = dict(zip(row_of, num_sampled[rows].tolist(), strict=True))
        chains = self.method.paced_chains(texts, new, len(row_of) == len(roots))
        return {row_of[name]: chain for name, chain in chains.items() if chain}
