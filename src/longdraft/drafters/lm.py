"""A separate small language model drafts: plain speculative decoding, BudgetDraft, TriForce's innermost level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from longdraft.cache import KVCache
from longdraft.drafters.base import Drafter, beam
from longdraft.drafters.costs import bytes_read
from longdraft.errors import InputError
from longdraft.fast import NODES, Draws, chain
from longdraft.model import LM, KVView, Taps
from longdraft.sequences import Sequences
from longdraft.tree import Tree
from longdraft.verify import Verdict
from longdraft.views.base import Policy

PADDING = 512  # vocabularies are padded to a multiple of at most this


class LMDrafter(Drafter):
    """Its own cache holds a prefix of the committed text; what is missing of it runs in front of the next root.

    Drafts attend under a view of that cache, at their true positions in the text, beyond those the small model was
    trained on too. vocab: the target's, where padding makes it another than the small model's.
    """

    keeps_law = True

    def __init__(self, small: LM, policy: Policy, widths: Sequence[int], vocab: int | None = None):
        self.small, self.policy, self.widths = small, policy, widths
        self.vocab = small.vocab if vocab is None else vocab
        larger, apart = max(self.vocab, small.vocab), abs(self.vocab - small.vocab)
        if apart > min(PADDING, larger // 8):
            raise InputError(
                f"the drafter's vocabulary of {small.vocab} is not the target's of {self.vocab}: use a drafter that was"
                " trained with the target's tokenizer"
            )
        self.cache = small.new_cache(0, 0)
        self._run = 0  # nodes of this round's tree that have keys in scratch

    @property
    def caches(self) -> list[KVCache]:
        return [self.cache]

    def wants(self) -> Taps:
        return self.policy.wants()

    def start(self, seqs: Sequences) -> None:
        self._whole_cache = self.small.new_cache(seqs.capacity, seqs.tokens.shape[1] + 128)
        self._have_rows(seqs)
        for b in range(len(seqs.length)):
            self._read(seqs, b)
        self.policy.start(self.small, self._text, self.cache)

    def enter(self, seqs: Sequences, row: int) -> None:
        self._have_rows(seqs)
        self._read(seqs, row)
        self.policy.enter(self.small, self._text, self.cache, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        last = len(seqs.length)
        if row != last:
            self._whole_cache.move(last, row)
        self._have_rows(seqs)
        self.policy.leave(self.small, self._text, self.cache, row)

    def _have_rows(self, seqs: Sequences) -> None:
        """Use as many rows of the cache as there are sequences."""
        self.cache, self._run = self._whole_cache.first(len(seqs.length)), 0
        self._text = self._known(seqs.tokens)

    def _read(self, seqs: Sequences, b: int) -> None:
        """Prefill row b with its prompt."""
        self.cache.length[b] = 0
        self.small.prefill(self._text[b, : int(seqs.length[b]) - 1].tolist(), self.cache.row(b))

    def reads(self, seqs: Sequences, depth: int) -> float:
        return depth * bytes_read(self.small, self.cache, seen=self.policy.seen)

    def grow(self, tree: Tree, seqs: Sequences) -> Tree:
        self._run = 0
        if self.small.vocab < self.vocab:
            self._text.copy_(self._known(seqs.tokens))  # its policy may look at it again
        view = self.policy.view(self.cache)

        def step(tree: Tree, start: int) -> Tensor:
            """Logits [B,W,V] of nodes [start, size); the first pass catches up as well."""
            if start == 0:
                logits = self._root(seqs, view)
            else:
                logits = self.small(replace(tree, tokens=self._known(tree.tokens)), self.cache, start, view)
            self._run = tree.size
            return self._fitted(logits)

        rest = chain(self.small, self.cache, view) if self.small.vocab == self.vocab else None
        whole = rest and partial(self._whole, partial(step, tree, 0), rest)
        return beam(step, tree, self.widths, seqs, whole)

    def _whole(self, root: Callable[[], Tensor], rest: Callable[..., Tensor], draws: Draws) -> Tensor:
        """A chain [B,count] in two calls: the one that catches up, and the rest."""
        first = draws.one(root())
        self._run = draws.count
        return torch.cat([first[:, None], rest(first, 1, draws.after(1))], 1)

    def observe(self, seqs: Sequences, tree: Tree, verdict: Verdict, taps: Taps) -> None:
        """Accepted nodes that have run stay; the deepest one never ran."""
        steps = torch.arange(verdict.path.shape[1], device=verdict.path.device)
        run = ((verdict.path < self._run) & (steps < verdict.count[:, None])).sum(1)
        self.cache.keep(verdict.path, torch.minimum(run, seqs.length - 1 - self.cache.length))
        self._run = 0  # a round that drafts nothing may come next
        self.policy.update(self.cache, taps)

    def _root(self, seqs: Sequences, view: KVView | None) -> Tensor:
        """Run what was committed since the last round, up to the root -> the root's logits [B,1,V].

        Rows that miss less are padded behind their root: nothing real sees that, and drafts overwrite it.
        """
        tokens, n = seqs.since(self.cache.length)
        while int(n.min()) > NODES:  # after a long pause
            self.small(Tree.chain(self._known(tokens[:, :NODES])), self.cache, view=view)
            self.cache.length += NODES
            tokens, n = seqs.since(self.cache.length)
        logits = self.small(Tree.chain(self._known(tokens)), self.cache, view=view)
        self.cache.length += n - 1
        return logits.gather(1, (n - 1)[:, None, None].expand(-1, 1, logits.shape[2]))

    def _known(self, tokens: Tensor) -> Tensor:
        """A token that the small model has no embedding for reads as its last one, which is padding as a rule."""
        return tokens if self.small.vocab >= self.vocab else tokens.clamp(max=self.small.vocab - 1)

    def _fitted(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary."""
        missing = self.vocab - logits.shape[-1]
        return logits if missing == 0 else F.pad(logits, (0, missing), value=float("-inf"))


def random_lm(target: LM, seed: int) -> LM:
    """An untrained Llama (Qwen3 beside a Qwen3) that reads at most a tenth of the target's weights a step, or the least
    that runs."""
    c, weight = target.config, next(target.hf.parameters())
    layers, most = 2 if c.num_hidden_layers > 2 else 1, target.nbytes() / weight.element_size() / 10
    width = max((d for d in range(16, c.hidden_size + 1, 16) if _cost(d, layers, target.vocab) <= most), default=16)
    dim = next(d for d in (64, 32, 16) if width % d == 0)
    rope = getattr(c, "rope_parameters", None) or {}
    make = Qwen3Config if c.model_type == "qwen3" else LlamaConfig
    config = make(
        vocab_size=target.vocab,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // dim,
        num_key_value_heads=width // dim,
        head_dim=dim,
        max_position_embeddings=target.positions,
        rope_parameters={"rope_type": "default", "rope_theta": rope.get("rope_theta", 1e4)},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hf = AutoModelForCausalLM.from_config(config)
    return LM(hf.to(device=weight.device, dtype=weight.dtype), "random")


def _cost(width: int, layers: int, vocab: int) -> int:
    """Weights that one step of a small model reads: the head, and per layer 4 projections and an MLP of 3 widths."""
    return vocab * width + layers * (4 + 3 * 3) * width**2
