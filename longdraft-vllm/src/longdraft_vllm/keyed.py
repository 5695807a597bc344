"""Sampling by keyed noise, so that a seeded request gives the same tokens with and without drafts,
here and there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from longdraft.ops import gumbel, row_seed
from longdraft_vllm.runner import Row


class Noise:
    """Token n of a request with a seed is the argmax of its log-probabilities plus the noise of
    (seed, n).

    This is longdraft's rule for all its methods. What was drafted, and which requests run beside
    it, do not matter. seeds: of each row of the step that is sampled, None without one; empty
    between steps, so that other engines of the process sample as vLLM does. lengths: its committed
    tokens. drafted: how many tokens were drafted for it.
    """

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.lengths: list[int] = []
        self.drafted: list[int] = []

    def draw(self, logits: Tensor, seed: int, position: int) -> Tensor:
        """The tokens [N] at positions `position` and on, from processed logits [N,V]."""
        count, vocab = logits.shape
        seeds = torch.tensor([row_seed(seed, 0)], device=logits.device)
        positions = torch.arange(position, position + count, device=logits.device)
        return (logits.float().log_softmax(-1) + gumbel(seeds, positions[None], vocab)[0]).argmax(
            -1
        )


class Drawn:
    """vLLM's last step of sampling, [B,V] -> ([B], log-probabilities): rows with a seed draw by
    keyed noise.

    These are the tokens after all of a row's drafts, or after its text where it has none.
    """

    def __init__(self, sample: Callable[..., tuple[Tensor, Tensor | None]], noise: Noise):
        self.sample = sample
        self.noise = noise

    def __call__(
        self,
        logits: Tensor,
        generators: dict[int, torch.Generator],
        k: Tensor | None,
        p: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        noise = self.noise
        seeded = any(seed is not None for seed in noise.seeds)
        if not seeded or len(noise.seeds) != len(
            logits
        ):  # vLLM tries its sampler out before it serves
            return self.sample(logits, generators, k, p)
        kept = apply_top_k_top_p(logits.clone(), k, p)
        tokens, logprobs = self.sample(logits, generators, k, p)
        for b, seed in enumerate(noise.seeds):
            if seed is not None:
                [tokens[b]] = noise.draw(kept[b : b + 1], seed, noise.lengths[b] + noise.drafted[b])
        return tokens, logprobs


# of the runner that samples in this thread
ACTIVE: ContextVar[Noise | None] = ContextVar("ACTIVE", default=None)


class Verified:
    """vLLM's verification of drafts: drafts of a sampled row with a seed are accepted as long as
    they are its draws.

    vLLM calls it as a function of a module, so it is one for all engines of a process; ACTIVE says
    whose step it is.
    """

    def __init__(self, verify: Callable[..., Tensor]):
        self.verify = verify

    def __call__(
        self,
        draft_token_ids: Tensor,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_logits: Tensor,
        bonus_token_ids: Tensor,
        sampling_metadata: Any,
        **options: Any,
    ) -> Tensor:
        """[B,1+most drafts]: the accepted drafts of each row, then the target's next token, then
        -1.
        """
        given = (
            draft_token_ids,
            num_draft_tokens,
            max_spec_len,
            cu_num_draft_tokens,
            draft_probs,
            target_logits,
        )
        found = self.verify(*given, bonus_token_ids, sampling_metadata, **options)
        noise = ACTIVE.get()
        start = 0
        if noise is None or len(noise.seeds) != len(num_draft_tokens):
            return found
        for b, count in enumerate(num_draft_tokens):
            rows = slice(start, start + count)
            start = start + count
            seed = noise.seeds[b]
            if seed is None:
                continue
            drawn = noise.draw(target_logits[rows], seed, noise.lengths[b])
            accepted = int((drawn == draft_token_ids[rows]).int().cumprod(0).sum())
            found[b] = rejection_sampler.PLACEHOLDER_TOKEN_ID
            found[b, : count + 1] = torch.cat(
                [drawn.to(found.dtype), bonus_token_ids[b].to(found.dtype)]
            )
            found[b, accepted + 1 :] = rejection_sampler.PLACEHOLDER_TOKEN_ID
        return found


class Keyed:
    """A mixin over a model runner: what a seeded request gives depends on its text, seed and
    settings alone.
    """

    def __init__(self, vllm_config: Any, device: torch.device):
        super().__init__(vllm_config, device)
        self.noise = Noise()
        last = self.sampler.topk_topp_sampler
        last.forward = Drawn(last.forward, self.noise)
        if not isinstance(
            rejection_sampler.rejection_sample, Verified
        ):  # by an earlier runner of this process
            rejection_sampler.rejection_sample = Verified(rejection_sampler.rejection_sample)

    def _sample(self, logits: Tensor | None, spec_decode_metadata: Any) -> Any:
        batch = self.input_batch
        noise = self.noise
        noise.seeds = [self._seed(id) for id in batch.req_ids]
        noise.lengths = [int(n) for n in batch.num_tokens_no_spec[: len(batch.req_ids)]]
        noise.drafted = (
            spec_decode_metadata.num_draft_tokens
            if spec_decode_metadata
            else [0] * len(batch.req_ids)
        )
        for b, seed in enumerate(noise.seeds):
            if (
                seed is not None
            ):  # unused here, and vLLM cannot set back a CPU's generator after part of a prompt
                batch.generators.pop(b, None)
        before = ACTIVE.set(noise)
        try:
            return super()._sample(logits, spec_decode_metadata)
        finally:
            ACTIVE.reset(before)
            noise.seeds = []

    def _seed(self, request: str) -> int | None:
        """The request's seed; None for a greedy one too."""
        sampling = self.requests[request].sampling_params
        return sampling.seed if sampling is not None and sampling.temperature > 0 else None

    def next_tokens(self, logits: Tensor, rows: list[Row], positions: Tensor) -> Tensor:
        """[B] drafts of rows with a seed are drawn by the noise that their verification uses, so
        more are accepted.
        """
        tokens = super().next_tokens(logits, rows, positions)
        settings = self.input_batch.sampling_metadata
        for i, row in enumerate(rows):
            seed = self._seed(row.request)
            if seed is not None:
                at = slice(row.at, row.at + 1)
                k, p = (None if x is None else x[at] for x in (settings.top_k, settings.top_p))
                kept = apply_top_k_top_p(
                    logits[i : i + 1].float() / settings.temperature[at, None], k, p
                )
                [tokens[i]] = self.noise.draw(kept, seed, int(positions[i]) + 1).to(tokens.dtype)
        return tokens
