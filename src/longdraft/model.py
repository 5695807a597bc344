"""A Transformers model through one verb: nodes of a tree in, logits out. No modelling code is copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_outputs import MoeModelOutputWithPast

from longdraft import fast, graphs, ops
from longdraft.cache import KVCache
from longdraft.errors import InputError
from longdraft.tree import PAD, Tree

NAME = "longdraft"
# Arguments that models hand to attention functions and that do not change its numbers.
HARMLESS = {"position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states"}
HARMLESS |= {"output_router_logits", "return_dict", "is_causal", "position_embeddings"}


class KVView(Protocol):
    """Which committed keys a pass may read (views/base.py)."""

    since: Tensor

    def segments(
        self, layer: int, b: int, k: Tensor, v: Tensor, end: int, visible: Tensor | None, q: Tensor
    ) -> list[ops.Segment]: ...


@dataclass
class Taps:
    """What a forward pass leaves behind on request; the model knows no drafter.

    rows: the query nodes whose scores over slots 0..root are wanted, in layers that see everything: "first" (the root),
    "last" (node), "ends" (both), "all", or "mean" (one row, the mean of all). of: "logits" or "weights". split: a score
    for each of the K key heads (means over its query heads), otherwise means over all heads. only: of one layer.
    The native step takes "mean" of weights over all heads from weights that it keeps as bf16: to 1/256 of themselves.
    -> scores {layer: [B,R,K|1,S] float32, -inf beyond a row's root}, covered [B] = the slots scored.
    hidden: the residual stream after so many layers (0: embeddings, before any final norm) -> states {n: [B,W,d]}.
    A round adds what a drafter may learn from: logits [B,T,V] of its verify pass, accepted [B] the last node accepted.
    """

    rows: str | None = None
    of: str = "logits"
    split: bool = False
    only: int | None = None
    hidden: tuple[int, ...] = ()
    scores: dict[int, Tensor] = field(default_factory=dict)
    covered: Tensor | None = None
    states: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None
    accepted: Tensor | None = None

    def kept(self, tree: Tree) -> Tensor:
        """[B,R] the query nodes of a pass over the whole tree."""
        first, last = torch.zeros_like(tree.tokens[:, 0]), tree.last
        if self.rows in ("all", "mean"):
            every = torch.arange(tree.size, device=first.device).repeat(len(first), 1)
            return every if self.rows == "all" else every.where(tree.parent != PAD, last[:, None])
        return torch.stack({"first": [first], "last": [last], "ends": [first, last]}[self.rows or "ends"], 1)


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
    taps: Taps
    windows: dict[int, int]
    calls: int = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
        """q [B,H,W,D], k, v [B,K,W,D] of the new nodes, scale, soft cap, sink -> [B,W,H,Dv]."""
        self.calls += 1
        self.cache.write(layer, k, v, [n + self.start for n in self.begin])
        size, rows = self.start + q.shape[2], []
        tapped = self.taps.rows is not None and layer not in self.windows and self.taps.only in (None, layer)
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
        mask = self.visible[b]
        if mask is not None:
            near[:, n - low :] &= mask
        return near

    def tap(self, layer: int, b: int, found: ops.Attended) -> None:
        """Average the kept rows [H,R,S] over heads, over the slots up to the root."""
        kept = found.logits if self.taps.of == "logits" else found.weights
        assert kept is not None
        end, most = self.begin[b] + 1, max(self.begin) + 1
        columns = len(self.cache.read(layer, b)[0]) if self.taps.split else 1
        mean = kept[..., :end].float().view(columns, -1, kept.shape[1], end).mean(1).transpose(0, 1)
        mean = mean.mean(0, keepdim=True) if self.taps.rows == "mean" else mean
        if layer not in self.taps.scores:
            shape = (len(self.begin), *mean.shape[:2], most)
            self.taps.scores[layer] = mean.new_full(shape, float("-inf"))
        self.taps.scores[layer][b, ..., :end] = mean


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


def windows_of(config: Any) -> dict[int, int]:
    """{layer: window} of the layers that see only the latest tokens, read from the config.

    Not from the attention argument: some architectures put the window in their mask alone. Raises InputError on layer
    types that are not attention over keys and values.
    """
    c = config.get_text_config()
    types = getattr(c, "layer_types", None)
    window: int | None = getattr(c, "sliding_window", None)
    if types is None:
        used = getattr(c, "use_sliding_window", True)
        return dict.fromkeys(range(c.num_hidden_layers), window) if window is not None and used else {}
    odd = sorted(set(types) - {"full_attention", "sliding_attention"})
    if odd:
        raise InputError(
            f"{c.model_type} has {odd[0]} layers, which cannot be rolled back: use a model of full or sliding attention"
        )
    return {i: window for i, kind in enumerate(types) if kind == "sliding_attention" and window is not None}


def rotates(hf: Any) -> bool:
    """Whether positions are rotations that any number gives, beyond those the model was trained on too."""
    kinds = getattr(getattr(hf.get_decoder(), "rotary_emb", None), "rope_type", None)
    return kinds is not None and set(kinds.values() if isinstance(kinds, dict) else [kinds]) <= fast.ROPES


class LM:
    """Every forward pass is a tree over a cache: logits of its nodes, their keys and values in scratch."""

    def __init__(self, hf: Any, name: str = ""):
        self.hf, self.name = hf.eval(), name
        hf.set_attn_implementation(NAME)
        self.config = hf.config.get_text_config()
        self.windows = windows_of(hf.config)
        self.native = fast.NativeStep(hf, self.windows) if fast.fits(hf, self.windows) else None
        self.positions = int(getattr(self.config, "max_position_embeddings", None) or 1 << 30)
        self.reach = 1 << 30 if rotates(hf) else self.positions
        self.vocab = int(self.config.vocab_size)
        self.known: dict[str, Any] | None = None  # its fingerprint, once weights cannot be read
        self.graphs = graphs.step(self)

    @property
    def device(self) -> torch.device:
        return self.hf.device

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    def nbytes(self) -> int:
        """Bytes of weights that one decode step reads: all but the embedding table, of which it reads one row."""
        table = self.hf.get_input_embeddings().weight
        head = self.hf.get_output_embeddings()
        tied = head is not None and head.weight is table
        total = sum(p.numel() * p.element_size() for p in self.hf.parameters())
        return total - (0 if tied else table.numel() * table.element_size())

    def new_cache(self, batch: int, slots: int) -> KVCache:
        return KVCache(batch, slots, self.device)

    def __call__(
        self,
        tree: Tree,
        cache: KVCache,
        start: int = 0,
        view: KVView | None = None,
        taps: Taps | None = None,
        logits: int = 0,
    ) -> Tensor:
        """Run nodes [start, size) of a tree whose earlier nodes sit in scratch -> logits [B,W,V] (of the last `logits`
        nodes, 0: all). Their keys and values are written to slots length+start and on."""
        taps = taps if taps is not None else Taps()
        position = (cache.length[:, None] + tree.depth[:, start:]).clamp(max=self.reach - 1)
        if taps.rows is not None:
            taps.covered = cache.length + 1
        few = position.shape[1] <= fast.NODES and not logits
        if few and (whole := self.native or self.graphs) and fast.copied(view):
            return whole(tree, cache, start, position, view, taps)
        visible = [None if bool(m.all()) else m for m in tree.mask[:, start:]]
        kept = taps.kept(tree).tolist() if taps.rows else []
        p = _Pass(cache, cache.length.tolist(), start, tree.depth, visible, kept, view, taps, self.windows)
        with self.residuals(taps):
            out = self.hf(
                input_ids=tree.tokens[:, start:],
                position_ids=position,
                use_cache=False,
                logits_to_keep=logits,
                longdraft=p,
            )
        if p.calls != self.config.num_hidden_layers:
            used = f"{p.calls} of {self.config.num_hidden_layers} layers use the attention interface"
            raise InputError(f"{type(self.hf).__name__}: {used}; longdraft needs all of them")
        return out.logits

    @contextmanager
    def residuals(self, taps: Taps) -> Iterator[None]:
        """Catch the residual stream where it enters a layer or the final norm."""
        body = self.hf.get_decoder()
        places = [*body.layers, body.norm] if taps.hidden else []

        def catch(n: int) -> Any:
            return lambda module, args, kwargs: taps.states.update({n: args[0] if args else kwargs["hidden_states"]})

        hooks = [places[n].register_forward_pre_hook(catch(n), with_kwargs=True) for n in taps.hidden]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def norm(self, hidden: Tensor) -> Tensor:
        """The final norm: residual stream after the last layer [..,d] -> [..,d]."""
        return self.hf.get_decoder().norm(hidden.to(self.dtype))

    def project(self, normed: Tensor) -> Tensor:
        """What the model makes of a normed state [..,d]: its output matrix, any bias, scaling and soft cap -> [..,V].

        It is the model's own forward with its layers left out, so no architecture's scaling is written a second time.
        """
        body, state = self.hf.get_decoder(), normed.to(self.dtype).reshape(1, -1, normed.shape[-1])
        body.forward = lambda *args, **kwargs: MoeModelOutputWithPast(last_hidden_state=state)
        try:
            logits = self.hf(input_ids=None, use_cache=False).logits
        finally:
            del body.forward
        return logits.view(*normed.shape[:-1], -1)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..,V] of the residual stream after the last layer [..,d] (Taps.hidden of L)."""
        return self.project(self.norm(hidden))

    def prefill(self, tokens: list[int], cache: KVCache, chunk: int = 1024) -> None:
        """Feed one row's tokens and commit them: cache is of one row."""
        for part in torch.tensor([tokens], device=self.device).split(chunk, 1):
            if part.shape[1]:
                self(Tree.chain(part), cache, logits=1)
                cache.length += part.shape[1]
