"""Measures how well a target uses its context, on held-out text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F

from longdraft.training.data import Corpus
from longdraft.training.hybrid import in_segments
from longdraft.training.observed import observed


@torch.no_grad()
def losses(model, tokens: torch.Tensor, last: int | None = None) -> torch.Tensor:
    """Loss in nats [B, last] of each row's last tokens (by default all but the first).

    tokens [B,S].
    """
    last = last or tokens.shape[1] - 1
    with torch.autocast("cpu", torch.bfloat16), in_segments():
        hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, -last:])
    wanted = tokens[:, -last:].flatten()
    each = F.cross_entropy(logits.float().flatten(0, 1), wanted, reduction="none")
    return each.view(-1, last)


def rows(corpus: Corpus, kind: str, count: int, size: int) -> torch.Tensor:
    """Evenly spaced pieces [count, size] of the groups of that kind.

    No rows if no group is long enough.
    """
    pieces = []
    for begin, end, each in zip(corpus.groups[:-1], corpus.groups[1:], corpus.kinds, strict=True):
        if each == kind and end - begin >= size:
            pieces += [int(p) for p in np.arange(begin, end - size + 1, max(1, size // 2))]
    if not pieces:
        return torch.zeros(0, size, dtype=torch.long)
    chosen = np.linspace(0, len(pieces) - 1, min(count, len(pieces))).astype(int)
    begins = [pieces[i] for i in chosen]
    return torch.from_numpy(
        np.stack([np.asarray(corpus.tokens[b : b + size], np.int64) for b in begins])
    )


def mean(values: torch.Tensor) -> float | None:
    return round(float(values.mean()), 4) if values.numel() else None


def each_row(model, tokens: torch.Tensor, last: int | None = None) -> torch.Tensor:
    """`losses`, one row at a time to limit memory."""
    per_row = [losses(model, row[None], last) for row in tokens]
    return torch.cat(per_row) if per_row else torch.zeros(0, 1)


def held_out(model, corpus: Corpus, count: int = 16, size: int = 512) -> dict:
    """Mean loss of held-out rows."""
    return {
        f"heldout_{kind}": mean(each_row(model, rows(corpus, kind, count, size + 1)))
        for kind in ("code", "book")
    }


def by_position(model, corpus: Corpus, kind: str, count: int = 16, size: int = 4096) -> dict:
    """Mean loss between positions 0, 64, 128, 256, ... of held-out rows."""
    per_row = each_row(model, rows(corpus, kind, count, size + 1))
    edges = [0, *(2**i for i in range(6, 20) if 2**i <= size)]
    if not per_row.numel():
        return {}
    return {f"{a}-{b}": mean(per_row[:, a:b]) for a, b in pairwise(edges)}


def by_context(
    model, corpus: Corpus, kind: str, contexts: list[int], count: int = 8, last: int = 512
) -> dict:
    """Mean loss of the same `last` tokens of each row after contexts of increasing length.

    change: the mean difference to the next shorter context, with its standard error; below 0:
    context helps.
    """
    tokens = rows(corpus, kind, count, max(contexts) + 1)
    if not len(tokens):
        return {}
    records = {}
    before = None
    for context in sorted(contexts):
        per_row = each_row(model, tokens[:, -(context + 1) :], min(last, context)).mean(1)
        records[str(context)] = {"loss": mean(per_row)}
        if before is not None and len(per_row) > 1:
            change = per_row - before
            error = round(float(change.std() / len(change) ** 0.5), 4)
            records[str(context)] |= {"change": mean(change), "change_stderr": error}
        before = per_row
    return {"rows": len(tokens), "by_context": records}


def induction(model, vocab: int, span: int = 128, count: int = 16) -> float | None:
    """Loss on the second occurrence of `span` random tokens.

    ln(vocab) means no copying, 0 perfect copying.
    """
    generator = torch.Generator().manual_seed(0)
    once = torch.randint(1, vocab, (count, span), generator=generator)
    return mean(each_row(model, torch.cat([once, once], 1), span - 1))


def largest_logit(model, tokens: torch.Tensor) -> float | None:
    """The largest causal attention logit in any layer on these rows."""
    largest: list[float] = []

    def observer(_, query: torch.Tensor, key: torch.Tensor, scale: float) -> None:
        largest.append(float((query.float() @ key.float().transpose(-1, -2) * scale).tril().amax()))

    with observed(model, observer):
        each_row(model, tokens)
    return round(max(largest), 2) if largest else None


def cheap(model, corpus: Corpus, vocab: int) -> dict:
    """Probes that take a few seconds, for the log."""
    figures = held_out(model, corpus)
    some = torch.cat([rows(corpus, kind, 1, 513) for kind in ("code", "book")])
    return {
        **figures,
        "induction": induction(model, vocab),
        "largest_logit": largest_logit(model, some),
    }


def full(model, corpus: Corpus, vocab: int, contexts: list[int], count: int = 8) -> dict:
    """All probes; these take minutes at contexts of 32K."""
    figures = {**cheap(model, corpus, vocab), **held_out(model, corpus, count=64, size=1024)}
    figures["induction_by_span"] = {
        str(s): induction(model, vocab, s, 8) for s in (64, 256, 512, 1024, 2048)
    }
    for kind in ("code", "book"):
        logit = {"largest_logit": largest_logit(model, rows(corpus, kind, 1, 4097))}
        figures[kind] = {"by_position": by_position(model, corpus, kind), **logit}
        figures[kind] |= by_context(model, corpus, kind, contexts, count)
    return figures
