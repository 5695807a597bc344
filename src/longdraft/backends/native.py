"""A Llama-like model's decode step in one native call (ops/native/step.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from longdraft import ops
from longdraft.backends import stock
from longdraft.core.cache import KVCache
from longdraft.core.tree import Tree
from longdraft.ops import native

ROPES = {"default", "linear", "llama3", "yarn"}  # rotations that do not change with the length
DIMS = {16, 32, 64, 96, 128, 256}
NODES = 128  # of one native call: wider trees are split (wide.py), and prefill runs in torch, which is faster there


def fits(hf: Any, windows: dict[int, int]) -> bool:
    """Whether the native step computes this model: its family, shape, dtype and place.

    Raises InputError where its shapes contradict each other: then nothing computes it.
    """
    stock.refuse(hf, windows)
    c = hf.config
    if not stock.is_stock(hf) or native.library() is None:
        return False
    rope = getattr(hf.model.rotary_emb, "rope_type", "default")
    same = {(p.dtype, p.device.type) for p in hf.parameters()}
    return (
        same in ({(torch.float32, "cpu")}, {(torch.bfloat16, "cpu")})
        and hf.model.layers[0].self_attn.head_dim in DIMS
        and c.vocab_size >= 16
        and all(w >= 16 and w % 16 == 0 for w in (c.hidden_size, c.intermediate_size))
        and all(type(layer.mlp.act_fn) in stock.SILU for layer in hf.model.layers)
        and rope in ROPES
        and all(isinstance(w, int) for w in windows.values())
    )


def sized(tensors: list[Tensor], *shapes: tuple[int, ...]) -> None:
    """Only addresses go to the kernels: what lies there must be of these shapes."""
    for x, shape in zip(tensors, shapes, strict=True):
        if x.shape != shape or not x.is_cpu or x.dtype not in (torch.long, torch.bool):
            raise ValueError(f"a native pass wants {shape} of int64 or bool, not {tuple(x.shape)} of {x.dtype}")


class Pins:
    """Tensors that C pointers point to: they live as long as this."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def raw(self, x: Tensor) -> int:
        x = x.detach().contiguous()
        self._kept.append(x)
        return x.data_ptr()

    def float(self, x: Tensor | None) -> int | None:
        return None if x is None else self.raw(x.float())

    def linear(self, module: Any) -> native.Linear:
        return native.Linear(self.raw(module.weight), self.float(module.bias), *module.weight.shape)


@dataclass
class Draws:
    """How a chain draws its `count` tokens: temperature (0: the best), noise of seed [B] at position [B] and on."""

    count: int
    temperature: float
    seed: Tensor
    position: Tensor

    def run(self, step: NativeBackend, model: native.Model, p: native.Pass, reach: int = 1 << 40) -> Tensor:
        """Draw with this model, from the pass that ops/native/step.cpp's longdraft_chain describes -> [B,count]."""
        drawn, logits = torch.empty(p.rows, self.count, dtype=torch.long), torch.empty(p.rows, step.vocab)
        seed, position = self.seed.contiguous(), self.position.contiguous()
        sized([seed, position], *[(p.rows,)] * 2)
        how = native.Chain(self.count, self.temperature, seed.data_ptr(), position.data_ptr(), reach, drawn.data_ptr())
        p.logits, p.score_layer = logits.data_ptr(), -1
        with step.lock:
            step.lib.longdraft_chain(model, p, step.work, step.half, how)
        return drawn

    def one(self, logits: Tensor) -> Tensor:
        """The tokens [B] after nodes with these logits [B,1,V]."""
        return ops.draw(logits, self.temperature, self.seed, self.position[:, None])[:, 0]

    def after(self, n: int) -> Draws:
        """What is left when n tokens are drawn."""
        return Draws(self.count - n, self.temperature, self.seed, self.position + n)


