"""Log-probabilities of tokens: the model's own, before the sampler changes them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's log-probability in nats, and the most likely tokens in its place, best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


def token_logprobs(logits: Tensor, tokens: Tensor, top: int) -> list[TokenLogprobs]:
    """The log-probabilities of tokens, each with the `top` most likely tokens.

    logits [N,V], tokens [N].
    """
    law = logits.float().log_softmax(-1)
    own = law.gather(-1, tokens[:, None])[:, 0].tolist()
    best = law.topk(min(top, law.shape[-1]), -1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprobs(token, logprob, list(zip(others, values, strict=True)))
        for token, logprob, (others, values) in zip(tokens.tolist(), own, pairs, strict=True)
    ]
