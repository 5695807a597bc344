"""A separate small language model drafts: speculative decoding, BudgetDraft, TriForce's innermost
level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from longdraft.core import (
    Captures,
    CaptureSpec,
    ChainDraws,
    DraftLimits,
    KVView,
    Sequences,
    Tree,
    Verdict,
    without,
)
from longdraft.costs.counts import counts_of
from longdraft.costs.passes import Pass
from longdraft.drafters.base import Drafter
from longdraft.drafters.beam_search import beam
from longdraft.drafters.price import Lengths
from longdraft.drafters.small_model.price import NEAR, SmallModelPrice
from longdraft.errors import InputError
from longdraft.families import LLAMA, QWEN3
from longdraft.models.lm import LM
from longdraft.views.base import Policy

PADDING = 512  # vocabularies are padded to a multiple of at most this
SINK = 16  # first tokens of a prompt that are always read: attention relies on them
GROWTH = 1024  # initial slots for new tokens; the cache grows if needed


class SmallModelDrafter(Drafter):
    """The drafter's cache holds a prefix of each row's excerpt; missing tokens run in the pass of
    the next root.

    An excerpt is the part of a sequence that the small model reads: the first SINK tokens, the last
    `tail` tokens before the row's first draft, and all later tokens (tail 0: the whole sequence).
    Nothing is read before that draft. Slots and positions of the small model count tokens of the
    excerpt, so a view cannot select tokens that were left out, and only distances to the first SINK
    tokens differ from those in the sequence. vocab: the target's vocabulary size, if padding makes
    it differ from the small model's. Raises InputError if they differ by more than padding. depth:
    the target's layers, for the price.
    """

    has_draft_probs = True
    name = "small model"
    usual: tuple[float, float] = (0.6, 0.5)

    def __init__(
        self,
        small: LM,
        policy: Policy,
        widths: Sequence[int],
        vocab: int | None = None,
        tail: int = 0,
        depth: int | None = None,
    ):
        self.small = small
        self.policy = policy
        self.widths = widths
        self.tail = tail
        self.depth = depth
        self.max_depth = len(widths)
        self.is_chain = set(widths) == {1}
        self.lasts = policy.lasts
        self.renews = policy.renews
        self.vocab = small.vocab if vocab is None else vocab
        larger = max(self.vocab, small.vocab)
        apart = abs(self.vocab - small.vocab)
        if apart > min(PADDING, larger // 8):
            fault = f"the drafter's vocabulary of {small.vocab} is not the target's of {self.vocab}"
            raise InputError(f"{fault}: use a drafter that was trained with the target's tokenizer")
        if tail and policy.captures().rows is not None:
            raise ValueError(
                "captures refer to slots of the whole sequence: a policy that uses them "
                "needs tail=0"
            )
        self.cache = small.new_cache(0, 0)
        self._left = self.cache.length.clone()  # tokens that each row's excerpt leaves out
        self._run = 0  # nodes of the current tree that have keys in scratch slots

    def stay(self, steps: int) -> None:
        self.policy.stay(steps)
        self.lasts = self.policy.lasts

    def choosing(self) -> CaptureSpec:
        return self.policy.choosing()

    def captures(self) -> CaptureSpec:
        return self.policy.captures()

    def start(self, seqs: Sequences) -> None:
        wide = seqs.tokens.shape[1]
        slots = min(wide, SINK + self.tail + GROWTH) if self.tail else wide
        self._whole_cache = self.small.new_cache(seqs.capacity, slots + 128)
        self._whole_text = seqs.tokens.new_zeros(seqs.capacity, wide)
        self._whole_left = seqs.length.new_zeros(seqs.capacity)
        # tokens of each excerpt that were copied from the sequence
        self._copied = [0] * len(seqs.length)
        self._have_rows(seqs)
        self.policy.start(self.small, self._text, self.cache)

    def enter(self, seqs: Sequences, row: int) -> None:
        self._whole_cache.row(row).clear()
        self._whole_left[row] = 0
        self._copied.append(0)
        self._have_rows(seqs)
        self.policy.enter(self.small, self._text, self.cache, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        last = len(seqs.length)
        if row != last:
            self._whole_cache.move(last, row)
            self._whole_text[row], self._whole_left[row] = (
                self._whole_text[last],
                self._whole_left[last],
            )
        self._copied = without(self._copied, row)
        self._have_rows(seqs)
        self.policy.leave(self.small, self._text, self.cache, row)

    def _have_rows(self, seqs: Sequences) -> None:
        """Select the rows in use: excerpts [B,N], and the number of tokens that each leaves out
        [B].
        """
        rows = len(seqs.length)
        self.cache = self._whole_cache.first(rows)
        self._run = 0
        self._text = self._whole_text[:rows]
        self._left = self._whole_left[:rows]

    def rewind(self, seqs: Sequences) -> None:
        for b, (held, root) in enumerate(
            zip(self.cache.length.tolist(), self._root_of(seqs).tolist(), strict=True)
        ):
            row = self.cache.row(b)
            # `ready` reads what recurrent layers cannot take back
            row.truncate(row.resumable(min(held, root)))

    def _root_of(self, seqs: Sequences) -> Tensor:
        """[B] the root's position in each excerpt; at the next draft the cache holds all tokens
        before it.
        """
        return seqs.length - 1 - self._left

    def ready(self, seqs: Sequences) -> None:
        """Rows that are not done read their prompt if they have not, and tokens committed while
        drafting was off.
        """
        places = zip(
            *(x.tolist() for x in (self.cache.length, seqs.length, self._left, seqs.done)),
            strict=True,
        )
        for b, (held, length, left, done) in enumerate(places):
            if done:
                continue
            if not held and self.tail:
                self._left[b] = left = max(length - SINK - self.tail, 0)
            self._copy(seqs.tokens[b], b, min(held, self._copied[b]), length, left)
            if not held or length - 1 - left - held > NEAR:
                self._read(seqs, b)

    def _copy(self, text: Tensor, b: int, begin: int, length: int, left: int) -> None:
        """Extend row b's excerpt up to its root; it is already correct before position `begin`."""
        first = min(SINK, length - left)
        if begin < first:
            self._text[b, begin:first] = self._known(text[begin:first])
            begin = first
        self._text[b, begin : length - left] = self._known(text[begin + left : length])
        self._copied[b] = length - left

    def _read(self, seqs: Sequences, b: int) -> None:
        """Run the tokens of row b's excerpt that are not in its cache, except the root."""
        row = self.cache.row(b)
        self.small.extend_cache(
            self._text[b : b + 1, int(row.length[0]) : int(self._root_of(seqs)[b])], row
        )

    def price(self) -> SmallModelPrice:
        left: list[int | None] = []
        if len(self._left):  # rows have begun
            rows = zip(self._left.tolist(), self.cache.length.tolist(), strict=True)
            left = [out if held or not self.tail else None for out, held in rows]
        return SmallModelPrice(
            max_depth=self.max_depth,
            usual=self.usual,
            counts=counts_of(self.small),
            policy=self.policy,
            widths=self.widths,
            depth=self.depth,
            most=SINK + self.tail if self.tail else 0,
            left=left,
        )

    def to_read(self, seqs: Sequences) -> list[Pass]:
        return self.price().reading(self.cache.length.tolist(), Lengths.of(seqs))

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        self._run = 0
        self.ready(seqs)
        view = self.policy.view(self.cache)

        def step(tree: Tree, start: int) -> Tensor:
            """Logits [B,W,V] of nodes [start, size), V of the target; the first pass also runs
            missing tokens.
            """
            if start == 0:
                logits = self._root(seqs, view)
            else:
                logits = self.small(
                    replace(tree, tokens=self._known(tree.tokens)), self.cache, start, view
                )
            self._run = tree.size
            missing = self.vocab - logits.shape[-1]
            return F.pad(logits, (0, missing), value=float("-inf")) if missing else logits

        rest = (
            self.small.backend.chain_drafter(self.cache, view)
            if self.small.vocab == self.vocab
            else None
        )
        whole = rest and partial(self._whole, partial(step, tree, 0), rest)
        return beam(step, tree, self.widths, seqs, limits, whole)

    def _whole(
        self, root: Callable[[], Tensor], rest: Callable[..., Tensor], draws: ChainDraws
    ) -> Tensor:
        """A chain [B,count] in two calls: the pass that also runs missing tokens, and the rest."""
        first = draws.first(root())
        self._run = draws.count
        return torch.cat([first[:, None], rest(first, 1, draws.after(first))], 1)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        """Keep the keys of accepted nodes; the deepest node has none, because it never ran."""
        if self._run:
            steps = torch.arange(verdict.path.shape[1], device=verdict.path.device)
            run = ((verdict.path < self._run) & (steps < verdict.count[:, None])).sum(1)
            lacking = self._root_of(seqs) - self.cache.length
            self.cache.keep(
                verdict.path, torch.minimum(run, lacking).masked_fill(~self._drafted, 0)
            )
        self._run = 0  # the next step may draft nothing
        ahead = self.cache.first(len(seqs.length))
        ahead.length = self._root_of(seqs)
        self.policy.update(ahead, captured)

    def _root(self, seqs: Sequences, view: KVView | None) -> Tensor:
        """Run the tokens committed since the last step, up to the root -> the root's logits
        [B,1,V].

        Rows with fewer missing tokens are padded after their root; no later query attends to the
        padding, and drafts overwrite it. A row that is done runs as many tokens as the others need,
        and its drafts are not used.
        """
        n = self._root_of(seqs) + 1 - self.cache.length
        wide = int(n.masked_fill(seqs.done, 1).max())
        position = self.cache.length[:, None] + torch.arange(wide, device=n.device)
        tokens = self._text.gather(1, position.clamp(max=self._text.shape[1] - 1))
        logits = self.small(Tree.chain(tokens), self.cache, view=view)
        self._drafted = n <= wide
        last = n.clamp(max=wide) - 1
        self.cache.length += torch.where(self._drafted, last, 0)
        return logits.gather(1, last[:, None, None].expand(-1, 1, logits.shape[2]))

    def _known(self, tokens: Tensor) -> Tensor:
        """Replace tokens without an embedding in the small model by its last token, which is
        usually padding.
        """
        return tokens if self.small.vocab >= self.vocab else tokens.clamp(max=self.small.vocab - 1)


def random_lm(target: LM, seed: int) -> LM:
    """An untrained Llama (Qwen3 for a Qwen3 target) that reads a tenth of the target's weights, or
    as few as it can.
    """
    c = target.config
    weight = next(target.hf.parameters())
    layers = 2 if c.num_hidden_layers > 2 else 1
    most = target.nbytes() / weight.element_size() / 10

    def cost(width: int) -> int:
        """Weights read per step: the head, and per layer 4 projections and an MLP of 3 widths."""
        return target.vocab * width + layers * (4 + 3 * 3) * width**2

    width = max((d for d in range(16, c.hidden_size + 1, 16) if cost(d) <= most), default=16)
    hf = new_small(target, width, layers, seed)
    return LM(hf.to(device=weight.device, dtype=weight.dtype), "random")


def new_small(target: LM, width: int, layers: int, seed: int) -> Any:
    """An untrained Transformers model of this width, a multiple of 16, with the target's tokens and
    positions.
    """
    c = target.config
    dim = next(d for d in (64, 32, 16) if width % d == 0)
    rope = getattr(c, "rope_parameters", None) or {}
    family = QWEN3 if c.model_type == QWEN3.model_type else LLAMA
    config = family.config_class(
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
        return AutoModelForCausalLM.from_config(config)
