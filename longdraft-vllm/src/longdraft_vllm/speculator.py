"""Drafts for vLLM's newer model runner, which verifies the same number of drafted tokens for each request."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator


def filled(chains: dict[int, list[int]], roots: Tensor, count: int) -> Tensor:
    """[B,count] the chains of these rows; where there is none, the row's last token, a draft like any other."""
    drafts = torch.full((len(roots), count), -1)
    for row, chain in chains.items():
        drafts[row, : len(chain)] = torch.tensor(chain)
    drafts = drafts.to(roots)
    return torch.where(drafts < 0, roots[:, None], drafts)


class TextSpeculator(BaseSpeculator):
    """suffix and lookup: each request drafts from the tokens that vLLM holds under the request's own number."""

    supports_mm_inputs = False
    draft_logits = None  # drafts are tokens without probabilities

    def __init__(self, method: Any, req_states: Any):
        self.method, self.states = method, req_states

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Nothing here runs in a CUDA graph."""

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
        **named: Any,
    ) -> Tensor:
        requests = input_batch.idx_mapping
        chains = {} if dummy_run else self._chains(requests, num_sampled)
        return filled(chains, last_sampled[requests, 0], self.method.most)

    def _chains(self, requests: Tensor, num_sampled: Tensor) -> dict[int, list[int]]:
        """{row of the batch: its draft} for the rows that got tokens; requests: [B] their numbers."""
        rows = num_sampled.nonzero()[:, 0]
        numbers = requests[rows]
        lengths = self.states.total_len.gpu[numbers].cpu()
        if not len(rows):
            return {}
        tokens = self.states.all_token_ids.gpu[numbers, : int(lengths.max())].cpu().numpy()
        row_of = dict(zip(numbers.tolist(), rows.tolist(), strict=True))
        texts = {n: text[:length] for n, text, length in zip(row_of, tokens, lengths.tolist(), strict=True)}
        return {row_of[n]: chain for n, chain in self.method.chains(texts).items()}
