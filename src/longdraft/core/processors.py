"""Applies Transformers' own logits processors to every node of a tree, along its own path."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import logits_process as lp
from transformers.generation.utils import GenerationMixin

from longdraft.core.nucleus import nucleus
from longdraft.core.rows import Rows
from longdraft.core.tree import Tree

# Processors that read nothing besides the scores, and those that read the number of tokens. All
# others are given the whole path.
READS_NOTHING = (
    lp.TemperatureLogitsWarper,
    lp.TopKLogitsWarper,
    lp.TopPLogitsWarper,
    lp.MinPLogitsWarper,
    lp.EtaLogitsWarper,
    lp.SuppressTokensLogitsProcessor,
    lp.InfNanRemoveLogitsProcessor,
)
READS_LENGTH = (
    lp.MinLengthLogitsProcessor,
    lp.MinNewTokensLengthLogitsProcessor,
    lp.ForcedBOSTokenLogitsProcessor,
    lp.ForcedEOSTokenLogitsProcessor,
    lp.SuppressTokensAtBeginLogitsProcessor,
    lp.ExponentialDecayLengthPenalty,
)
# settings that need no path
WARPERS = {
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "eta_cutoff",
}
# Settings whose processors count from the end of the prompt or up to the limit, so they differ from
# row to row.
ROW_DEPENDENT = {
    "min_new_tokens",
    "forced_eos_token_id",
    "begin_suppress_tokens",
    "exponential_decay_length_penalty",
}

# names and values of a GenerationConfig, with lists as tuples
Settings = tuple[tuple[str, Any], ...]


class _Host(GenerationMixin):
    """The attributes of a model that GenerationMixin._get_logits_processor reads."""

    config = SimpleNamespace(is_encoder_decoder=False)


@lru_cache(maxsize=256)
def chain(
    settings: Settings,
    eos: tuple[int, ...],
    prompt: int,
    total: int,
    vocab: int,
    device: torch.device,
) -> list[Any]:
    """The processors that `generate` applies, in its order.

    The prompt has this length and may grow to `total` tokens. vocab and device are part of the
    cache's key: after their first call some processors keep tensors of that size.
    """
    options = {name: _thawed(value) for name, value in settings}
    if not eos:
        # it raises the scores of end tokens only
        options.pop("exponential_decay_length_penalty", None)
    config = GenerationConfig(**options)
    config.max_length = total
    # `generate` sets this before it makes the processors
    config._eos_token_tensor = (  # pyright: ignore[reportPrivateUsage]
        torch.tensor(eos, device=device) if eos else None
    )
    host: Any = _Host()
    made = list(host._get_logits_processor(config, input_ids_seq_length=prompt, device=str(device)))
    for process in made:
        # its first call changes it, which is not safe in a thread
        if isinstance(process, lp.SequenceBiasLogitsProcessor):
            ids: Any = torch.zeros(1, 1, dtype=torch.long, device=device)
            process(ids, torch.zeros(1, vocab, device=device))
    return made


def apply(settings: Settings, logits: Tensor, tree: Tree, rows: Rows, start: int) -> Tensor:
    """Processed logits [B,W,V] of nodes [start, start+W), each after its own path.

    A path has the committed tokens, then the node's ancestors.
    """
    B, W, V = logits.shape
    device = logits.device
    names = {name for name, _ in settings}
    no_ids: Any = torch.empty(B * W, 0, dtype=torch.long, device=device)
    if names <= WARPERS:
        flat = logits.reshape(B * W, V)
        for process in chain(settings, (), 1, 1, V, device):
            flat = _warped(process, no_ids, flat)
        return flat.view(B, W, V)
    if len(set(rows.eos)) > 1:  # a row without end tokens has fewer processors than the others
        return torch.cat(
            [apply(settings, logits[b : b + 1], tree.row(b), rows.row(b), start) for b in range(B)]
        )
    spans = [
        (n, n + most) for n, most in zip(rows.prompt.tolist(), rows.limit.tolist(), strict=True)
    ]
    if not names & ROW_DEPENDENT:
        spans = [(1, 1)] * B
    chains = [chain(settings, rows.eos[0], *span, V, device) for span in spans]
    return run(chains, logits, tree, rows, start)


def run(
    chains: Sequence[Sequence[Any]],
    logits: Tensor,
    tree: Tree,
    rows: Rows,
    start: int,
    before: tuple[int, ...] = (),
) -> Tensor:
    """logits [B,W,V] of nodes [start, start+W) after each row's processors.

    The processors are of the same kinds in all rows.
    before: tokens in front of every row that the processors see, and the model does not.
    """
    B, W, V = logits.shape
    no_ids: Any = torch.empty(B * W, 0, dtype=torch.long, device=logits.device)
    for steps in zip(*chains, strict=True):  # one kind of processor, in each row's own version
        # the very kinds: a subclass may read more
        kind = type(steps[0])
        first = steps[0]
        if kind in READS_NOTHING:
            logits = _warped(first, no_ids, logits.reshape(B * W, V)).view(B, W, V)
        elif (
            kind is lp.RepetitionPenaltyLogitsProcessor
            and first.prompt_ignore_length is None
            and not before
        ):
            logits = penalized(logits, path_tokens(tree, rows, start, W), first.penalty)
        else:
            out = torch.empty_like(logits)
            for b, nodes, ids in _paths(tree, rows, start, W, kind not in READS_LENGTH, before):
                out[b, nodes] = steps[b](ids, logits[b, nodes])
            logits = out
    return logits


def within(constrained: Tensor, processed: Tensor) -> Tensor:
    """Processed logits, without the tokens that a constraint excludes.

    Where no other token is left, the logits are those that the constraint gave.
    Some processors give a token that was excluded a score, and some leave a very low one instead of
    -inf.
    """
    kept = processed.masked_fill(constrained == -math.inf, -math.inf)
    nothing = (kept <= torch.finfo(kept.dtype).min).all(-1, keepdim=True)
    return torch.where(nothing, constrained, kept)


def _warped(process: Any, no_ids: Any, logits: Tensor) -> Tensor:
    """logits [N,V] after a processor that reads nothing else."""
    if isinstance(process, lp.TopPLogitsWarper) and logits.is_cpu and usual(process):
        return nucleus(logits, process.top_p)
    return process(no_ids, logits)


def usual(process: Any) -> bool:
    """Whether a processor that removes tokens keeps one or more, and gives the others no chance."""
    kept = getattr(process, "min_tokens_to_keep", 1)
    filler = getattr(process, "filter_value", -math.inf)
    return kept == 1 and filler == -math.inf


def penalized(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """logits [B,W,V] divided by the penalty (multiplied where negative) at tokens [B,W,N].

    Tokens may repeat.
    """
    scores = logits.gather(-1, tokens)
    return logits.scatter(-1, tokens, torch.where(scores > 0, scores / penalty, scores * penalty))


def path_tokens(tree: Tree, rows: Rows, start: int, W: int, window: int | None = None) -> Tensor:
    """[B,W,N]: the tokens of each node's path, its own last; the last `window` of them, if given.

    Places without such a token hold the node's own.
    """
    depth = tree.depth[:, start : start + W, None]
    n = int(rows.length.max()) - 1
    # 1: before the root
    ago = torch.arange(1, (n if window is None else min(window, n)) + 1, device=depth.device)
    position = rows.length[:, None] - 1 - ago
    before = rows.tokens.gather(1, position.clamp(min=0))
    near = (position >= 0)[:, None].expand(-1, W, -1)
    on_path = tree.mask[:, start : start + W]
    if window is not None:
        near = near & (ago + depth < window)
        on_path = on_path & (depth - tree.depth[:, None] < window)
    tokens = torch.cat([before, tree.tokens], 1)[:, None]
    own = tree.tokens[:, start : start + W, None]
    return torch.where(torch.cat([near, on_path], 2), tokens, own)


def repeated(
    logits: Tensor, tree: Tree, rows: Rows, start: int, frequency: float, presence: float
) -> Tensor:
    """A copy of logits [B,W,V] in float32, with the penalties of generated tokens subtracted.

    A token's logit is lower by `frequency` for every time that the token was generated before a
    node's draw, on the node's own path, and by `presence` if it was generated at all.
    Only the logits of such tokens are computed, and by NumPy: torch's threads wait for each other
    in every operation, which takes several passes' time where other processes compute too.
    """
    B, W, _ = logits.shape
    on_cpu = logits.is_cpu and logits.dtype == torch.float32
    if on_cpu:
        changed = torch.from_numpy(logits.numpy().copy())
    else:
        changed = logits.to(torch.float32, copy=True)
    for b in range(B):
        tokens, count = _generated(tree, rows, b, start, W)
        lower = frequency * count + presence * (count > 0)
        if logits.is_cpu:
            changed.numpy()[b][:, tokens] -= lower
        else:
            columns = torch.from_numpy(tokens).to(logits.device)
            changed[b][:, columns] -= torch.from_numpy(lower).to(logits.device)
    return changed


def _generated(tree: Tree, rows: Rows, b: int, start: int, W: int) -> tuple[Any, Any]:
    """The tokens [N] that row b has generated and drafted, and their counts [W,N].

    A count is how often the token is on the path of each node.
    """
    # the root is the last
    committed = rows.tokens[b, int(rows.prompt[b]) : int(rows.length[b])].numpy(force=True)
    drafted = tree.tokens[b, 1:].numpy(force=True)
    tokens, place = np.unique(np.concatenate([committed, drafted]), return_inverse=True)
    count = np.zeros((W, len(tokens)), np.float32)
    count += np.bincount(place[: len(committed)], minlength=len(tokens))
    for node, on_path in enumerate(tree.mask[b, start : start + W, 1:].numpy(force=True)):
        np.add.at(count[node], place[len(committed) :][on_path], 1)
    return tokens, count


def _paths(
    tree: Tree, rows: Rows, start: int, W: int, with_tokens: bool, before: tuple[int, ...] = ()
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The nodes of each row and depth, with their paths: b, nodes, paths [nodes,length].

    Nodes are counted from `start`; a path begins with `before`. Without tokens a path has the right
    length but is one expanded zero, which costs no memory.
    """
    depths = tree.depth[:, start : start + W]
    front = rows.tokens.new_tensor(before)
    for b, length in enumerate(rows.length.tolist()):
        for depth in set(depths[b].tolist()):
            nodes = (depths[b] == depth).nonzero()[:, 0]
            if not with_tokens:
                zero = torch.zeros(1, 1, dtype=torch.long, device=nodes.device)
                yield b, nodes, zero.expand(len(nodes), len(before) + length + depth)
                continue
            on = tree.mask[b, start + nodes]  # depth + 1 ancestors each, the root first
            drafted = tree.tokens[b].expand(len(nodes), -1)[on].view(len(nodes), depth + 1)[:, 1:]
            committed = torch.cat([front, rows.tokens[b, :length]])
            yield b, nodes, torch.cat([committed.expand(len(nodes), -1), drafted], 1)


def frozen(value: Any) -> Any:
    """A hashable form of a setting: lists become tuples."""
    if isinstance(value, dict):
        return tuple((frozen(k), frozen(v)) for k, v in value.items())
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    return [_thawed(v) for v in value] if isinstance(value, tuple) else value
