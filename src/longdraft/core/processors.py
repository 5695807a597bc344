"""Transformers' own chain of logits processors, applied to every node of a tree along the node's own path."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import logits_process as lp
from transformers.generation.utils import GenerationMixin

from longdraft.core.tree import Tree

if TYPE_CHECKING:
    from longdraft.core.sequences import Sequences

# What a processor looks at besides the scores. Any that is in neither tuple is given the whole path.
NOTHING = (
    lp.TemperatureLogitsWarper,
    lp.TopKLogitsWarper,
    lp.TopPLogitsWarper,
    lp.MinPLogitsWarper,
    lp.EtaLogitsWarper,
    lp.SuppressTokensLogitsProcessor,
    lp.InfNanRemoveLogitsProcessor,
)
LENGTH = (
    lp.MinLengthLogitsProcessor,
    lp.MinNewTokensLengthLogitsProcessor,
    lp.ForcedBOSTokenLogitsProcessor,
    lp.ForcedEOSTokenLogitsProcessor,
    lp.SuppressTokensAtBeginLogitsProcessor,
    lp.ExponentialDecayLengthPenalty,
)
WARPERS = {"do_sample", "temperature", "top_k", "top_p", "min_p", "eta_cutoff"}  # settings that need no path
# Settings that count from the end of the prompt, or to the end of the text: their processors differ from row to row.
PLACED = {"min_new_tokens", "forced_eos_token_id", "begin_suppress_tokens", "exponential_decay_length_penalty"}

Settings = tuple[tuple[str, Any], ...]  # of a GenerationConfig: names and values, lists as tuples


class _Host(GenerationMixin):
    """All that GenerationMixin._get_logits_processor asks of a model."""

    config = SimpleNamespace(is_encoder_decoder=False)


@lru_cache(maxsize=256)
def chain(
    settings: Settings, eos: tuple[int, ...], prompt: int, total: int, vocab: int, device: torch.device
) -> list[Any]:
    """The processors `generate` would apply, in its order, to a prompt of so many tokens that may grow to `total`.

    vocab and device: some processors keep tensors of that size and place after their first call.
    """
    found = {name: _thawed(value) for name, value in settings}
    if not eos:
        found.pop("exponential_decay_length_penalty", None)  # it would raise the scores of no token
    config = GenerationConfig(**found)
    config.max_length = total
    config._eos_token_tensor = torch.tensor(eos, device=device) if eos else None
    host: Any = _Host()
    made = list(host._get_logits_processor(config, input_ids_seq_length=prompt, device=str(device)))
    for process in made:
        if isinstance(process, lp.SequenceBiasLogitsProcessor):  # completes itself when first called: not in a thread
            ids: Any = torch.zeros(1, 1, dtype=torch.long, device=device)
            process(ids, torch.zeros(1, vocab, device=device))
    return made


def apply(settings: Settings, logits: Tensor, tree: Tree, seqs: Sequences, start: int) -> Tensor:
    """Processed logits [B,W,V] of nodes [start, start+W), each as after its own path: prompt, committed, ancestors."""
    B, W, V = logits.shape
    device, names = logits.device, {name for name, _ in settings}
    nothing: Any = torch.empty(B * W, 0, dtype=torch.long, device=device)
    if names <= WARPERS:
        flat = logits.reshape(B * W, V)
        for process in chain(settings, (), 1, 1, V, device):
            flat = process(nothing, flat)
        return flat.view(B, W, V)
    if len(set(seqs.eos)) > 1:  # a row without end tokens has fewer processors than its neighbours
        rows = range(B)
        return torch.cat([apply(settings, logits[b : b + 1], tree.row(b), seqs.row(b), start) for b in rows])
    places = [(n, n + most) for n, most in zip(seqs.prompt.tolist(), seqs.limit.tolist(), strict=True)]
    rows = [chain(settings, seqs.eos[0], *(place if names & PLACED else (1, 1)), V, device) for place in places]
    for steps in zip(*rows, strict=True):  # one kind of processor, with each row's own lengths
        if isinstance(steps[0], NOTHING):
            logits = steps[0](nothing, logits.reshape(B * W, V)).view(B, W, V)
        elif isinstance(steps[0], lp.RepetitionPenaltyLogitsProcessor):
            logits = lowered(logits, seen(tree, seqs, start, W, V), steps[0].penalty)
        else:
            out = torch.empty_like(logits)
            for b, nodes, ids in _paths(tree, seqs, start, W, not isinstance(steps[0], LENGTH)):
                out[b, nodes] = steps[b](ids, logits[b, nodes])
            logits = out
    return logits


def lowered(logits: Tensor, which: Tensor, penalty: float) -> Tensor:
    """Logits divided by the penalty (multiplied, where negative) at the tokens `which`, a mask of the same shape."""
    return torch.where(which, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def seen(tree: Tree, seqs: Sequences, start: int, W: int, V: int) -> Tensor:
    """Which tokens [B,W,V] are on each node's path."""
    longest = int(seqs.length.max())
    real = torch.arange(longest, device=seqs.tokens.device) < seqs.length[:, None]
    tokens = torch.where(real, seqs.tokens[:, :longest], V)
    committed = torch.zeros(len(tokens), V + 1, dtype=torch.bool, device=tokens.device).scatter_(1, tokens, True)
    path = torch.where(tree.mask[:, start : start + W], tree.tokens[:, None], V)
    return committed[:, None].expand(-1, W, -1).scatter(2, path, True)[..., :V]


def _paths(tree: Tree, seqs: Sequences, start: int, W: int, spelled: bool) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Nodes of one row and depth, counted from `start`, and their paths [nodes, length].

    spelled: whether the tokens matter; where only their number does, all of a path is one zero, never copied.
    """
    depths = tree.depth[:, start : start + W]
    for b, length in enumerate(seqs.length.tolist()):
        for depth in set(depths[b].tolist()):
            nodes = (depths[b] == depth).nonzero()[:, 0]
            if not spelled:
                zero = torch.zeros(1, 1, dtype=torch.long, device=nodes.device)
                yield b, nodes, zero.expand(len(nodes), length + depth)
                continue
            on = tree.mask[b, start + nodes]  # as many as the depth, and the root, in the path's own order
            drafted = tree.tokens[b].expand(len(nodes), -1)[on].view(len(nodes), depth + 1)[:, 1:]
            yield b, nodes, torch.cat([seqs.tokens[b, :length].expand(len(nodes), -1), drafted], 1)


def frozen(value: Any) -> Any:
    """A setting as a key of a cache: lists as tuples."""
    if isinstance(value, dict):
        return tuple((frozen(k), frozen(v)) for k, v in value.items())
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    return [_thawed(v) for v in value] if isinstance(value, tuple) else value
