"""A Transformers model through one verb: nodes of a tree in, logits out. No modelling code is copied."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from longdraft import ops
from longdraft.backends import architecture as decoder
from longdraft.backends import cuda_graphs as graphs
from longdraft.backends import native as fast
from longdraft.backends.partition import in_parts
from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures
from longdraft.core.rules import Rules, end_tokens
from longdraft.core.tree import Tree
from longdraft.errors import InputError

NAME = "longdraft"
# Arguments that models hand to attention functions and that do not change its numbers.
HARMLESS = {"position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states"}
HARMLESS |= {"output_router_logits", "return_dict", "is_causal", "position_embeddings"}


class KVView(Protocol):
    """Which committed keys a pass may read (views/base.py)."""

    tail_start: Tensor

    def segments(
        self, layer: int, b: int, k: Tensor, v: Tensor, end: int, visible: Tensor | None, q: Tensor
    ) -> list[ops.Segment]: ...


@dataclass
class _Pass:
    """What attention must know of one forward pass over nodes [start, size) of a tree."""

    cache: KVCache
    begin: list[int]  # committed length of each row
    start: int
    depth: Tensor  # [B,size]
    visible: list[Tensor | None]  # per row [W,size]; None where a node sees all of them
    kept: list[list[int]]
    view: KVView | None
    captured: Captures
    windows: dict[int, int]
    calls: int = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
        """q [B,H,W,D], k, v [B,K,W,D] of the new nodes, scale, soft cap, sink -> [B,W,H,Dv]."""
        self.calls += 1
        self.cache.write(layer, k, v, [n + self.start for n in self.begin])
        size, rows = self.start + q.shape[2], []
        tapped = (
            self.captured.spec.rows is not None
            and layer not in self.windows
            and self.captured.spec.only in (None, layer)
        )
        for b in range(len(q)):
            keep = self.kept[b] if tapped else None
            found = ops.attend(q[b], self.segments(layer, b, size, q[b]), *options, keep)
            if tapped:
                self.tap(layer, b, found)
            rows.append(found.out)
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)

    def segments(self, layer: int, b: int, size: int, q: Tensor) -> list[ops.Segment]:
        """The keys that row b's queries q [H,W,D] may read in this layer."""
        (k, v), n, end = self.cache.read(layer, b), self.begin[b], self.begin[b] + size
        window = self.windows.get(layer)
        if window is not None:
            low = max(0, n - window + 1)  # the first key that any node may see
            return [ops.Segment(k[:, low:end], v[:, low:end], self._near(b, low, size, window))]
        if self.view is not None:
            return self.view.segments(layer, b, k, v, end, self.visible[b], q)
        return [ops.Segment(k[:, :end], v[:, :end], self.visible[b])]

    def _near(self, b: int, low: int, size: int, window: int) -> Tensor:
        """[W,end-low] keys within a window of each node's own position."""
        n, depth = self.begin[b], self.depth[b]
        position = torch.cat([torch.arange(low, n, device=depth.device), n + depth])
        near = (n + depth[self.start :])[:, None] - position < window
        if (mask := self.visible[b]) is not None:
            near[:, n - low :] &= mask
        return near

    def tap(self, layer: int, b: int, found: ops.Attended) -> None:
        """Average the kept rows [H,R,S] over heads, over the slots up to the root."""
        kept = found.logits if self.captured.spec.of == "logits" else found.weights
        assert kept is not None
        end, most = self.begin[b] + 1, max(self.begin) + 1
        columns = len(self.cache.read(layer, b)[0]) if self.captured.spec.split else 1
        mean = kept[..., :end].float().view(columns, -1, kept.shape[1], end).mean(1).transpose(0, 1)
        mean = mean.mean(0, keepdim=True) if self.captured.spec.rows == "mean" else mean
        if layer not in self.captured.scores:
            shape = (len(self.begin), *mean.shape[:2], most)
            self.captured.scores[layer] = mean.new_full(shape, float("-inf"))
        self.captured.scores[layer][b, ..., :end] = mean


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    longdraft: _Pass | graphs.StaticPass | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [B,H,W,D], key, value [B,K,W,D] of the new nodes -> [B,W,H,Dv]. Windows come from the config (see LM)."""
    name = type(module).__name__
    if longdraft is None:
        raise InputError(
            f"{name} does not pass its arguments on to attention, so longdraft cannot run this architecture"
        )
    odd = sorted(k for k in others if k not in HARMLESS and others[k] is not None)
    if odd or attention_mask is not None or others.get("is_causal") is False:
        what = odd[0] if odd else "a mask of its own" if attention_mask is not None else "is_causal=False"
        raise InputError(f"{name} passes {what} to attention, which longdraft does not know: its output would be wrong")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return longdraft.attend(module.layer_idx, query, key, value, scale, softcap, s_aux).contiguous(), None


AttentionInterface.register(NAME, _attention)


class LM:
    """Every forward pass is a tree over a cache: logits of its nodes, their keys and values in scratch.

    Safe to use from several threads: passes run one after the other under one lock, and what a pass leaves behind
    belongs to its call. A cache belongs to one call at a time.
    """

    def __init__(self, hf: Any, name: str = ""):
        self.hf, self.name = hf.eval(), name
        hf.set_attn_implementation(NAME)
        self.lock, self._process = threading.RLock(), os.getpid()
        self._listening = decoder.listen(hf)
        self.config = hf.config.get_text_config()
        self.windows = decoder.windows_of(hf.config)
        self.native = fast.NativeBackend(hf, self.windows) if fast.fits(hf, self.windows) else None
        self.positions = int(getattr(self.config, "max_position_embeddings", None) or 1 << 30)
        self.reach = 1 << 30 if decoder.rotates(hf, fast.ROPES) else self.positions
        self.vocab = int(self.config.vocab_size)
        self.end_tokens = end_tokens(getattr(hf, "generation_config", None))  # `load` adds its tokenizer's
        self.known: dict[str, Any] | None = None  # its fingerprint, once weights cannot be read
        self.graphs = graphs.step(self)

    @property
    def device(self) -> torch.device:
        return self.hf.device

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    @property
    def exact(self) -> bool:
        """Whether a node's numbers are the same bits whatever is computed beside it: only the native step's are."""
        return self.native is not None

    def rules(self) -> Rules:
        """The rules in its generation_config as it is now. Raises InputError for those that cannot be applied."""
        return Rules.of(getattr(self.hf, "generation_config", None), self.vocab)

    def nbytes(self) -> int:
        """Bytes of weights that one decode step reads: all but the embedding table, of which it reads one row."""
        table, head = self.hf.get_input_embeddings().weight, self.hf.get_output_embeddings()
        tied = head is not None and head.weight is table
        return sum(p.nbytes for p in self.hf.parameters()) - (0 if tied else table.nbytes)

    def new_cache(self, batch: int, slots: int) -> KVCache:
        self.check_process()
        return KVCache(batch, slots, self.device)

    def __call__(
        self,
        tree: Tree,
        cache: KVCache,
        start: int = 0,
        view: KVView | None = None,
        captured: Captures | None = None,
        logits: int = 0,
    ) -> Tensor:
        """Run nodes [start, size) of a tree whose earlier nodes sit in scratch -> logits [B,W,V] (of the last `logits`
        nodes, 0: all). Their keys and values are written to slots length+start and on."""
        self.check_process()
        with self.lock:
            return self._pass(tree, cache, start, view, captured if captured is not None else Captures(), logits)

    def check_process(self) -> None:
        """Raises InputError in a forked child: the threads that passes run on were not copied, so they would hang."""
        if os.getpid() != self._process:
            raise InputError(
                "this model was loaded before the process was forked, and a pass would hang: load it in the child, or"
                " start the process with the 'spawn' method"
            )

    def _pass(
        self, tree: Tree, cache: KVCache, start: int, view: KVView | None, captured: Captures, logits: int
    ) -> Tensor:
        position = (cache.length[:, None] + tree.depth[:, start:]).clamp(max=self.reach - 1)
        if captured.spec.rows is not None:
            captured.covered = cache.length + 1
        if not logits and (step := self.native or self.graphs) and fast.copied(view):
            if position.shape[1] <= fast.NODES:
                return step(tree, cache, start, position, view, captured)
            return in_parts(step, fast.NODES, tree, cache, start, position, view, captured)
        visible = [None if bool(m.all()) else m for m in tree.mask[:, start:]]
        kept = captured.spec.kept(tree).tolist() if captured.spec.rows else []
        p = _Pass(cache, cache.length.tolist(), start, tree.depth, visible, kept, view, captured, self.windows)
        with self.residuals(captured):
            ids = tree.tokens[:, start:]
            out = self.hf(input_ids=ids, position_ids=position, use_cache=False, logits_to_keep=logits, longdraft=p)
        if p.calls != self.config.num_hidden_layers:
            used = f"{p.calls} of {self.config.num_hidden_layers} layers use the attention interface"
            raise InputError(f"{type(self.hf).__name__}: {used}; longdraft needs all of them")
        return out.logits

    @contextmanager
    def residuals(self, captured: Captures) -> Iterator[None]:
        """Catch the residual stream where it enters a layer or the final norm, in this thread's passes."""
        before = getattr(self._listening, "captured", None)
        self._listening.captured = captured
        try:
            yield
        finally:
            self._listening.captured = before

    def norm(self, hidden: Tensor) -> Tensor:
        """The final norm: residual stream after the last layer [..,d] -> [..,d]."""
        return self.hf.get_decoder().norm(hidden.to(self.dtype))

    def project(self, normed: Tensor) -> Tensor:
        """What the model makes of a normed state [..,d]: its output matrix, any bias, scaling and soft cap -> [..,V].

        It is the model's own forward with its layers left out, so no architecture's scaling is written a second time.
        """
        state = normed.to(self.dtype).reshape(1, -1, normed.shape[-1])
        logits = decoder.without_layers(self.hf)(input_ids=None, use_cache=False, longdraft_state=state).logits
        return logits.view(*normed.shape[:-1], -1)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..,V] of the residual stream after the last layer [..,d] (Captures.hidden of L)."""
        return self.project(self.norm(hidden))

    def prefill(self, tokens: list[int], cache: KVCache, chunk: int = 1024) -> None:
        """Feed one row's tokens and commit them: cache is of one row."""
        self.check_process()
        for part in torch.tensor([tokens], device=self.device).split(chunk, 1):
            if part.shape[1]:
                self(Tree.chain(part), cache, logits=1)
                cache.length += part.shape[1]
