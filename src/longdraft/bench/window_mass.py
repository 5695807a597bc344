"""How much attention lies outside a sliding window: the epsilon of LongSpec's theorem 3.1, measured
on a text.

With a window, a query at position t sees positions t-window to t. The mass is the share of its full
attention that falls on earlier keys, averaged over the queries that have earlier keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.core import Captures, CaptureSpec, Tree
from longdraft.drafters.glide.block import Glide
from longdraft.errors import InputError
from longdraft.models.lm import LM

CHUNK = 64  # queries at a time; smaller than any useful window


def _check(tokens: list[int], window: int) -> None:
    if window < 1 or len(tokens) < window + 2:
        raise InputError(
            f"{len(tokens)} tokens all lie inside a window of {window}: give more tokens"
        )


@torch.inference_mode()
def of_drafter(block: Glide, tokens: list[int], window: int = 0) -> Tensor:
    """Mean mass [H] per head of the block's self-attention (window 0: the block's own). Raises
    InputError.
    """
    window = window or block.window
    _check(tokens, window)
    ids = torch.tensor([tokens], device=block.host.target.device)
    position = torch.arange(len(tokens), device=ids.device)
    normed = block.self_norm(block.embed(ids))
    turn = block.host.rotation(position[None])
    q, (k, _) = block.queries(normed, turn)[0], block.keys(normed, turn)
    k = k[0].repeat_interleave(block.heads // block.host.keys, 0)
    total = q.new_zeros(block.heads, dtype=torch.float64)
    for queries in position[window + 1 :].split(CHUNK):
        end = int(queries[-1]) + 1
        logits = (q[:, queries] @ k[:, :end].mT).float() * block.host.dim**-0.5
        weights = logits.masked_fill(position[:end] > queries[:, None], float("-inf")).softmax(-1)
        total += (weights * (position[:end] < queries[:, None] - window)).sum((1, 2))
    return total / (len(tokens) - window - 1)


@torch.inference_mode()
def of_target(target: LM, tokens: list[int], window: int = 512) -> dict[int, float]:
    """{layer: mean mass over heads} of the target's layers with full attention."""
    _check(tokens, window)
    chunk = min(CHUNK, window)
    total = {}
    cache = target.new_cache(1, len(tokens))
    target.prefill(tokens[: window + 1], cache)
    for part in torch.tensor([tokens[window + 1 :]], device=target.device).split(chunk, 1):
        begin = int(cache.length)
        captured = Captures(CaptureSpec(rows="all", of="weights"))
        with cache.appending(part.shape[1]):
            target(Tree.chain(part), cache, captured=captured, logits=1)
        queries = torch.arange(begin, begin + part.shape[1], device=target.device)
        for (
            layer,
            scores,
        ) in captured.scores.items():  # [1,R,1,begin+1]: later keys are inside every window
            outside = (
                torch.arange(scores.shape[-1], device=queries.device) < queries[:, None] - window
            )
            mass = float(scores[0, :, 0].masked_fill(~outside, 0.0).sum())
            total[layer] = total.get(layer, 0.0) + mass
    return {layer: mass / (len(tokens) - window - 1) for layer, mass in total.items()}
