"""Samples steps that verify no draft as vLLM does without speculation."""

from __future__ import annotations

from typing import Any

from longdraft_vllm import contract

NAME = "before_longdraft"  # an attribute of what takes the place of vLLM's method: that method


def sample_plainly() -> bool:
    """Let vLLM's rejection sampler call the sampler alone where nothing was drafted -> whether that
    is new.

    Each request then has one row of logits, in order, and its next token is drawn from it by the
    same sampler either way. vLLM 0.32.0 copies these rows several times first: on CPUs about 1% of
    a step. And with top-k but no top-p, its engine ends there, since it asks for the largest k of
    no drafts.
    """
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    if not contract.fits("plain steps"):
        return False
    verify = RejectionSampler.forward
    if hasattr(verify, NAME):
        return False

    def forward(
        self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any
    ) -> Any:
        if metadata.max_spec_len:
            return verify(self, metadata, draft_probs, logits, sampling_metadata)
        return self.sampler(logits=logits, sampling_metadata=sampling_metadata)

    setattr(forward, NAME, verify)
    RejectionSampler.forward = forward
    return True
