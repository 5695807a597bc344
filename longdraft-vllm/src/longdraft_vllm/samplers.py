"""Keyed noise on vLLM's newer model runner, whose samplers a model may replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from longdraft.ops import gumbel, row_seed
from longdraft_vllm import contract


class Draws:
    """Token n of a sampled request with a seed is the argmax of its log-probabilities plus the
    noise of (seed, n).

    So says keyed.Noise for the older runner. vLLM's newer one holds the settings of all requests by
    numbers.
    """

    def __init__(self, settings: Any):
        self.settings = settings

    def keyed(self, numbers: np.ndarray) -> np.ndarray:
        """Which of these requests are sampled by a seed of their own."""
        return self.settings.seeds_set[numbers] & (self.settings.temperature.np[numbers] > 0)

    def draw(self, logits: Tensor, numbers: np.ndarray, positions: Tensor) -> Tensor:
        """The tokens [N] at these positions of these requests, from processed logits [N,V]."""
        seeds = [row_seed(seed, 0) for seed in self.settings.seeds.np[numbers].tolist()]
        noise = gumbel(
            torch.tensor(seeds, device=logits.device), positions[:, None], logits.shape[-1]
        )[:, 0]
        return (logits.float().log_softmax(-1) + noise).argmax(-1)

    def redraw(self, tokens: Tensor, logits: Tensor, expanded: Tensor, positions: Tensor) -> None:
        """Put what requests with a seed draw at these positions into tokens [N]: expanded [N] their
        numbers.
        """
        numbers = expanded.cpu().numpy()
        rows = np.flatnonzero(self.keyed(numbers))
        at = torch.from_numpy(rows).to(logits.device)
        tokens[at] = self.draw(logits[at], numbers[rows], positions[at]).to(tokens.dtype)

    def redraft(
        self, tokens: Tensor, logits: Tensor, numbers: np.ndarray, positions: Tensor
    ) -> None:
        """The same for drafts, from logits as the target computes them."""
        rows = np.flatnonzero(self.keyed(numbers))
        settings = self.settings
        if not len(rows):
            return
        numbers = numbers[rows]
        at = torch.from_numpy(rows).to(logits.device)
        given = [x.np[numbers] for x in (settings.temperature, settings.top_k, settings.top_p)]
        temperature, k, p = (torch.from_numpy(x).to(logits.device) for x in given)
        k = k if (k < settings.vocab_size).any() else None
        p = p if (p < 1).any() else None
        kept = apply_top_k_top_p(logits[at].float() / temperature[:, None], k, p)
        tokens[at] = self.draw(kept, numbers, positions[at]).to(tokens.dtype)


class Drawn:
    """The sampler's draw of a token per request -> (tokens, processed logits): seeded requests draw
    by their noise.
    """

    def __init__(self, sample: Callable[..., tuple[Tensor, Tensor]], draws: Draws):
        self.sample = sample
        self.draws = draws

    def __call__(
        self,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        pos: Tensor,
        *others: Any,
        **named: Any,
    ) -> tuple[Tensor, Tensor]:
        given = (logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos)
        tokens, kept = self.sample(*given, *others, **named)
        if self.draws.keyed(idx_mapping_np).any():
            self.draws.redraw(tokens, kept, expanded_idx_mapping, pos + 1)
        return tokens, kept


class Verified(RejectionSampler):
    """Drafts of a sampled request with a seed are accepted as long as they are its draws."""

    def __init__(self, sampler: Any, spec_config: Any, device: torch.device, draws: Draws):
        super().__init__(sampler, spec_config, device)
        self.draws = draws

    def _verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        verify_draft_sampled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(processed logits, [B,1+most drafts] new tokens of each request, [B] how many of them
        count).
        """
        given = (
            logits,
            draft_logits,
            draft_sampled,
            pos,
            cu_num_logits,
            idx_mapping,
            idx_mapping_np,
        )
        more = (
            expanded_idx_mapping,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            verify_draft_sampled,
        )
        kept, sampled, counts = super()._verify(*given, *more)
        keyed = np.flatnonzero(self.draws.keyed(idx_mapping_np)).tolist()
        if not keyed:
            return kept, sampled, counts
        drawn = torch.full_like(verify_draft_sampled, -1)
        self.draws.redraw(drawn, kept, expanded_idx_mapping, pos + 1)
        ends = cu_num_logits.tolist()
        for b in (
            keyed
        ):  # of a request's rows, the first reads its last token, and the others its drafts
            mine = drawn[ends[b] : ends[b + 1]]
            drafts = verify_draft_sampled[ends[b] + 1 : ends[b + 1]]
            sampled[b, : len(mine)] = mine.to(sampled.dtype)
            counts[b] = 1 + (mine[:-1] == drafts).int().cumprod(0).sum()
        return kept, sampled, counts


def keyed_samplers(
    sampler: Any, spec_config: Any, device: torch.device
) -> tuple[Any, Verified | None]:
    """The model runner's sampler, and the one that verifies drafts, where seeded requests draw by
    keyed noise.
    """
    contract.check("v2 keyed")
    draws = Draws(sampler.sampling_states)
    sampler.sample = Drawn(sampler.sample, draws)
    return sampler, None if spec_config is None else Verified(sampler, spec_config, device, draws)