class NativeBackend:
    """Computes what the Transformers forward computes, activations in float32; writes the same slots of the cache.

    A node's numbers do not depend on the nodes and rows computed beside it: along a chain, a verify pass is bit for bit
    plain decoding. The weights are the model's own memory; it must not be moved or changed while this lives.
    """

    def __init__(self, hf: Any, windows: dict[int, int]):
        self._pins = Pins()
        c, model = hf.config, hf.model
        attention = model.layers[0].self_attn
        layers = (native.Layer * c.num_hidden_layers)(
            *[self._layer(layer, windows.get(i, 0)) for i, layer in enumerate(model.layers)]
        )
        lib = native.library()
        assert lib is not None
        self.lib = lib
        self.heads, self.dim, self.vocab = c.num_key_value_heads, attention.head_dim, c.vocab_size
        self.dtype, self.windows = hf.dtype, windows
        self.model = native.Model(
            c.num_hidden_layers,
            c.hidden_size,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.num_attention_heads // c.num_key_value_heads,
            attention.head_dim,
            c.intermediate_size,
            c.vocab_size,
            len(model.rotary_emb.inv_freq),
            c.rms_norm_eps,
            attention.scaling,
            model.rotary_emb.attention_scaling,
            self._pins.float(model.rotary_emb.inv_freq),
            self._pins.raw(model.embed_tokens.weight),
            self._pins.linear(hf.lm_head),
            self._pins.float(model.norm.weight),
            layers,
        )
        self.work, self.lock = self.lib.longdraft_new(), Lock()  # one pass at a time works in there

    def __del__(self) -> None:
        if getattr(self, "work", None):
            self.lib.longdraft_free(self.work)

    def _layer(self, layer: Any, window: int) -> native.Layer:
        norms = [layer.input_layernorm, layer.post_attention_layernorm]
        norms += [getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")]
        weights = [self._pins.float(None if n is None else n.weight) for n in norms]
        return native.Layer(*[self._pins.linear(p) for p in stock.projections(layer).values()], *weights, window)

    def __call__(self, tree: Tree, cache: KVCache, start: int, position: Tensor, view: Any, captured: Any) -> Tensor:
        """Nodes [start, size) of the tree at position [B,W] -> logits [B,W,V] float32, tapped scores in `taps`."""
        B, W = position.shape
        logits = torch.empty(B, W, self.vocab)
        arrays = [
            x.contiguous() for x in (tree.tokens[:, start:], tree.depth, cache.length, position, tree.mask[:, start:])
        ]
        sized(arrays, (B, W), (B, tree.size), (B,), (B, W), (B, W, tree.size))
        p = native.Pass(B, W, start, *[x.data_ptr() for x in arrays])
        p.logits, longest = logits.data_ptr(), self._keys(p, cache, tree.size, view)
        L = self.model.layers
        if captured.spec.rows is not None:
            keep, columns = captured.spec.kept(tree).contiguous(), self.heads if captured.spec.split else 1
            pooled = captured.spec.rows == "mean"
            scores = torch.empty(L, B, 1 if pooled else keep.shape[1], columns, longest + 1)
            for b, n in enumerate(cache.length.tolist()):
                scores[:, b, ..., n + 1 :] = float("-inf")
            p.score_nodes, p.scored, p.as_weights = keep.data_ptr(), keep.shape[1], captured.spec.of == "weights"
            p.per_key_head, p.mean_of_nodes = captured.spec.split, pooled
            p.scores, p.score_slots = scores.data_ptr(), longest + 1
            p.score_layer = -1 if captured.spec.only is None else captured.spec.only
            tapped = range(L) if captured.spec.only is None else [captured.spec.only]
            captured.scores = {layer: scores[layer] for layer in tapped if layer not in self.windows}
            arrays += [keep, scores]
        if captured.spec.hidden:
            which = torch.tensor(captured.spec.hidden, dtype=torch.long)
            states = torch.empty(len(which), B, W, self.model.width)
            p.state_layers, p.state_count, p.states = which.data_ptr(), len(which), states.data_ptr()
            captured.states = {i: states[n] for n, i in enumerate(captured.spec.hidden)}
            arrays.append(which)
        with self.lock:
            self.lib.longdraft_step(self.model, p, self.work, self.half)
        return logits

    def chain(self, cache: KVCache, view: Any, reach: int, first: Tensor, start: int, draws: Draws) -> Tensor:
        """Run first [B] as node `start` of a chain and each token drawn after it but the last -> drawn [B,count]."""
        first = first.contiguous()
        sized([first, cache.length], *[(len(first),)] * 2)
        p = native.Pass(len(first), 1, start, first.data_ptr(), None, cache.length.data_ptr())
        self._keys(p, cache, start + draws.count, view)
        return draws.run(self, self.model, p, reach)

    @property
    def half(self) -> bool:
        return self.dtype == torch.bfloat16

    def places(self, cache: KVCache, end: int) -> list[tuple[int, int, int]]:
        """KVCache.pointers of this model's layers."""
        return cache.pointers(end, self.model.layers, self.heads, self.dim, self.dtype)

    def _keys(self, p: native.Pass, cache: KVCache, nodes: int, view: Any) -> int:
        """Say where keys and values lie, with room for so many nodes -> the longest row's committed slots."""
        B, L, longest = p.rows, self.model.layers, int(cache.length.max())
        p.cache = (native.LayerCache * L)(*self.places(cache, longest + nodes))
        if view is not None:
            indices = self.selected(view, cache, range(L), B)
            sized([view.tail_start], (B,))
            p.tail_start, p.selected = view.tail_start.data_ptr(), (native.Selected * (L * B))(*indices)
        return longest

    def selected(self, view: Any, cache: KVCache, layers: Iterable[int], rows: int) -> list[native.Selected]:
        """Where the picked keys of these layers and rows lie; those that are not copied yet are copied together."""
        where = [(layer, b) for layer in layers for b in range(rows)]
        missing = [(layer, b) for layer, b in where if layer not in self.windows and (layer, b) not in view.copied]
        if missing:
            view.copy([(layer, b, *cache.read(layer, b)) for layer, b in missing])
            self._check_copies([view.copied[place] for place in missing])
        return [self._place(view.copied.get(place)) for place in where]

    def _check_copies(self, pairs: list[tuple[Tensor, Tensor] | None]) -> None:
        """Keys and values lie in the same way, a head's slots side by side."""
        for k, v in filter(None, pairs):
            same = k.shape == v.shape and k.stride() == v.stride() and k.dtype == v.dtype == self.dtype
            if not same or (len(k), k.shape[2], *k.stride()[1:]) != (self.heads, self.dim, self.dim, 1):
                raise ValueError(f"a view copied keys as {tuple(k.shape)} of {k.dtype}: not this model's")

    def _place(self, pair: tuple[Tensor, Tensor] | None) -> native.Selected:
        if pair is None:
            return native.Selected(None, None, 0, 0)
        return native.Selected(*[x.data_ptr() for x in pair], pair[0].shape[1], pair[0].stride(0) // self.dim)


def copied(view: Any) -> bool:
    """Whether a view's keys can be copied together beforehand; one that looks at the query runs in torch."""
    return view is None or hasattr(view, "compact")


def chain(lm: Any, cache: KVCache, view: Any) -> Callable[[Tensor, int, Draws], Tensor] | None:
    """NativeStep.chain of a model over this cache and view; None where it cannot be: a view may look at the query."""
    step = lm.native
    if step is None or not copied(view):
        return None
    return partial(step.chain, cache, view, lm.reach)
