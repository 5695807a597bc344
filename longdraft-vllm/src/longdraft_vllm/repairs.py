"""Corrects an error of vLLM 0.32.0 on CPUs that would give sampled outputs a wrong law under any
speculation.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from longdraft_vllm import contract

NAME = "vllm.v1.sample.rejection_sampler"


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """[B] values repeated for each request's tokens -> [num_tokens]; one value is replaced by
    another.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return (
        torch.where(x == replace_from, replace_to, x).to(x.dtype).repeat_interleave(counts.long())
    )


def repair_sampling() -> bool:
    """Replace vLLM's function of this name where it gives wrong numbers -> whether it did.

    On CPUs, 0.32.0 computes the result in a copy that it drops, and returns memory that was never
    written: the verification of sampled requests then divides logits by random numbers in place of
    the temperature (github.com/vllm-project/vllm/issues/55005).
    """
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    if not current_platform.is_cpu():
        return False
    contract.check("sampling")
    x = torch.tensor([0.8125, 1.6875])
    ends = torch.tensor([2, 3], dtype=torch.int32)
    if rejection_sampler.expand_batch_to_tokens is expand_batch_to_tokens:
        return False
    if torch.equal(
        rejection_sampler.expand_batch_to_tokens(x, ends, 3), expand_batch_to_tokens(x, ends, 3)
    ):
        return False
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    logging.getLogger("vllm.longdraft").warning(
        "replaced %s.expand_batch_to_tokens, which returns noise", NAME
    )
    return True
